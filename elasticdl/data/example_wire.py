"""The places of each feature's values in an Example message."""

from __future__ import annotations

from dataclasses import dataclass, field

BYTES, FLOATS, INTEGERS = 1, 2, 3  # field numbers of Feature


class BadExample(ValueError):
    """The bytes are not such a message."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what)
        self.offset = offset


@dataclass
class Span:
    """One feature: its kind, and the byte ranges of its values (for numbers: of whole packed runs)."""

    kind: int = 0  # 0: the feature is there, but empty
    values: list[tuple[int, int]] = field(default_factory=list)


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A number and the position behind it."""
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
    raise BadExample("a number does not end", position)


def layout(data: bytes) -> dict[str, Span]:
    """Every feature of an Example by name; the last one of equal names counts, as in any map field."""
    found: dict[str, Span] = {}
    for number, wire, start, end in fields(data, 0, len(data)):
        if number == 1 and wire == 2:
            for inner, kind, entry, entry_end in fields(data, start, end):
                if inner == 1 and kind == 2:
                    name, span = _entry(data, entry, entry_end)
                    found[name] = span
    return found


def _entry(data: bytes, start: int, end: int) -> tuple[str, Span]:
    name, span = "", Span()
    for number, wire, begin, stop in fields(data, start, end):
        if number == 1 and wire == 2:
            try:
                name = data[begin:stop].decode()
            except UnicodeDecodeError as error:
                raise BadExample("the name of a feature is not UTF-8 text", begin) from error
        elif number == 2 and wire == 2:
            for kind, inner, begin_list, end_list in fields(data, begin, stop):
                if kind in (BYTES, FLOATS, INTEGERS) and inner == 2:
                    if span.kind != kind:
                        span = Span(kind)
                    _list(data, kind, begin_list, end_list, span)
    return name, span


def _list(data: bytes, kind: int, start: int, end: int, span: Span) -> None:
    for number, wire, begin, stop in fields(data, start, end):
        if number != 1:
            continue
        one_by_one = {BYTES: 2, FLOATS: 5, INTEGERS: 0}[kind]
        if wire not in (one_by_one, 2):
            raise BadExample(f"a list of kind {kind} holds wire type {wire}", begin)
        if kind == FLOATS and (stop - begin) % 4:
            raise BadExample("a list of floats is not a multiple of four bytes long", begin)
        if kind == INTEGERS and begin < stop and data[stop - 1] & 0x80:
            raise BadExample("a list of integers ends inside a number", stop)
        span.values.append((begin, stop))


def fields(data: bytes, position: int, end: int) -> list[tuple[int, int, int, int]]:
    """The fields in a range: (number, wire type, start and end of the value)."""
    found = []
    while position < end:
        tag, position = read_varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        start = position
        if wire == 2:
            length, start = read_varint(data, position, end)
            position = start + length
        elif wire == 0:
            _, position = read_varint(data, position, end)
        elif wire in (1, 5):
            position += 8 if wire == 1 else 4
        else:
            raise BadExample(f"wire type {wire} does not exist", start)
        if position > end:
            raise BadExample(f"a field of {position - start} bytes has only {end - start} left", start)
        if not number:
            raise BadExample("there is no field 0", start)
        found.append((number, wire, start, position))
    return found
