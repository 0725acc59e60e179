"""TFRecord files: length, its masked CRC-32C, the record, its masked CRC-32C, one record after the other."""

from __future__ import annotations

import struct
from array import array
from pathlib import Path

import google_crc32c

from elasticdl.data.files import Handle, Record, RecordFile
from elasticdl.data.output import RecordWriter

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_OVERHEAD = _HEADER.size + _FOOTER.size
_INDEX_EVERY = 64  # records between two indexed offsets
_SCAN_BYTES = 4 * 1024 * 1024


def masked_crc(data: bytes | memoryview) -> int:
    """CRC-32C rotated right by 15 bits plus a constant, as the format stores it."""
    crc: int = google_crc32c.value(bytes(data))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def looks_like_tfrecord(head: bytes) -> bool:
    return len(head) >= _HEADER.size and masked_crc(head[:8]) == _HEADER.unpack_from(head)[1]


class TFRecordWriter(RecordWriter):
    """Writes one TFRecord file: under a temporary name, renamed when complete, removed when the block fails."""

    def write(self, record: bytes) -> None:
        length = struct.pack("<Q", len(record))
        self._file.write(length + _FOOTER.pack(masked_crc(length)) + record + _FOOTER.pack(masked_crc(record)))
        self.records += 1


class TFRecordFile(RecordFile):
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
            begin = position + _HEADER.size
            length = self._length(data, position, offset)
            after = begin + length + _FOOTER.size
            if after > len(data):
                raise self._handle.wrong("the file changed while it was read", offset + position)
            if number >= start:
                record = data[begin : begin + length]
                if masked_crc(record) != _FOOTER.unpack_from(data, begin + length)[0]:
                    raise self._handle.wrong("the checksum of this record is wrong", offset + position)
                found.append(record)
            position = after
        return found

    def _index(self) -> tuple[array[int], int]:
        """Offsets of every 64th record, and their number."""
        offsets, records, offset = array("q"), 0, 0
        base, window = 0, b""
        while offset < self.size_bytes:
            if offset + _HEADER.size > base + len(window):
                base, window = offset, self._handle.pread(_SCAN_BYTES, offset)
            after = offset + self._length(window, offset - base, base) + _OVERHEAD
            if after > self.size_bytes:
                short = after - self.size_bytes
                raise self._handle.wrong(f"the file is truncated: this record ends {short} bytes after its end", offset)
            if records % _INDEX_EVERY == 0:
                offsets.append(offset)
            records += 1
            offset = after
        return offsets, records

    def _length(self, data: bytes, position: int, base: int) -> int:
        """The length of the record whose header is at this position of the data, which start at byte `base`."""
        if position + _HEADER.size > len(data):
            raise self._handle.wrong("the file is truncated inside the header of a record", base + position)
        length: int
        length, checksum = _HEADER.unpack_from(data, position)
        if masked_crc(data[position : position + 8]) != checksum:
            what = "corrupt, or not a TFRecord file: the checksum of the length here is wrong"
            raise self._handle.wrong(what, base + position)
        return length
