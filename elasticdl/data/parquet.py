"""Parquet files, by row group; pyarrow is imported when the first one is opened."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.data.files import FilesReader, Handle, Record, Table, open_tables
from elasticdl.errors import DataError, Problem, UsageError

_KEPT_GROUPS = 2  # decoded row groups kept per file: they are large, and ranges are small


def import_pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        what = "reading and writing Parquet needs pyarrow, which is not installed"
        raise UsageError([Problem("parquet", "", what, "Run: pip install 'elasticdl[parquet]'.")]) from error
    return pyarrow


def open_parquet(path: str, files: Mapping[str, Path], params: Mapping[str, str]) -> FilesReader:
    return open_tables(path, "parquet", files, ParquetFile)


class ParquetFile(Table):
    """One Parquet file, indexed by its footer."""

    def __init__(self, path: Path) -> None:
        self._handle = Handle(path)
        self.size_bytes = self._handle.size_bytes
        self._arrow = import_pyarrow()
        self._lock = threading.Lock()  # a pyarrow file is not thread-safe
        try:
            self._file = self._arrow.parquet.ParquetFile(str(path), page_checksum_verification=True)
            metadata = self._file.metadata
            counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            self.columns = tuple(self._file.schema_arrow.names)
        except (self._arrow.ArrowException, OSError) as error:
            raise self._corrupt(error, self.size_bytes) from error
        self._ends = np.cumsum(counts, dtype=np.int64)
        self.records = int(sum(counts))
        if self.records != metadata.num_rows:
            raise self._handle.wrong("the row counts in its footer differ", self.size_bytes)
        self._groups: OrderedDict[int, Any] = OrderedDict()

    def read(self, start: int, end: int) -> list[Record]:
        found: list[Record] = []
        for group in self._groups_of(start, end):
            before = int(self._ends[group - 1]) if group else 0
            table = self._group(group)
            low, high = max(start - before, 0), min(end - before, table.num_rows)
            part = table.slice(low, high - low)
            values = [column.to_pylist() for column in part.columns]
            found += [dict(zip(self.columns, row, strict=True)) for row in zip(*values, strict=True)]
        return found

    def check(self, start: int, end: int) -> list[DataError]:
        try:
            for group in self._groups_of(start, end):
                self._group(group)
        except DataError as error:
            return [error]
        return []

    def _groups_of(self, start: int, end: int) -> range:
        first, last = (int(i) for i in np.searchsorted(self._ends, (start, end - 1), side="right"))
        return range(first, last + 1)

    def _group(self, number: int) -> Any:
        with self._lock:
            if number in self._groups:
                self._groups.move_to_end(number)
                return self._groups[number]
            try:
                table = self._file.read_row_group(number, use_threads=False)
            except (self._arrow.ArrowException, OSError) as error:
                offset = self._file.metadata.row_group(number).column(0).data_page_offset
                raise self._corrupt(error, offset) from error
            self._groups[number] = table
            while len(self._groups) > _KEPT_GROUPS:
                self._groups.popitem(last=False)
            return table

    def _corrupt(self, error: BaseException, offset: int) -> DataError:
        return self._handle.wrong(f"truncated, corrupt or not Parquet ({error})", offset)
