"""Named columns and their kinds: how rows become tf.train.Example records, and how those become rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np

from elasticdl.data.example import decode_example, encode_example
from elasticdl.data.files import Record
from elasticdl.errors import DataError, Problem, UsageError

Kind: TypeAlias = Literal["int", "float", "text", "bytes"]
Columns: TypeAlias = dict[str, Kind]
Row: TypeAlias = dict[str, object]

KINDS: tuple[Kind, ...] = ("int", "float", "text", "bytes")


def parse_columns(text: str) -> Columns:
    """`label:int,price:float,name:text,image:bytes` as columns."""
    found: Columns = {}
    problems = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, kind = part.rpartition(":")
        if not name or kind not in KINDS:
            remedy = f"Write name:kind, where kind is one of {', '.join(KINDS)}."
            problems.append(Problem("--example_columns", part, "is not a column and its kind", remedy))
        else:
            found[name] = kind
    if problems:
        raise UsageError(problems)
    return found


def row_of(record: Record, class_numbers: Mapping[str, int]) -> Row:
    """Any record as a row: Examples decoded, images as (image, label, class_name)."""
    if isinstance(record, bytes):
        return dict(decode_example(record))
    if isinstance(record, tuple):
        image, class_name = record
        return {"image": image, "label": class_numbers[class_name], "class_name": class_name}
    return record


def infer(rows: Sequence[Row]) -> Columns:
    """The kind of every column that fits all these rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: _kind([row.get(name) for row in rows]) for name in names}


def _kind(values: Sequence[object]) -> Kind:
    kinds = {_kind_of(value) for value in values}
    kinds.discard("missing")
    missing = len(kinds) < len({_kind_of(value) for value in values})
    if kinds == {"int"} and not missing:
        return "int"
    if kinds and kinds <= {"int", "float"}:
        return "float"  # a missing number becomes NaN
    return "bytes" if "bytes" in kinds else "text"


def _kind_of(value: object) -> Kind | Literal["missing"]:
    if value is None or (isinstance(value, str | bytes) and not value):
        return "missing"
    if isinstance(value, str):
        return _kind_of_text(value)
    if isinstance(value, bytes):
        return "text" if _is_text(value) else "bytes"
    array = np.asarray(value)
    if array.dtype == np.uint8 and array.ndim:  # the bytes of an Example
        return "text" if _is_text(array.tobytes()) else "bytes"
    if array.dtype.kind in "biu":
        return "int"
    return "float" if array.dtype.kind == "f" else "text"


def _kind_of_text(value: str) -> Kind:
    try:
        number = int(value)
    except ValueError:
        pass
    else:
        # "007", "1_000" and what a 64-bit integer cannot hold are names, not numbers
        return "int" if str(number) == value.lstrip("+") and -(2**63) <= number < 2**63 else "text"
    try:
        float(value)
    except ValueError:
        return "text"
    return "float" if "_" not in value else "text"


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().isprintable()
    except UnicodeDecodeError:
        return False


def to_example(row: Row, columns: Columns) -> bytes:
    """A row as an Example record."""
    return encode_example({name: _converted(row, name, kind) for name, kind in columns.items()})  # type: ignore[misc]


def to_row(row: Row, columns: Columns, flat: bool) -> Row:
    """A row with values of the columns' kinds; `flat`: for CSV, where several numbers share one field."""
    converted: Row = {}
    for name, kind in columns.items():
        value = _converted(row, name, kind)
        if isinstance(value, np.ndarray):
            value = [_shortest(item) for item in value]
        if flat and kind == "bytes" and isinstance(value, bytes):
            value = list(value)
        if flat and isinstance(value, list):
            value = " ".join(map(str, value))
        converted[name] = value
    return converted


def _converted(row: Row, name: str, kind: Kind) -> object:
    if name not in row:
        raise DataError("a record", f"it has no column {name!r} (it has: {', '.join(row)})", "Choose other columns.")
    value = row[name]
    try:
        if kind == "int":
            return int(value) if isinstance(value, str) else _numbers(value, np.int64)
        if kind == "float":
            missing = value is None or (isinstance(value, str) and not value)
            return float("nan") if missing else float(value) if isinstance(value, str) else _numbers(value, np.float32)
        data = _data(value)
        return data.decode() if kind == "text" else data
    except (ValueError, TypeError, OverflowError) as error:
        what = f"the value {value!r:.60} of column {name!r} is not of kind {kind}"
        remedy = f"Name its kind: --example_columns={name}:text or another of {', '.join(KINDS)}."
        raise DataError("a record", what, remedy) from error


def _numbers(value: object, dtype: type[np.generic]) -> object:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or (dtype is np.int64 and array.dtype.kind == "f"):
        raise TypeError(f"{array.dtype} is not a number of this kind")
    # Python numbers keep their precision where the format can hold it; arrays take the type an Example has.
    return array.astype(dtype) if array.ndim else _shortest(array.reshape(-1)[0])


def _shortest(number: np.generic) -> object:
    """A Python number; 0.1 of 32 bits becomes 0.1, not 0.10000000149011612, and converts back to the same 32 bits."""
    return float(str(number)) if number.dtype == np.float32 else number.item()


def _data(value: object) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return value.tobytes()
    return str(value).encode()
