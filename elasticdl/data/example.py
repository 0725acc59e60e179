"""tf.train.Example messages without TensorFlow: the wire format written and read by hand, whole batches at once.

Example   = 1: Features             Feature = one of 1: BytesList, 2: FloatList, 3: Int64List
Features  = 1: map<string, Feature> each list holds its values in field 1 (numbers packed, or one by one)

A feature of bytes becomes an array of uint8, floats become float32, integers int64. One number is a scalar (an array
without dimensions), so that `decode_examples` gives labels of shape (batch,); several numbers have their length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticdl.data.example_batch import ragged, stack_alike
from elasticdl.data.example_wire import BadExample, layout, read_varint
from elasticdl.errors import DataError

Array: TypeAlias = npt.NDArray[Any]
Value: TypeAlias = bytes | str | int | float | Array | Sequence[Any]

_REMEDY = "Check that the data holds tf.train.Example records, and run `elasticdl data verify` on it."


def encode_example(features: Mapping[str, Value]) -> bytes:
    """One Example message with its features in the given order; batches decode faster if all records have one order."""
    entries = []
    for name, value in features.items():
        entry = _field(1, name.encode()) + _field(2, _feature(name, value))
        entries.append(_field(1, entry))
    return _field(1, b"".join(entries))


def decode_example(record: bytes) -> dict[str, Array]:
    """The features of one record."""
    try:
        spans = layout(record)
        return {name: _value(record, span.kind, span.values) for name, span in spans.items()}
    except BadExample as error:
        raise DataError("a record", f"it is not a tf.train.Example ({error})", _REMEDY, error.offset) from error


def decode_examples(records: Sequence[bytes]) -> dict[str, Array]:
    """The features of many records, stacked: the first dimension is the batch.

    A feature whose shape differs between records becomes an array of objects, one array per record.
    """
    if not records:
        return {}
    try:
        stacked = stack_alike(records)
    except BadExample:
        stacked = None  # the first record is malformed: reported below, with its number
    if stacked is not None:
        return stacked
    decoded = []
    for number, record in enumerate(records):
        try:
            decoded.append(decode_example(record))
        except DataError as error:
            raise DataError(f"record {number} of the batch", error.what, error.remedy, error.offset) from error
    names = decoded[0].keys()
    for number, features in enumerate(decoded):
        if features.keys() != names:
            odd = ", ".join(sorted(features.keys() ^ names))
            what = f"its features are not those of the batch's first record ({odd})"
            raise DataError(f"record {number} of the batch", what, "Give all records the same features.")
    return {name: _stack(name, [features[name] for features in decoded]) for name in names}


def _stack(name: str, values: list[Array]) -> Array:
    first = values[0]
    if any(value.dtype != first.dtype for value in values):
        what = f"the feature {name!r} has values of different types in one batch"
        raise DataError("a batch of records", what, "Give the feature one type in all records.")
    if all(value.shape == first.shape for value in values) and first.dtype != object:
        return np.stack(values)
    return ragged(values)


def _value(record: bytes, kind: int, values: list[tuple[int, int]]) -> Array:
    """A feature's values as an array; `values` are the byte ranges that hold them."""
    if kind == 1:
        parts = [np.frombuffer(record, np.uint8, end - start, start).copy() for start, end in values]
        if len(parts) == 1:
            return parts[0]
        if parts and all(len(part) == len(parts[0]) for part in parts):
            return np.stack(parts)
        several = np.empty(len(parts), dtype=object)
        several[:] = parts
        return several
    if kind == 2:
        floats = np.frombuffer(b"".join(record[start:end] for start, end in values), "<f4").astype(np.float32)
        return floats.reshape(()) if len(floats) == 1 else floats
    numbers = []
    for start, end in values:
        while start < end:
            number, start = read_varint(record, start, end)
            numbers.append(number - (1 << 64) if number >> 63 else number)
    integers = np.array(numbers, dtype=np.int64)
    return integers.reshape(()) if len(integers) == 1 else integers


def _feature(name: str, value: Value) -> bytes:
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return _field(1, _field(1, value))
    if isinstance(value, list | tuple) and value and all(isinstance(item, bytes | str) for item in value):
        items = [item.encode() if isinstance(item, str) else item for item in value]
        return _field(1, b"".join(_field(1, item) for item in items))
    array = np.asarray(value)
    if array.dtype == np.uint8:
        return _field(1, _field(1, array.tobytes()))
    flat = array.reshape(-1)
    if array.dtype.kind == "f":
        return _field(2, _field(1, flat.astype("<f4").tobytes()))
    if array.dtype.kind in "biu":
        if array.dtype.kind == "u" and flat.size and int(flat.max()) >> 63:
            raise ValueError(f"feature {name!r}: {int(flat.max())} does not fit into 64 bits with a sign")
        return _field(3, _field(1, b"".join(_varint(int(item) & (1 << 64) - 1) for item in flat)))
    raise TypeError(f"feature {name!r}: an Example holds bytes, floats and integers, not {array.dtype}")


def _field(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
