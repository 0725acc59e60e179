"""Safetensors files written piece by piece, so that a table larger than memory can be exported.

The format: eight bytes with the length of a JSON header, the header (name: dtype, shape, data_offsets), the raw values.
Several files have an index in the format of model hubs: `weight_map` maps each tensor to its file. A tensor larger than
a file is cut along its first axis; its parts are called `name@first_row`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_KINDS = {"f": "F", "i": "I", "u": "U", "c": "C"}
_COPY_BYTES = 1 << 22


@dataclass(frozen=True)
class Tensor:
    """A tensor whose values are read while it is written: `read(start, stop)` gives its rows in chunks."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    read: Callable[[int, int], Iterable[Array]]
    first: int = 0  # the first row of a part

    @classmethod
    def of(cls, name: str, array: Array) -> Tensor:
        array = np.asarray(array, order="C")

        def read(start: int, stop: int) -> Iterator[Array]:
            yield array if array.ndim == 0 else array[start:stop]

        return cls(name, array.dtype, array.shape, read)

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def cut(self, limit_bytes: int) -> list[Tensor]:
        """Parts of at most this many bytes, but at least one row."""
        if self.bytes <= limit_bytes or self.rows <= 1:
            return [self]
        step = max(1, limit_bytes // (self.bytes // self.rows))
        return [
            replace(
                self, name=f"{self.name}@{start}", shape=(min(step, self.rows - start), *self.shape[1:]), first=start
            )
            for start in range(0, self.rows, step)
        ]

    def chunks(self) -> Iterable[Array]:
        return self.read(self.first, self.first + self.rows)


def write(path: Path, tensors: Iterable[Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write one file; a tensor whose chunks do not add up to its shape is an error."""
    # The widest types first, so that every tensor starts at a multiple of its width.
    ordered = sorted(tensors, key=lambda t: (-t.dtype.itemsize, t.name))
    with path.open("wb") as f:
        f.write(_header([(t.name, t.dtype, t.shape) for t in ordered], metadata))
        for tensor in ordered:
            written = sum(_put(f, chunk, tensor.dtype) for chunk in tensor.chunks())
            if written != tensor.bytes:
                raise ValueError(f"{tensor.name}: {written} bytes for a shape of {tensor.shape}")


def write_sharded(folder: Path, base: str, tensors: Iterable[Tensor], limit_bytes: int) -> list[str]:
    """Write `base.safetensors`, or an index and files of at most `limit_bytes` of values; returns the names."""
    whole = list(tensors)
    total = sum(t.bytes for t in whole)
    if total <= limit_bytes:
        write(folder / f"{base}.safetensors", whole)
        return [f"{base}.safetensors"]
    shards: list[list[Tensor]] = [[]]
    left = limit_bytes
    for part in (p for t in whole for p in t.cut(limit_bytes)):
        if part.bytes > left and shards[-1]:
            shards.append([])
            left = limit_bytes
        shards[-1].append(part)
        left -= part.bytes
    files = shard_names(base, len(shards))
    for file, shard in zip(files, shards, strict=True):
        write(folder / file, shard)
    where = {t.name: file for file, shard in zip(files, shards, strict=True) for t in shard}
    return [*files, write_index(folder, base, where, {"total_size": total})]


def shard_names(base: str, count: int) -> list[str]:
    return [f"{base}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def write_index(folder: Path, base: str, weight_map: Mapping[str, str], metadata: Mapping[str, Any]) -> str:
    name = f"{base}.safetensors.index.json"
    (folder / name).write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2) + "\n")
    return name


def write_rows(
    folder: Path, base: str, dim: int, chunks: Iterable[tuple[Array, Array]], limit_bytes: int, metadata: dict[str, str]
) -> list[str]:
    """Write `ids` and `rows`, whose number is unknown until the end; numbers follow the names in several files."""
    capacity = max(1, limit_bytes // (8 + 4 * dim))
    shards = [_RowFile(folder / f"{base}.0.partial", dim, capacity, metadata)]
    try:
        for ids, rows in chunks:
            start = 0
            while start < len(ids):
                if shards[-1].count == capacity:
                    shards[-1].finish(len(shards))
                    shards.append(_RowFile(folder / f"{base}.{len(shards)}.partial", dim, capacity, metadata))
                start += shards[-1].add(ids[start:], rows[start:])
        shards[-1].finish(len(shards) if len(shards) > 1 else None)
    finally:
        for shard in shards:
            shard.close()
    files = shard_names(base, len(shards)) if len(shards) > 1 else [f"{base}.safetensors"]
    for shard, file in zip(shards, files, strict=True):
        shard.path.rename(folder / file)
    if len(files) == 1:
        return files
    where = {f"{what}.{n:05d}": file for n, file in enumerate(files, 1) for what in ("ids", "rows")}
    total = sum(shard.count for shard in shards)
    return [*files, write_index(folder, base, where, {"total_size": total * (8 + 4 * dim), "rows": total, **metadata})]


class _RowFile:
    """Ids and rows in one file while their number is unknown: ids get the maximum room, and rows move up at the end."""

    def __init__(self, path: Path, dim: int, capacity: int, metadata: Mapping[str, str]) -> None:
        self.path, self.count = path, 0
        self._dim, self._capacity, self._metadata = dim, capacity, metadata
        self._file = path.open("w+b")
        self._data = len(self._head(capacity, None)) + 16  # room for numbers of any length
        self._rows = self._data + 8 * capacity

    def close(self) -> None:
        self._file.close()

    def add(self, ids: Array, rows: Array) -> int:
        """Add as many rows as fit; returns how many."""
        taken = min(len(ids), self._capacity - self.count)
        self._file.seek(self._data + 8 * self.count)
        _put(self._file, ids[:taken], np.dtype(np.int64))
        self._file.seek(self._rows + 4 * self._dim * self.count)
        _put(self._file, rows[:taken], np.dtype(np.float32))
        self.count += taken
        return taken

    def finish(self, number: int | None) -> None:
        self._close_up()
        self._file.truncate(self._data + (8 + 4 * self._dim) * self.count)
        self._file.seek(0)
        self._file.write(self._head(self.count, number, self._data))
        self.close()

    def _close_up(self) -> None:
        """Move the rows to the end of the ids."""
        source, target = self._rows, self._data + 8 * self.count
        end = self._rows + 4 * self._dim * self.count
        while source < end and source != target:
            self._file.seek(source)
            piece = self._file.read(min(_COPY_BYTES, end - source))
            self._file.seek(target)
            self._file.write(piece)
            source, target = source + len(piece), target + len(piece)

    def _head(self, count: int, number: int | None, size: int = 0) -> bytes:
        suffix = "" if number is None else f".{number:05d}"
        tensors: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = [
            (f"ids{suffix}", np.dtype(np.int64), (count,)),
            (f"rows{suffix}", np.dtype(np.float32), (count, self._dim)),
        ]
        return _header(tensors, self._metadata, size)


def _header(
    tensors: Iterable[tuple[str, np.dtype[Any], tuple[int, ...]]], metadata: Mapping[str, str] | None, size: int = 0
) -> bytes:
    """The bytes before the values, padded to `size` if it is given."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, dtype, shape in tensors:
        end = offset + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": _dtype(dtype), "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(size - 8 if size else -(-len(text) // 8) * 8)
    return struct.pack("<Q", len(text)) + text


def _dtype(dtype: np.dtype[Any]) -> str:
    return "BOOL" if dtype.kind == "b" else f"{_KINDS[dtype.kind]}{8 * dtype.itemsize}"


def _put(file: IO[bytes], values: Array, dtype: np.dtype[Any]) -> int:
    little = np.ascontiguousarray(values, dtype.newbyteorder("<"))
    file.write(little.reshape(-1).view(np.uint8).data if little.size else b"")
    return int(little.nbytes)


def open_all(folder: Path, base: str) -> dict[str, Array]:
    """Every tensor of `base.safetensors`, or of the shards in its index, mapped from disk."""
    index = folder / f"{base}.safetensors.index.json"
    files = [f"{base}.safetensors"]
    if index.exists():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    return {name: array for file in files for name, array in _open(folder / file).items()}


def _open(path: Path) -> dict[str, Array]:
    with path.open("rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
    header.pop("__metadata__", None)
    found: dict[str, Array] = {}
    for name, entry in header.items():
        dtype, shape = _NUMPY[entry["dtype"]], tuple(entry["shape"])
        found[name] = (
            np.memmap(path, dtype, "r", 8 + size + entry["data_offsets"][0], shape)
            if np.prod(shape, dtype=np.int64)
            else np.zeros(shape, dtype)
        )
    return found


_NUMPY = {_dtype(np.dtype(kind)): np.dtype(kind) for kind in ("?", *"bhiqBHIQefdF")}
