"""CSV files: a header row, quoted fields with line breaks inside them, and an index of row offsets."""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elasticdl.data.files import FilesReader, Handle, Record, Table, open_tables
from elasticdl.errors import DataError, Problem, UsageError

_INDEX_EVERY = 64  # rows between two indexed offsets
_SCAN_BYTES = 4 * 1024 * 1024
_QUOTE, _NEWLINE, _RETURN = 34, 10, 13
# By name, since ; separates the parameters and blanks around them are removed.
_DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "space": " ", "pipe": "|"}
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Dialect:
    """How the rows are written."""

    delimiter: str = ","
    quoted: bool = True
    columns: tuple[str, ...] = ()  # given by the user: the files have no header row

    def rows(self, text: str) -> list[list[str]]:
        lines = csv.reader(
            io.StringIO(text, newline=""),  # line breaks inside quoted fields stay as they are
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE,
            strict=True,
        )
        return [row for row in lines if row]


def dialect_of(params: Mapping[str, str], suffix: str) -> Dialect:
    """The dialect that --data_reader_params describes; a .tsv file is separated by tabs by default."""
    problems = []
    remedy = "Write one character, or comma, semicolon, tab, space or pipe."
    delimiter = params.get("delimiter", "\t" if suffix == ".tsv" else ",")
    delimiter = _DELIMITERS.get(delimiter, delimiter)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        problems.append(Problem("--data_reader_params", f"delimiter={delimiter}", "is not one character", remedy))
    quoting = params.get("quoting", "minimal")
    if quoting not in ("minimal", "none"):
        problems.append(Problem("--data_reader_params", f"quoting={quoting}", "is unknown", "Use minimal or none."))
    columns = tuple(name.strip() for name in params.get("columns", "").split(",") if name.strip())
    if len(set(columns)) != len(columns):
        value = f"columns={params['columns']}"
        problems.append(Problem("--data_reader_params", value, "has a column name twice", "Rename one."))
    if problems:
        raise UsageError(problems)
    return Dialect(delimiter, quoting == "minimal", columns)


def open_csv(path: str, files: Mapping[str, Path], params: Mapping[str, str]) -> FilesReader:
    dialect = dialect_of(params, next(iter(files.values())).suffix.lower())
    return open_tables(path, "csv", files, lambda place: CsvFile(place, dialect))


class CsvFile(Table):
    """One CSV file, indexed by scanning it once for the ends of its rows."""

    def __init__(self, path: Path, dialect: Dialect) -> None:
        self._dialect = dialect
        self._handle = Handle(path)
        self.size_bytes = self._handle.size_bytes
        self._offsets, self.records, last = self._scan()
        self.columns = dialect.columns or self._header()
        if not self.records:
            raise self._handle.wrong(
                "it has a header row but no records", self.size_bytes, "Write it again, or remove it."
            )
        # A truncated file usually ends in a short row: report it before the job starts.
        self._parse(last, self.size_bytes, 1)

    def read(self, start: int, end: int) -> list[Record]:
        columns = self.columns
        return [dict(zip(columns, row, strict=True)) for row in self._range(start, end)]

    def check(self, start: int, end: int) -> list[DataError]:
        try:
            self._range(start, end)
        except DataError as error:
            return [error]
        return []

    def _range(self, start: int, end: int) -> list[list[str]]:
        first, beyond = start // _INDEX_EVERY, -(-end // _INDEX_EVERY)
        offset = self._offsets[first]
        stop = self._offsets[beyond] if beyond < len(self._offsets) else self.size_bytes
        base = first * _INDEX_EVERY
        rows = self._parse(offset, stop, min(beyond * _INDEX_EVERY, self.records) - base)
        return rows[start - base : end - base]

    def _parse(self, offset: int, stop: int, expected: int) -> list[list[str]]:
        """The rows in bytes offset..stop, each checked for its number of columns."""
        rows = self._rows(self._handle.pread(stop - offset, offset), offset)
        if len(rows) != expected:
            what = f"found {len(rows)} rows, expected {expected}"
            raise self._handle.wrong(what, offset, "If quotes are ordinary characters in it, use quoting=none.")
        wanted = len(self.columns)
        for number, row in enumerate(rows):
            if len(row) != wanted:
                what = f"row {number} from here has {len(row)} columns, the header has {wanted}: truncated or corrupt"
                raise self._handle.wrong(what, offset, "Copy or write the file again, or set delimiter=.")
        return rows

    def _rows(self, data: bytes, offset: int) -> list[list[str]]:
        try:
            return self._dialect.rows(data.decode())
        except UnicodeDecodeError as error:
            raise self._handle.wrong("it is not UTF-8 text", offset + error.start, "Convert it to UTF-8.") from error
        except csv.Error as error:
            raise self._handle.wrong(
                f"the rows here cannot be parsed ({error})", offset, "Correct the quoting."
            ) from error

    def _header(self) -> tuple[str, ...]:
        begin = len(_BOM) if self._handle.pread(3, 0) == _BOM else 0
        rows = self._rows(self._handle.pread(self._header_end - begin, begin), 0)
        names = tuple(rows[0])
        if len(set(names)) != len(names):
            raise self._handle.wrong("the header row has a column name twice", 0, "Rename one of them.")
        return names

    def _scan(self) -> tuple[array[int], int, int]:
        """Offsets of every 64th record, their number, and the offset of the last one."""
        offsets, records = array("q"), 0
        header_wanted = not self._dialect.columns
        self._header_end = 0
        quotes_before, last_quote, row_start, last_start, at = 0, 0, 0, 0, 0
        while at < self.size_bytes:
            window = np.frombuffer(self._handle.pread(_SCAN_BYTES, at), dtype=np.uint8)
            breaks = np.flatnonzero(window == _NEWLINE)
            if self._dialect.quoted:
                quotes = np.flatnonzero(window == _QUOTE)
                # A line break ends a row when the quotes before it are balanced; a doubled quote counts twice.
                breaks = breaks[(np.searchsorted(quotes, breaks) + quotes_before) % 2 == 0]
                quotes_before += len(quotes)
                last_quote = at + int(quotes[-1]) if len(quotes) else last_quote
            ends = breaks + (at + 1)
            at += len(window)
            if at >= self.size_bytes and (not len(ends) or ends[-1] < self.size_bytes):
                ends = np.append(ends, self.size_bytes)
                if quotes_before % 2:
                    what = "the quote here is not closed: truncated or corrupt"
                    remedy = "Copy it again; if quotes are ordinary characters, use quoting=none."
                    raise self._handle.wrong(what, last_quote, remedy)
            if not len(ends):
                continue
            starts = np.concatenate(([row_start], ends[:-1]))
            starts, row_start = self._without_blank(starts, ends), int(ends[-1])
            if header_wanted and len(starts):
                self._header_end = int(ends[ends > starts[0]][0])
                starts, header_wanted = starts[1:], False
            if len(starts):
                offsets.extend(starts[(-records) % _INDEX_EVERY :: _INDEX_EVERY].tolist())
                records += len(starts)
                last_start = int(starts[-1])
        if header_wanted:
            raise self._handle.wrong("it has no header row", 0, "Write one, or name the columns: columns=a,b,c.")
        return offsets, records, last_start

    def _without_blank(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Row starts without those of blank lines, which the parser also skips."""
        short = np.flatnonzero(ends - starts <= 2)
        blank = [
            i for i in short.tolist() if not self._handle.pread(int(ends[i] - starts[i]), int(starts[i])).strip(b"\r\n")
        ]
        return np.delete(starts, blank)
