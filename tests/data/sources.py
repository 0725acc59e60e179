"""Small data sets of every kind that a reader exists for, with the records they must give back."""

from __future__ import annotations

import csv
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from elasticdl.data.custom import CustomReader
from elasticdl.data.reader import Reader, Record, open_reader
from elasticdl.data.recordio import RecordIOWriter
from elasticdl.data.tfrecord import TFRecordWriter

KINDS = ("recordio-none", "recordio-snappy", "recordio-gzip", "csv", "parquet", "tfrecord", "images", "custom")
FILE_KINDS = tuple(kind for kind in KINDS if kind != "custom")
CHECKSUMMED = tuple(kind for kind in FILE_KINDS if kind != "csv")
COUNTS = (150, 1, 70)  # records of the three files


@dataclass
class Source:
    """A data set on disk and what it holds."""

    kind: str
    folder: Path
    expected: dict[str, list[Record]]

    def open(self) -> Reader:
        return CustomReader(Numbers(self.expected)) if self.kind == "custom" else open_reader(str(self.folder))


class Numbers:
    """A user's own reader; its shards start at 1000."""

    metadata = None

    def __init__(self, records: dict[str, list[Record]]) -> None:
        self._records = records

    def create_shards(self) -> dict[str, tuple[int, int]]:
        return {name: (1000, len(records)) for name, records in self._records.items()}

    def read_records(self, task: Any) -> Iterator[Record]:
        yield from self._records[task.shard_name][task.start - 1000 : task.end - 1000]


def build(kind: str, folder: Path) -> Source:
    """Three files of one kind."""
    folder.mkdir(parents=True, exist_ok=True)
    expected: dict[str, list[Record]] = {}
    for file, count in enumerate(COUNTS):
        name, records = _BUILDERS[kind.partition("-")[0]](kind, folder, file, count)
        expected[name] = records
    return Source(kind, folder, expected)


def payload(file: int, number: int) -> bytes:
    """Bytes that say which record they are, of a length that varies."""
    return f"file {file} record {number}: ".encode() + bytes(range(256)) * (number % 3)


def _recordio(kind: str, folder: Path, file: int, count: int) -> tuple[str, list[Record]]:
    records: list[Record] = [payload(file, number) for number in range(count)]
    name = f"data-{file}.recordio"
    with RecordIOWriter(folder / name, kind.partition("-")[2], chunk_bytes=4096) as writer:
        for record in records:
            writer.write(record)  # type: ignore[arg-type]
    return name, records


def _tfrecord(kind: str, folder: Path, file: int, count: int) -> tuple[str, list[Record]]:
    records: list[Record] = [payload(file, number) for number in range(count)]
    name = f"data-{file}.tfrecord"
    with TFRecordWriter(folder / name) as writer:
        for record in records:
            writer.write(record)  # type: ignore[arg-type]
    return name, records


def _csv(kind: str, folder: Path, file: int, count: int) -> tuple[str, list[Record]]:
    rows = [{"id": f"{file}-{n}", "text": f'a "quoted", word\nand a line {n}', "empty": ""} for n in range(count)]
    name = f"data-{file}.csv"
    with (folder / name).open("w", newline="") as out:
        writer = csv.DictWriter(out, ["id", "text", "empty"])
        writer.writeheader()
        writer.writerows(rows)
    return name, list(rows)


def _parquet(kind: str, folder: Path, file: int, count: int) -> tuple[str, list[Record]]:
    rows = [{"id": n, "name": f"{file}-{n}", "share": n / 7, "ids": [n, n + 1]} for n in range(count)]
    name = f"data-{file}.parquet"
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, folder / name, row_group_size=40, write_page_checksum=True)
    return name, list(rows)


def _images(kind: str, folder: Path, file: int, count: int) -> tuple[str, list[Record]]:
    name = ("ant", "bee", "cow")[file]
    (folder / name).mkdir()
    records: list[Record] = []
    for number in range(count):
        image = png(file * 80, number)
        (folder / name / f"{number:03d}.png").write_bytes(image)
        records.append((image, name))
    return name, records


def _custom(kind: str, folder: Path, file: int, count: int) -> tuple[str, list[Record]]:
    return f"shard-{file}", [payload(file, number) for number in range(count)]


_BUILDERS = {
    "recordio": _recordio,
    "tfrecord": _tfrecord,
    "csv": _csv,
    "parquet": _parquet,
    "images": _images,
    "custom": _custom,
}


def png(grey: int, other: int) -> bytes:
    """A real image of two grey pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 2, 1, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((0, grey, other)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
