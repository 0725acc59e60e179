"""Decoding many Example messages at once: all records are walked in step, feature by feature, with numpy.

Records of one data set seldom differ in their structure: the first record is parsed and gives the order of the
features; the others follow it, each with its own cursor, because lengths may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from elasticdl.data.example_wire import BYTES, FLOATS, fields

Array: TypeAlias = npt.NDArray[Any]

_ENTRY, _VALUE = 0x0A, 0x12  # tags: field 1 and field 2, both with a length


@dataclass(frozen=True)
class _Feature:
    """One feature as the first record has it."""

    name: bytes
    kind: int
    header: bytes  # everything from the start of the map entry to the values


def stack_alike(records: Sequence[bytes]) -> dict[str, Array] | None:
    """The features of all records, stacked; None if the records differ in structure or are malformed."""
    features = _structure(records[0])
    if features is None:
        return None
    walk = _Walk(records, max((len(feature.header) for feature in features), default=0))
    if not walk.enters():
        return None
    stacked = {}
    for feature in features:
        sizes = walk.skip(feature)
        value = None if sizes is None else walk.take(feature.kind, sizes)
        if value is None:
            return None
        stacked[feature.name.decode()] = value
    return stacked if walk.at_end() else None


def _structure(record: bytes) -> list[_Feature] | None:
    """The features of a record in their order; None if it has anything that writers of Examples do not write."""
    top = fields(record, 0, len(record))
    if len(top) != 1 or top[0][:2] != (1, 2):
        return None
    found = []
    position = top[0][2]
    for number, wire, start, end in fields(record, *top[0][2:]):
        entry = fields(record, start, end)
        if (number, wire) != (1, 2) or [part[:2] for part in entry] != [(1, 2), (2, 2)]:
            return None
        lists = fields(record, *entry[1][2:])
        if len(lists) != 1 or lists[0][0] not in (1, 2, 3) or lists[0][1] != 2:
            return None
        values = fields(record, *lists[0][2:])
        if len(values) != 1 or values[0][:2] != (1, 2):
            return None
        name = record[entry[0][2] : entry[0][3]]
        found.append(_Feature(name, lists[0][0], record[position : values[0][2]]))
        position = end
    distinct = len({feature.name for feature in found}) == len(found)
    return found if distinct and all(_is_text(feature.name) for feature in found) else None


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Walk:
    """A cursor in each record; every method moves all cursors, or reports that the records differ in structure."""

    def __init__(self, records: Sequence[bytes], longest_header: int) -> None:
        lengths = np.fromiter(map(len, records), dtype=np.int64, count=len(records))
        # Room behind the last record, so that a header can be compared past the record's end.
        self._bytes = np.frombuffer(b"".join((*records, bytes(longest_header + 16))), dtype=np.uint8)
        self._ends: Array = np.cumsum(lengths)
        self._at: Array = self._ends - lengths

    def enters(self) -> bool:
        """Over the header of the whole message."""
        tagged, sizes = self._tag(_ENTRY), self._length()
        return tagged and bool((self._at + sizes == self._ends).all())

    def at_end(self) -> bool:
        return bool((self._at == self._ends).all())

    def skip(self, feature: _Feature) -> Array | None:
        """Over a feature's header; the number of bytes of its values in each record."""
        header = np.frombuffer(feature.header, dtype=np.uint8)
        if (self._rows(len(header)) == header).all():
            self._at = self._at + len(header)
            size = _last_varint(feature.header)
            sizes = np.full(len(self._at), size, dtype=np.int64)
        else:
            found = self._skip_part_by_part(feature)
            if found is None:
                return None
            sizes = found
        return sizes if (self._at + sizes <= self._ends).all() else None

    def _skip_part_by_part(self, feature: _Feature) -> Array | None:
        ends: list[Array] = []
        for tag in (_ENTRY, _ENTRY, _VALUE, feature.kind << 3 | 2, _ENTRY):
            if not self._tag(tag):
                return None
            sizes = self._length()
            if len(ends) == 1:  # the name: it must be the same in all records
                if (sizes != len(feature.name)).any() or (self._rows(len(feature.name)) != _array(feature.name)).any():
                    return None
                self._at = self._at + len(feature.name)
            ends.append(self._at + sizes)
        # Entry, value and list all end where the values do.
        return sizes if all((ends[-1] == end).all() for end in (ends[0], *ends[2:4])) else None

    def take(self, kind: int, sizes: Array) -> Array | None:
        """The values at the cursors as one array; as an array of objects where their number differs."""
        start, self._at = self._at, self._at + sizes
        size = int(sizes[0])
        even = bool((sizes == size).all())
        if kind == BYTES:
            if even:
                return self._rows(size, start)
            return ragged([self._bytes[a : a + n] for a, n in zip(start.tolist(), sizes.tolist(), strict=True)])
        if not sizes.all():
            return None
        if kind == FLOATS:
            if (sizes % 4).any():
                return None
            if even:
                return _squeezed(
                    np.ascontiguousarray(self._rows(size, start)).view("<f4").astype(np.float32, copy=False)
                )
        data = self._bytes[_spread(start, sizes)] if not even else self._rows(size, start).reshape(-1)
        if kind == FLOATS:
            return _split(data.view("<f4").astype(np.float32, copy=False), sizes // 4)
        return _integers(data, sizes)

    def _tag(self, tag: int) -> bool:
        fits = bool((self._bytes[self._at] == tag).all())
        self._at = self._at + 1
        return fits

    def _length(self) -> Array:
        """The length at each cursor; a length of more than four bytes comes out too large and fails the next check."""
        value = np.zeros(len(self._at), dtype=np.int64)
        going = np.ones(len(self._at), dtype=bool)
        for shift in (0, 7, 14, 21):
            byte = self._bytes[np.minimum(self._at, len(self._bytes) - 1)].astype(np.int64)
            value += np.where(going, (byte & 0x7F) << shift, 0)
            self._at = self._at + going
            going &= byte >= 0x80
            if not going.any():
                return value
        return value + (going.astype(np.int64) << 40)

    def _rows(self, size: int, start: Array | None = None) -> Array:
        """`size` bytes from each cursor, one row per record."""
        last = len(self._bytes) - size
        windows = as_strided(self._bytes, shape=(last + 1, size), strides=(1, 1), writeable=False)
        rows: Array = windows[np.minimum(self._at if start is None else start, last)]
        return rows


def _array(data: bytes) -> Array:
    return np.frombuffer(data, dtype=np.uint8)


def _last_varint(header: bytes) -> int:
    """The number that a header ends with: the size of the values behind it."""
    position = len(header) - 1
    while header[position - 1] & 0x80:
        position -= 1
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(header[position:]))


