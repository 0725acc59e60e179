"""The user's own reader (`custom_data_reader` of the model file) behind the Reader protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elasticdl.data.dataset import DataFile, Dataset
from elasticdl.data.files import Record, check_range
from elasticdl.errors import DataError

_CONTRACT = (
    "A custom reader has create_shards() -> {name: (start, count)} and read_records(task), which yields the records "
    "task.start to task.end of task.shard_name."
)


@dataclass(frozen=True)
class ReadTask:
    """The argument of read_records."""

    shard_name: str
    start: int
    end: int

    @property
    def name(self) -> str:
        return self.shard_name


class CustomReader:
    """A Reader around an object of the user's code; exceptions of that code pass through unchanged."""

    def __init__(self, user_reader: Any, path: str = "") -> None:
        self._user, self._path = user_reader, path
        for method in ("create_shards", "read_records"):
            if not callable(getattr(user_reader, method, None)):
                raise self._wrong(f"it has no method {method}", _CONTRACT)
        self._first: dict[str, int] = {}
        self._count: dict[str, int] = {}
        self._listed = False

    @property
    def metadata(self) -> Mapping[str, object]:
        given = getattr(self._user, "metadata", None)
        if given is None:
            return {}
        if isinstance(given, Mapping):
            return given
        # The old contract had an object with attributes here.
        return {name: value for name, value in vars(given).items() if not name.startswith("_")}

    def describe(self) -> Dataset:
        self._list()
        # Sizes are unknown; the first record's number replaces them, so that moved ranges change the fingerprint.
        files = (DataFile(name, self._first[name], count) for name, count in self._count.items())
        return Dataset(self._path, "custom", tuple(files))

    def read(self, name: str, start: int, end: int) -> list[Record]:
        self._list()
        if name not in self._count:
            raise self._wrong(f"create_shards() returned no shard {name!r}", "Return the same shards in every process.")
        check_range(f"{self._title}, shard {name}", self._count[name], start, end)
        if start == end:
            return []
        first = self._first[name]
        found = list(self._user.read_records(ReadTask(name, first + start, first + end)))
        if len(found) != end - start:
            what = f"read_records yielded {len(found)} records for {first + start} to {first + end} of shard {name!r}"
            raise self._wrong(what, "It must yield exactly one record for each number.")
        return found

    def close(self) -> None:
        close: Callable[[], None] | None = getattr(self._user, "close", None)
        if callable(close):
            close()

    @property
    def _title(self) -> str:
        return f"custom_data_reader {type(self._user).__name__}"

    def _list(self) -> None:
        if self._listed:
            return
        shards = self._user.create_shards()
        if not isinstance(shards, Mapping) or not shards:
            raise self._wrong(f"create_shards() returned {shards!r:.80}", _CONTRACT)
        for name, span in shards.items():
            fits = isinstance(name, str) and isinstance(span, tuple | list) and len(span) == 2
            if not fits or not all(isinstance(number, int) and number >= 0 for number in span):
                raise self._wrong(f"create_shards() returned {name!r}: {span!r}", _CONTRACT)
            self._first[name], self._count[name] = span
        self._listed = True

    def _wrong(self, what: str, remedy: str) -> DataError:
        return DataError(self._title, what, remedy)
