"""A data set made of files: opening them, reading them by position, and keeping a bounded number of them open."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from elasticdl.data.dataset import DataFile, Dataset
from elasticdl.errors import DataError

Record: TypeAlias = bytes | dict[str, object] | tuple[bytes, str]

_MAX_OPEN_FILES = 64
_NEWER_COPY = "Copy or convert the file again, and run `elasticdl data verify` on the copy."


class RecordFile(Protocol):
    """One file of a data set, opened and indexed: what each format implements."""

    size_bytes: int
    records: int

    def read(self, start: int, end: int) -> Sequence[Record]:
        """Records start..end; the caller has checked the range."""
        ...

    def check(self, start: int, end: int) -> list[DataError]:
        """The errors in records start..end; a format may find them without creating the records."""
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
        if not self.size_bytes:
            raise self.wrong("the file is empty", 0, "Write it again, or remove it from the data directory.")

    def wrong(self, what: str, offset: int, remedy: str = _NEWER_COPY) -> DataError:
        return DataError(str(self.path), what, remedy, offset)

    def pread(self, count: int, offset: int) -> bytes:
        """`count` bytes, or fewer at the end of the file."""
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
    """Reader of independent files; indexes a file when it is first needed."""

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
        """The errors in these records of a file: the first one, or that of each image of a class folder."""
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


class Table(RecordFile, Protocol):
    """A file of rows."""

    columns: tuple[str, ...]


def open_tables(
    path: str, format_name: str, files: Mapping[str, Path], open_file: Callable[[Path], Table]
) -> FilesReader:
    """A reader of files that have the columns of the first one that opens; raises the first error when none opens."""
    wrong: list[DataError] = []
    for first in files.values():
        try:
            columns = open_file(first).columns
            break
        except DataError as error:  # reported when the files are described, together with all other damaged ones
            wrong.append(error)
    else:
        raise wrong[0]

    def open_alike(place: Path) -> Table:
        opened = open_file(place)
        if opened.columns != columns:
            what = f"its columns ({', '.join(opened.columns)}) are not those of {first.name} ({', '.join(columns)})"
            raise DataError(str(place), what, "Give all files of a directory the same columns.", 0)
        return opened

    return FilesReader(path, format_name, files, open_alike, {"column_names": list(columns)})


def check_range(path: str, records: int, start: int, end: int) -> None:
    if not 0 <= start <= end <= records:
        raise DataError(
            path,
            f"records {start} to {end} were requested, but it has {records}",
            "If the file changed since the job started, restore it or start a new job.",
        )
