"""A data set made of files: opening them, reading them by position, and keeping a bounded number of them open."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from elasticdl.data.dataset import DataFile, Dataset
from elasticdl.errors import DataError

Opened = TypeVar("Opened")
Record: TypeAlias = bytes | dict[str, object] | tuple[bytes, str]

_MAX_OPEN_FILES = 64


class RecordFile(Protocol):
    """One file of a data set, opened and indexed: what each format implements."""

    size_bytes: int
    records: int

    def read(self, start: int, end: int) -> Sequence[Record]:
        """Records start..end; the caller has checked the range."""
        ...

    def check(self, start: int, end: int) -> list[DataError]:
        """What is wrong with records start..end; the formats that can tell without making records do so."""
        try:
            self.read(start, end)
        except DataError as error:
            return [error]
        return []


class Handle:
    """An open file read by position, so that threads may share it; it closes with its last user."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.size_bytes = os.fstat(descriptor).st_size
        except OSError as error:
            raise unreadable(path, error) from error
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def pread(self, count: int, offset: int) -> bytes:
        """Exactly `count` bytes, fewer only where the file ends."""
        try:
            data = os.pread(self._descriptor, count, offset)
            while len(data) < count:
                more = os.pread(self._descriptor, count - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise unreadable(self.path, error) from error
        return data


def unreadable(path: Path, error: OSError) -> DataError:
    return DataError(
        str(path), f"cannot be read ({error.strerror or error})", "Check that it exists and its permissions."
    )


class FilesReader:
    """Reader over files that each open by themselves; indexes a file when it is first needed."""

    def __init__(
        self,
        path: str,
        format_name: str,
        files: Mapping[str, Path],
        open_file: Callable[[Path], RecordFile],
        metadata: Mapping[str, object] | None = None,
    ) -> None:
        self.metadata: Mapping[str, object] = metadata or {}
        self.path, self.format = path, format_name
        self._files, self._open_file = dict(files), open_file
        self._opened: OrderedDict[str, RecordFile] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._files)

    def describe(self) -> Dataset:
        return Dataset(self.path, self.format, tuple(self.describe_file(name) for name in self._files))

    def describe_file(self, name: str) -> DataFile:
        opened = self._get(name)
        return DataFile(name, opened.size_bytes, opened.records)

    def read(self, name: str, start: int, end: int) -> list[Record]:
        opened = self._get(name)
        check_range(str(self._files[name]), opened.records, start, end)
        return list(opened.read(start, end)) if start < end else []

    def check(self, name: str, start: int, end: int) -> list[DataError]:
        """What is wrong with these records of a file: the first damage, or that of each image of a class folder."""
        try:
            opened = self._get(name)
            check_range(str(self._files[name]), opened.records, start, end)
        except DataError as error:
            return [error]
        return opened.check(start, end)

    def close(self) -> None:
        with self._lock:
            self._opened.clear()

    def _get(self, name: str) -> RecordFile:
        with self._lock:
            if name in self._opened:
                self._opened.move_to_end(name)
                return self._opened[name]
        if name not in self._files:
            raise DataError(self.path, f"has no file named {name!r}", "Describe the data set again: its files changed.")
        # Outside the lock: indexing takes time, and two threads that index one file get equal answers.
        opened = self._open_file(self._files[name])
        with self._lock:
            self._opened[name] = opened
            while len(self._opened) > _MAX_OPEN_FILES:
                self._opened.popitem(last=False)
        return opened


def first_that_opens(paths: Iterable[Path], open_file: Callable[[Path], Opened]) -> tuple[Path, Opened]:
    """The file that the others are compared with; raises what is wrong with the first one when none opens."""
    wrong: list[DataError] = []
    for path in paths:
        try:
            return path, open_file(path)
        except DataError as error:  # named when the files are described, together with all other damaged ones
            wrong.append(error)
    raise wrong[0]


def check_range(path: str, records: int, start: int, end: int) -> None:
    if not 0 <= start <= end <= records:
        raise DataError(
            path,
            f"records {start} to {end} were requested, but it has {records}",
            "If the file changed since the job started, restore it or start a new job.",
        )
