"""RecordIO version 1: chunks of length-prefixed records behind a header of five little-endian 32-bit numbers.

header = magic 0x01020304, CRC-32 of the compressed bytes, compressor, compressed size, number of records
chunk  = header, then the compressed form of: (length, bytes) for each record
"""

from __future__ import annotations

import gzip
import struct
import threading
import zlib
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import cramjam

from elasticdl.data import snappy
from elasticdl.data.files import Handle, Record, RecordFile
from elasticdl.data.output import RecordWriter

MAGIC = 0x01020304
COMPRESSORS = {"none": 0, "snappy": 1, "gzip": 2}
# Snappy compresses in blocks of 64 KiB anyway, so larger chunks gain nothing and cost random access.
DEFAULT_CHUNK_BYTES = 64 * 1024

_HEADER = struct.Struct("<5I")
_LENGTH = struct.Struct("<I")
_MAX_SPAN_BYTES = 8 * 1024 * 1024
_KEPT_BYTES = 32 * 1024 * 1024


def _gunzip(data: memoryview) -> bytes:
    return bytes(cramjam.gzip.decompress(data))


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=6, mtime=0)  # without a time stamp: equal records make equal files


_COMPRESS: dict[int, Callable[[bytes], bytes]] = {0: bytes, 1: snappy.compress, 2: _gzip}
_DECOMPRESS: dict[int, Callable[[memoryview], bytes | bytearray]] = {0: bytes, 1: snappy.decompress, 2: _gunzip}


class Kept:
    """The chunks that the process unpacked last. Neighbouring ranges often share one, and a small data set fits."""

    def __init__(self, most_bytes: int = _KEPT_BYTES) -> None:
        self._most, self._bytes = most_bytes, 0
        self._chunks: OrderedDict[tuple[object, int], bytes | bytearray] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[object, int]) -> bytes | bytearray | None:
        with self._lock:
            if key in self._chunks:
                self._chunks.move_to_end(key)
            return self._chunks.get(key)

    def put(self, key: tuple[object, int], raw: bytes | bytearray) -> None:
        with self._lock:
            self._bytes += len(raw) - len(self._chunks.pop(key, b""))
            self._chunks[key] = raw
            while self._bytes > self._most and len(self._chunks) > 1:  # keeps a large last one
                self._bytes -= len(self._chunks.popitem(last=False)[1])


_KEPT = Kept()


