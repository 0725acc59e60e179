"""Frames of the data plane: a fixed header and raw little-endian buffers, checked before they are believed.

    request   header | parts of the operation
    answer    header | parts, or one of UTF-8 text when refused or over

A part longer than a frame goes in several: full ones, then one that is not, so that both sides of a connection and its
encryption work at once. No frame is ever unpickled, and no size from the wire is allocated before it was compared with
what is expected.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

MAGIC = b"EDL1"
FRAME_BYTES = 1 << 20  # no frame is longer
_HEADER = struct.Struct("<4sBBHQQQIIIIQd")


class Op(IntEnum):
    DECLARE = 1  # JSON of ParametersSpec, initial trainable slice, initial state slice
    PULL = 2  # -> trainable slice, state slice, and where `batch` is 1 the optimizer's slots
    ROWS = 3  # table, ids -> rows
    PUSH = 4  # gradients, state difference, then ids and gradients of each table
    EXPORT = 5  # table, from the row `start` on -> ids, rows
    CONFIRM = 7  # synchronous training: every server has this batch
    GREET = 6  # the token of the job; nothing else is answered before


class Answer(IntEnum):
    REQUEST = 0
    OK = 1
    REPEAT = 2
    RESEND = 3
    REFUSED = 4
    OVER = 5  # this timeline is over, or this server is not on it yet; with a text, as when refused
    STALE = 6  # in synchronous training: computed on too old a version


class BadFrame(ValueError):
    """Bytes that are not what they should be."""


@dataclass(frozen=True)
class Header:
    op: Op
    request: int
    timeline: int = 0
    answer: Answer = Answer.REQUEST
    table: int = 0
    epoch: int = 0
    index: int = 0
    attempt: int = 0
    batch: int = 0  # in an answer: the batch expected next; of PULL: 1: the optimizer's slots, too
    view: int = 0  # a pinned view to read from; in a push: the version it was computed on; in an answer: the server's
    # In an answer to a push: 1: it is to be confirmed once all servers have it.
    start: int = 0  # of a push: its records; of PULL: the version to wait for; of EXPORT: a row; of ROWS: 1: no births
    rate: float = 0.0  # of a push: the learning rate; 0: the optimizer's own

    def pack(self) -> bytes:
        return _HEADER.pack(
            MAGIC, self.op, self.answer, self.table, self.request, self.timeline, self.view, self.epoch, self.index,
            self.attempt, self.batch, self.start, self.rate,
        )  # fmt: skip

    @classmethod
    def unpack(cls, frame: bytes | memoryview) -> Header:
        if len(frame) != _HEADER.size:
            raise BadFrame(f"a header of {len(frame)} bytes; it has {_HEADER.size}")
        magic, op, answer, *numbers = _HEADER.unpack(frame)
        if magic != MAGIC:
            raise BadFrame(f"a header that starts with {magic!r}; it starts with {MAGIC!r}")
        try:
            table, request, timeline, view, epoch, index, attempt, batch, start, rate = numbers
            if not 0.0 <= rate < float("inf"):
                raise ValueError(f"a learning rate of {rate}")
            return cls(
                Op(op), request, timeline, Answer(answer), table, epoch, index, attempt, batch, view, start, rate
            )
        except ValueError as error:
            raise BadFrame(str(error)) from None


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
        raise BadFrame("a message that ends in the middle of a part")
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
