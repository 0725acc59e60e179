"""TFRecord files: length, its masked CRC-32C, the record, its masked CRC-32C, one record after the other."""

from __future__ import annotations

import os
import secrets
import struct
from array import array
from pathlib import Path
from types import TracebackType

import google_crc32c

from elasticdl.data.files import Handle, Record
from elasticdl.errors import DataError

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_OVERHEAD = _HEADER.size + _FOOTER.size
_INDEX_EVERY = 64  # records between two remembered offsets
_SCAN_BYTES = 4 * 1024 * 1024
_NEWER_COPY = "Copy or convert the file again, and run `elasticdl data verify` on the copy."


def masked_crc(data: bytes | memoryview) -> int:
    """CRC-32C rotated right by 15 bits plus a constant, as the format stores it."""
    crc: int = google_crc32c.value(bytes(data))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def looks_like_tfrecord(head: bytes) -> bool:
    return len(head) >= _HEADER.size and masked_crc(head[:8]) == _HEADER.unpack_from(head)[1]


class TFRecordWriter:
    """Writes one TFRecord file: under a temporary name, renamed when complete, removed when the block fails."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.records = 0
        self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.part")
        self._file = self._temporary.open("xb")

    def write(self, record: bytes) -> None:
        length = struct.pack("<Q", len(record))
        self._file.write(length + _FOOTER.pack(masked_crc(length)) + record + _FOOTER.pack(masked_crc(record)))
        self.records += 1

    def close(self) -> None:
        if self._file.closed:
            return
        if not self.records:
            self.discard()
            raise DataError(str(self.path), "no record was written to it", "Give it at least one record.")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self.path)

    def discard(self) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class TFRecordFile:
    """One TFRecord file, indexed by walking over its lengths once."""

    def __init__(self, path: Path) -> None:
        self._handle = Handle(path)
        self.size_bytes = self._handle.size_bytes
        self._offsets, self.records = self._index()

    def read(self, start: int, end: int) -> list[Record]:
        first, beyond = start // _INDEX_EVERY, -(-end // _INDEX_EVERY)
        offset = self._offsets[first]
        stop = self._offsets[beyond] if beyond < len(self._offsets) else self.size_bytes
        data = self._handle.pread(stop - offset, offset)
        found: list[Record] = []
        position = 0
        for number in range(first * _INDEX_EVERY, end):
            length, length_crc = _HEADER.unpack_from(data, position)
            begin = position + _HEADER.size
            if masked_crc(data[position : position + 8]) != length_crc:
                raise self._corrupt("the checksum of this record's length is wrong", offset + position)
            if number >= start:
                record = data[begin : begin + length]
                if masked_crc(record) != _FOOTER.unpack_from(data, begin + length)[0]:
                    raise self._corrupt("the checksum of this record is wrong", offset + position)
                found.append(record)
            position = begin + length + _FOOTER.size
        return found

    def _index(self) -> tuple[array[int], int]:
        offsets, records, offset = array("q"), 0, 0
        if not self.size_bytes:
            what = "the file is empty"
            raise DataError(str(self._handle.path), what, "Write it again, or remove it from the data directory.", 0)
        base, window = 0, b""
        unpack = _HEADER.unpack_from
        while offset < self.size_bytes:
            if offset + _HEADER.size > base + len(window):
                base, window = offset, self._handle.pread(_SCAN_BYTES, offset)
                if len(window) < _HEADER.size:
                    raise self._corrupt("the file is truncated inside a record's header", offset)
            length, length_crc = unpack(window, offset - base)
            after = offset + length + _OVERHEAD
            if after > self.size_bytes:
                if masked_crc(window[offset - base : offset - base + 8]) != length_crc:
                    raise self._corrupt("corrupt, or not a TFRecord file: the length here has a wrong checksum", offset)
                short = after - self.size_bytes
                raise self._corrupt(f"the file is truncated: this record ends {short} bytes after its end", offset)
            if records % _INDEX_EVERY == 0:
                offsets.append(offset)
            records += 1
            offset = after
        return offsets, records

    def _corrupt(self, what: str, offset: int) -> DataError:
        return DataError(str(self._handle.path), what, _NEWER_COPY, offset)