def _spread(start: Array, sizes: Array) -> Array:
    """The places of all bytes of the ranges start..start + sizes."""
    before = np.cumsum(sizes) - sizes
    places: Array = np.arange(int(sizes.sum())) + np.repeat(start - before, sizes)
    return places


def _integers(data: Array, sizes: Array) -> Array | None:
    """Packed varints of all records, one after the other, as int64."""
    last = data < 0x80
    borders = np.cumsum(sizes) - 1
    if not last[borders].all():
        return None
    ends = np.flatnonzero(last)
    if len(ends) == len(data):
        return _split(data.astype(np.int64), sizes)
    starts = np.concatenate(([0], ends[:-1] + 1))
    widths = ends - starts + 1
    if widths.max() > 10:
        return None
    shifts = 7 * (np.arange(len(data)) - np.repeat(starts, widths))
    values = np.add.reduceat((data & 0x7F).astype(np.uint64) << shifts.astype(np.uint64), starts).view(np.int64)
    return _split(values, np.diff(np.searchsorted(ends, borders), prepend=-1))


def _split(values: Array, counts: Array) -> Array:
    """Values of all records, one after the other, as one row per record."""
    if (counts == counts[0]).all():
        return _squeezed(values.reshape(len(counts), int(counts[0])))
    return ragged([v.reshape(()) if len(v) == 1 else v for v in np.split(values, np.cumsum(counts)[:-1])])


def _squeezed(rows: Array) -> Array:
    return rows[:, 0] if rows.shape[1] == 1 else rows


def ragged(values: list[Array]) -> Array:
    """An array of objects, one for each record."""
    found = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        found[number] = value
    return found