class RecordIOWriter(RecordWriter):
    """Writes one RecordIO file: under a temporary name, renamed when complete, removed when the block fails."""

    def __init__(self, path: str | Path, compressor: str = "snappy", chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> None:
        if compressor not in COMPRESSORS:
            raise ValueError(f"compressor is one of {', '.join(COMPRESSORS)}, not {compressor!r}")
        super().__init__(path)
        self._compressor, self._chunk_bytes = COMPRESSORS[compressor], chunk_bytes
        self._parts: list[bytes] = []
        self._pending_bytes = 0

    def write(self, record: bytes) -> None:
        if self._parts and self._pending_bytes + len(record) + 4 > self._chunk_bytes:
            self._finish()
        self._parts += (_LENGTH.pack(len(record)), record)
        self._pending_bytes += len(record) + 4
        self.records += 1

    def _finish(self) -> None:
        """Writes the records in memory as one chunk."""
        data = _COMPRESS[self._compressor](b"".join(self._parts))
        count = len(self._parts) // 2
        self._file.write(_HEADER.pack(MAGIC, zlib.crc32(data), self._compressor, len(data), count) + data)
        self._parts.clear()
        self._pending_bytes = 0


class RecordIOFile(RecordFile):
    """One RecordIO file, indexed by its chunk headers."""

    def __init__(self, path: Path) -> None:
        self._handle = Handle(path)
        self.size_bytes = self._handle.size_bytes
        self._offsets, self._ends = _index(self._handle)
        self.records = self._ends[-1]
        self._token = object()  # this file's key in _KEPT

    def read(self, start: int, end: int) -> list[Record]:
        first, last = bisect_right(self._ends, start), bisect_right(self._ends, end - 1)
        found: list[Record] = []
        chunk = first
        while chunk <= last:
            stop = chunk + 1
            while stop <= last and self._offsets[stop + 1] - self._offsets[chunk] <= _MAX_SPAN_BYTES:
                stop += 1
            self._read_span(chunk, stop, start, end, found)
            chunk = stop
        return found

    def _read_span(self, chunk: int, stop: int, start: int, end: int, found: list[Record]) -> None:
        """Appends the wanted records of chunks chunk..stop, read from disk in one go."""
        base = self._offsets[chunk]
        span: memoryview | None = None
        for number in range(chunk, stop):
            before = self._ends[number - 1] if number else 0
            count = self._ends[number] - before
            offset = self._offsets[number]
            raw = _KEPT.get((self._token, number))
            if raw is None:
                if span is None:
                    span = memoryview(self._handle.pread(self._offsets[stop] - base, base))
                raw = self._unpack(span[offset - base : self._offsets[number + 1] - base], offset)
                _KEPT.put((self._token, number), raw)
            low, high = max(start - before, 0), min(end - before, count)
            records = split_records(raw, count, low, high)
            if records is None:
                raise self._handle.wrong("its record lengths do not add up", offset)
            found += records

    def _unpack(self, chunk: memoryview, offset: int) -> bytes | bytearray:
        if len(chunk) < _HEADER.size:
            raise self._handle.wrong("the file was truncated while it was read", offset)
        _, checksum, compressor, size, _ = _HEADER.unpack_from(chunk)
        data = chunk[_HEADER.size :]
        if len(data) != size:
            raise self._handle.wrong("the file changed while it was read", offset)
        if zlib.crc32(data) != checksum:
            raise self._handle.wrong("the checksum of this chunk is wrong", offset)
        try:
            return _DECOMPRESS[compressor](data)
        except (cramjam.DecompressionError, ValueError) as error:
            raise self._handle.wrong(f"this chunk cannot be decompressed ({error})", offset) from error


def split_records(raw: bytes | bytearray, count: int, start: int, end: int) -> list[bytes] | None:
    """Records start..end of a chunk's `count`; None when the lengths contradict the chunk's size."""
    if len(raw) < 4 * count or not count:
        return None
    (length,) = _LENGTH.unpack_from(raw)
    if (length + 4) * count == len(raw):
        # Four slices, each with one byte of every length prefix: equal lengths without a loop in Python.
        stride = length + 4
        if all(raw[place::stride][:count] == raw[place : place + 1] * count for place in range(4)):
            rows = memoryview(raw)[start * stride : end * stride]
            return [record for (record,) in struct.iter_unpack(f"4x{length}s", rows)]
    found = []
    position = 0
    unpack = _LENGTH.unpack_from
    raw = bytes(raw)
    try:
        for _ in range(count):
            (length,) = unpack(raw, position)
            position += 4 + length
            found.append(raw[position - length : position])
    except struct.error:
        return None
    return found[start:end] if position == len(raw) else None


def _index(handle: Handle) -> tuple[array[int], array[int]]:
    """Offsets of the chunks (and of the file's end), and the running number of records after each chunk."""
    offsets, ends = array("q"), array("q")
    offset, records, size_bytes = 0, 0, handle.size_bytes
    while offset < size_bytes:
        header = handle.pread(_HEADER.size, offset)
        if len(header) < _HEADER.size:
            what = f"the file is truncated: {len(header)} of the {_HEADER.size} bytes of a chunk header are left"
            raise handle.wrong(what, offset)
        magic, _, compressor, size, count = _HEADER.unpack(header)
        if magic != MAGIC:
            what = f"no chunk starts here (0x{magic:08x} instead of 0x{MAGIC:08x}): corrupt, or not a RecordIO file"
            raise handle.wrong(what, offset)
        if compressor not in _DECOMPRESS or not count:
            what = f"corrupt chunk header (compressor {compressor}, {count} records)"
            raise handle.wrong(what, offset)
        after = offset + _HEADER.size + size
        if after > size_bytes:
            what = f"the file is truncated: this chunk ends {after - size_bytes} bytes after the end of the file"
            raise handle.wrong(what, offset)
        records += count
        offsets.append(offset)
        ends.append(records)
        offset = after
    offsets.append(offset)
    return offsets, ends
