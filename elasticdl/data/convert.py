"""Converting data sets between formats, record by record, into a folder that appears when it is complete."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.data.columns import Columns, Row, infer, parse_columns, row_of, to_example, to_row
from elasticdl.data.dataset import Dataset
from elasticdl.data.files import FilesReader, Record
from elasticdl.data.order import EpochOrder
from elasticdl.data.output import OutputFolder, RecordWriter
from elasticdl.data.parquet import import_pyarrow
from elasticdl.data.ranges import RangeReader
from elasticdl.data.reader import open_reader
from elasticdl.data.recordio import RecordIOWriter
from elasticdl.data.tfrecord import TFRecordWriter
from elasticdl.errors import DataError, Problem, UsageError

TARGETS = ("recordio", "tfrecord", "csv", "parquet")

_BATCH = 1024
_SAMPLE = 1000  # records from which the kinds of the columns are inferred
_ROW_GROUP = 8192
_SHUFFLE_WINDOW = 65536


@dataclass(frozen=True)
class Conversion:
    """What to convert to, and how."""

    to: str
    records_per_file: int = 0  # 0: one file for each source file
    compressor: str = "snappy"  # RecordIO only
    columns: str = ""  # name:kind,…; empty: all, with inferred kinds
    shuffle_seed: int | None = None
    params: Mapping[str, str] | None = None  # of the source's reader


def convert(
    source: str,
    target: Path,
    how: Conversion,
    *,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Converts a data set and describes the result; calls progress(records written, records in all)."""
    _check_apart(source, target)
    reader = open_reader(source, how.params or {}, flag="SRC")
    dataset = reader.describe()
    folder = OutputFolder(target, force)
    encode = _encoder(reader, dataset, how)
    records = _in_order(reader, dataset, how.shuffle_seed)
    sizes = _file_sizes(dataset, how)
    written = 0
    with folder as place:
        for number, size in enumerate(sizes):
            with _writer(place / f"data-{number:05d}.{how.to}", how, encode.columns) as writer:
                for _ in range(size):
                    writer.write(encode(next(records)))
                    written += 1
                    if progress and (written % _BATCH == 0 or written == dataset.records):
                        progress(written, dataset.records)
        result = open_reader(str(place), {"format": how.to}).describe()
    reader.close()
    return Dataset(str(target), result.format, result.files)


def _check_apart(source: str, target: Path) -> None:
    here, there = Path(source).resolve(), target.resolve()
    if here == there or here in there.parents or there in here.parents:
        what = "source and target overlap"
        raise UsageError([Problem("DST", str(target), what, "Write to a directory outside the source.")])


def _file_sizes(dataset: Dataset, how: Conversion) -> list[int]:
    if not how.records_per_file:
        return [file.records for file in dataset.files if file.records]
    full, rest = divmod(dataset.records, how.records_per_file)
    return [how.records_per_file] * full + ([rest] if rest else [])


def _in_order(reader: FilesReader, dataset: Dataset, seed: int | None) -> Iterator[Record]:
    counts = [file.records for file in dataset.files]
    order = EpochOrder(counts, seed or 0, 0, block=1, window=_SHUFFLE_WINDOW, shuffle=seed is not None)
    ranges = RangeReader(reader, dataset, order)
    for start in range(0, dataset.records, _BATCH):
        yield from ranges.read(start, min(start + _BATCH, dataset.records))


class _Encoder:
    """Converts records of the source to what the target's writer needs."""

    def __init__(self, columns: Columns, to: str, class_numbers: Mapping[str, int], copies: bool) -> None:
        self.columns, self._to, self._class_numbers, self._copies = columns, to, class_numbers, copies

    def __call__(self, record: Record) -> Any:
        if self._copies:
            return record
        row = row_of(record, self._class_numbers)
        if self._to in ("recordio", "tfrecord"):
            return to_example(row, self.columns)
        return to_row(row, self.columns, flat=self._to == "csv")


def _encoder(reader: FilesReader, dataset: Dataset, how: Conversion) -> _Encoder:
    chosen = parse_columns(how.columns)
    class_names = reader.metadata.get("class_names", [])
    class_numbers = {name: number for number, name in enumerate(class_names)}  # type: ignore[arg-type, var-annotated]
    if dataset.format == "images" and how.to == "csv":
        raise UsageError(
            [Problem("--to", how.to, "a CSV file cannot hold images", "Use recordio, tfrecord or parquet.")]
        )
    if dataset.format in ("recordio", "tfrecord") and how.to in ("recordio", "tfrecord") and not chosen:
        return _Encoder({}, how.to, {}, copies=True)
    sample: list[Row] = []
    for file in dataset.files:
        wanted = min(file.records, _SAMPLE - len(sample))
        sample += [row_of(record, class_numbers) for record in reader.read(file.name, 0, wanted)]
    found = infer(sample)
    unknown = [name for name in chosen if name not in found]
    if unknown:
        what = f"the data has no column {', '.join(unknown)}"
        raise UsageError([Problem("--example_columns", how.columns, what, f"It has: {', '.join(found)}.")])
    return _Encoder(chosen or found, how.to, class_numbers, copies=False)


def _writer(path: Path, how: Conversion, columns: Columns) -> RecordWriter:
    if how.to == "recordio":
        return RecordIOWriter(path, how.compressor)
    if how.to == "tfrecord":
        return TFRecordWriter(path)
    return CsvWriter(path, list(columns)) if how.to == "csv" else ParquetWriter(path, columns)


class CsvWriter(RecordWriter):
    """Writes rows under a header row."""

    def __init__(self, path: Path, names: list[str]) -> None:
        super().__init__(path)
        self._text = io.StringIO()
        self._csv = csv.DictWriter(self._text, names, lineterminator="\n")
        self._csv.writeheader()

    def write(self, row: Row) -> None:
        # A missing number is an empty field, as readers of CSV expect.
        self._csv.writerow({name: "" if value != value else value for name, value in row.items()})
        self.records += 1
        if self._text.tell() > 1 << 20:
            self._finish()

    def _finish(self) -> None:
        self._file.write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()


class ParquetWriter(RecordWriter):
    """Writes rows in groups small enough to read a range from, each page with a checksum."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self._arrow = import_pyarrow()
        super().__init__(path)
        self._columns = columns
        self._rows: list[Row] = []
        self._parquet: Any = None

    def write(self, row: Row) -> None:
        self._rows.append(row)
        self.records += 1
        if len(self._rows) == _ROW_GROUP:
            self._drain()

    def _finish(self) -> None:
        self._drain()
        self._parquet.close()

    def _drain(self) -> None:
        if not self._rows:
            return
        arrow = self._arrow
        if self._parquet is None:
            schema = arrow.schema([(name, self._type(name, kind)) for name, kind in self._columns.items()])
            self._parquet = arrow.parquet.ParquetWriter(self._file, schema, write_page_checksum=True)
        try:
            self._parquet.write_table(arrow.Table.from_pylist(self._rows, schema=self._parquet.schema))
        except arrow.ArrowException as error:
            what = f"a record does not fit the columns of the first ones ({error})"
            raise DataError(str(self.path), what, "Name the columns' kinds: --example_columns=…") from error
        self._rows.clear()

    def _type(self, name: str, kind: str) -> Any:
        arrow = self._arrow
        single = {"int": arrow.int64(), "float": arrow.float64(), "text": arrow.string(), "bytes": arrow.binary()}[kind]
        lists = any(isinstance(row[name], list) for row in self._rows)
        if not lists:
            return single
        return arrow.list_(arrow.float32() if kind == "float" else single)
