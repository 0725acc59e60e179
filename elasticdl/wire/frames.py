"""Frames of the data plane: a header, then raw little-endian buffers, checked before they are believed.

    request   header of an operation | its parts
    answer    header of an answer | its parts; of Refused and Over: the reason, as UTF-8 text

A header holds MAGIC, the message's code, the request's number and the timeline, then the message's own fields.
A part longer than a frame is sent as several: full ones, then one that is not full, so that both sides of a connection
and its encryption work at once. No frame is ever unpickled. No size from the wire is allocated before it was compared
with what is expected.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

MAGIC = b"EDL2"
FRAME_BYTES = 1 << 20  # no frame is longer
_START = struct.Struct("<4sBQQ")


class BadFrame(ValueError):
    """Bytes that are not what they should be."""


class Message:
    """An operation or an answer. Its fields are on the wire in their order, in the formats that the class names."""

    code: ClassVar[int]
    layout: ClassVar[struct.Struct]

    def __init_subclass__(cls, code: int = 0, fields: str = "") -> None:
        cls.code, cls.layout = code, struct.Struct(_START.format + fields)


class Operation(Message):
    """What a worker asks of a server."""


class Answer(Message):
    """What a server answers."""


@dataclass(frozen=True)
class Greet(Operation, code=1):
    """Parts: the job's token. Nothing else is answered before. Answer: Done."""


@dataclass(frozen=True)
class Declare(Operation, code=2):
    """Parts: JSON of ParametersSpec, initial trainable slice, initial state slice. Answer: Done."""


@dataclass(frozen=True)
class Pull(Operation, code=3, fields="QQ?"):
    """Answer: Done with the trainable slice, the state slice and, if asked for, the optimizer's slots."""

    view: int = 0  # the pinned view to read; 0: the live values
    at_least: int = 0  # of live values: the server answers once it has this version
    slots: bool = False  # of live values


@dataclass(frozen=True)
class Rows(Operation, code=4, fields="HQ?"):
    """Parts: ids. Answer: Done with their rows."""

    table: int
    view: int = 0  # the pinned view to read; 0: the live rows
    create: bool = True  # of live rows: those that do not exist


@dataclass(frozen=True)
class Push(Operation, code=5, fields="IIIIQQd"):
    """Parts: dense gradients, difference of the state, then ids and gradients of each table.

    Answer: Pushed, Resend or Stale.
    """

    epoch: int
    index: int  # of the shard in its epoch
    attempt: int  # of the shard's lease
    batch: int  # of the shard
    computed_on: int = 0  # the version
    records: int = 1  # the gradients are the mean over so many; of none, the batch counts and moves nothing
    rate: float = 0.0  # the learning rate; 0: the optimizer's own

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate < float("inf"):
            raise BadFrame(f"the learning rate {self.rate} is negative or not finite")


@dataclass(frozen=True)
class Confirm(Operation, code=6, fields="II"):
    """In synchronous training: every server has this batch. Answer: Done."""

    epoch: int
    index: int


@dataclass(frozen=True)
class Export(Operation, code=7, fields="HQ"):
    """Answer: Done with ids and their rows, none after the last ones."""

    table: int
    start: int  # the first row


@dataclass(frozen=True)
class Done(Answer, code=129, fields="Q"):
    version: int  # of the server


@dataclass(frozen=True)
class Pushed(Done, code=130, fields="Q?"):
    """The server has the batch, from this push or from an earlier one."""

    unconfirmed: bool = False  # its round waits for Confirm


@dataclass(frozen=True)
class Resend(Answer, code=131, fields="I"):
    """An earlier batch of the lease has to come first."""

    next_batch: int


@dataclass(frozen=True)
class Stale(Answer, code=132, fields="Q"):
    """In synchronous training: the batch was computed on too old a version."""

    version: int  # of the server


@dataclass(frozen=True)
class Refused(Answer, code=133):
    """Asking again does not help."""


@dataclass(frozen=True)
class Over(Answer, code=134):
    """The timeline is over or has not begun here, or this server was not greeted."""


OPERATIONS = {m.code: m for m in (Greet, Declare, Pull, Rows, Push, Confirm, Export)}
ANSWERS = {m.code: m for m in (Done, Pushed, Resend, Stale, Refused, Over)}
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Header(Generic[M]):
    request: int  # its number, which the answer repeats
    timeline: int
    message: M

    def pack(self) -> bytes:
        m = self.message
        return m.layout.pack(MAGIC, m.code, self.request, self.timeline, *vars(m).values())


def read(frame: bytes | memoryview, known: Mapping[int, type[M]]) -> Header[M]:
    """The header of a request (`known`: OPERATIONS) or of an answer (ANSWERS)."""
    if len(frame) < _START.size:
        raise BadFrame(f"the header has {len(frame)} bytes, expected at least {_START.size}")
    if frame[: len(MAGIC)] != MAGIC:
        raise BadFrame(f"the header starts with {bytes(frame[: len(MAGIC)])!r}, expected {MAGIC!r}")
    if (kind := known.get(frame[len(MAGIC)])) is None:
        raise BadFrame(f"the header has the unknown code {frame[len(MAGIC)]}")
    if len(frame) != kind.layout.size:
        raise BadFrame(f"the header of {kind.__name__} has {len(frame)} bytes, expected {kind.layout.size}")
    _, _, request, timeline, *fields = kind.layout.unpack(frame)
    return Header(request, timeline, kind(*fields))


def cut(parts: Iterable[Any]) -> Iterator[Any]:
    """The frames of these parts: bytes or C-contiguous arrays, which must not change before they are sent."""
    for part in parts:
        view = memoryview(part)
        if view.nbytes < FRAME_BYTES:
            yield part
            continue
        flat = view.cast("B")
        for start in range(0, view.nbytes + 1, FRAME_BYTES):
            yield flat[start : start + FRAME_BYTES]


def joined(frames: Sequence[memoryview]) -> list[memoryview]:
    """The parts of these frames; those of one frame without a copy."""
    parts: list[memoryview] = []
    open_: list[memoryview] = []
    for frame in frames:
        if len(frame) == FRAME_BYTES:
            open_.append(frame)
        elif open_:
            whole = np.concatenate([np.frombuffer(f, np.uint8) for f in (*open_, frame)])
            parts.append(whole.data)
            open_ = []
        else:
            parts.append(frame)
    if open_:
        raise BadFrame("the message ends in the middle of a part")
    return parts


def _values(frame: bytes | memoryview, dtype: str) -> npt.NDArray[Any]:
    """The frame as values, without a copy unless it is so small that ZeroMQ keeps it where no alignment holds."""
    found = np.frombuffer(frame, dtype=dtype)
    # numpy calls any empty array aligned, whatever its address.
    return found if found.flags.aligned and len(found) else found.copy()


def floats(frame: bytes | memoryview, count: int, what: str) -> npt.NDArray[np.float32]:
    """The frame as exactly `count` float32 values."""
    if len(frame) != 4 * count:
        raise BadFrame(f"{what}: {len(frame)} bytes, expected {count} float32 values ({4 * count} bytes)")
    return _values(frame, "<f4")


def ids(frame: bytes | memoryview, what: str) -> npt.NDArray[np.int64]:
    """The frame as int64 ids."""
    if len(frame) % 8:
        raise BadFrame(f"{what}: {len(frame)} bytes, not a whole number of 64-bit ids")
    return _values(frame, "<i8")
