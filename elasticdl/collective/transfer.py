"""A copy of the whole state from one member of a group to another.

A JSON header describes the tensors; then follow their bytes in chunks, and a checksum over both. The receiver returns
the tensors only if the checksum is right. It confirms each chunk and the checksum with a receipt: when a peer is gone,
Gloo fails a wait to receive at once, but not a wait to send.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt
import torch

from elasticdl import faults
from elasticdl.collective.group import Group, PeerLink, Transfer
from elasticdl.errors import GroupBroken
from elasticdl.frameworks.replica.state import DTYPES

CHUNK_BYTES = 1 << 22
AHEAD = 4  # chunks in flight at once
_ALIGNMENT = 64
_MOST_HEADER_BYTES = 1 << 28
_FORMAT = 1

_PREAMBLE, _HEADER, _CHUNK, _CHECKSUM, _RECEIPT = 16, 17, 18, 19, 20  # tags

_NAMED = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


@dataclass(frozen=True)
class _Entry:
    """One tensor of the state, and the position of its bytes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.itemsize)


def send_state(
    group: Group, to: int, state: Mapping[str, torch.Tensor], moved: Callable[[], None] = lambda: None
) -> int:
    """Copy the state to a rank that is in `receive_state`; the number of bytes.

    `moved` is called, in the communication thread, whenever some of it arrived.
    """
    group.check()
    entries, size = _layout(state)
    described = [[e.name, str(e.dtype).removeprefix("torch."), list(e.shape)] for e in entries]
    header = json.dumps({"format": _FORMAT, "tensors": described}).encode()
    preamble = torch.tensor([len(header), size], dtype=torch.int64)
    text = torch.frombuffer(bytearray(header), dtype=torch.uint8)

    def carry_out(link: PeerLink) -> None:
        sent = [link.send(preamble, to, _PREAMBLE), link.send(text, to, _HEADER)]
        receipts = deque(link.receive(_receipt(), to, _RECEIPT) for _ in _chunks(size))
        last = link.receive(_receipt(), to, _RECEIPT)
        checksum = _extended(0, text)
        # A chunk's buffer is filled again only after Gloo has sent it.
        places = [torch.zeros(CHUNK_BYTES, dtype=torch.uint8) for _ in range(min(AHEAD, -(-size // CHUNK_BYTES)))]
        for number, length in enumerate(_chunks(size)):
            if number >= AHEAD:
                receipts.popleft().wait()
                moved()
            chunk = places[number % AHEAD][:length]
            _pack(chunk, number * CHUNK_BYTES, entries, state)
            sent.append(link.send(chunk, to, _CHUNK))
            checksum = _extended(checksum, chunk)
            if number == 0:
                faults.point("worker.copying")
        sent.append(link.send(torch.tensor([checksum], dtype=torch.int64), to, _CHECKSUM))
        for transfer in (*receipts, last, *sent):
            transfer.wait()
            moved()

    group.run(carry_out)
    return size


def receive_state(group: Group, source: int, moved: Callable[[], None] = lambda: None) -> dict[str, torch.Tensor]:
    """The state of a rank that is in `send_state`, in main memory. `moved` is as in `send_state`."""
    group.check()
    return group.run(lambda link: _received(link, source, group.members[source], moved))


def _received(link: PeerLink, source: int, member: str, moved: Callable[[], None]) -> dict[str, torch.Tensor]:
    length, size = link.receive(torch.empty(2, dtype=torch.int64), source, _PREAMBLE).wait().tolist()
    if not 0 < length <= _MOST_HEADER_BYTES or size < 0:
        raise GroupBroken(f"{member} announced a state of {size} bytes with a header of {length}", [member])
    text = link.receive(torch.empty(length, dtype=torch.uint8), source, _HEADER).wait()
    entries = _entries(text.numpy().tobytes(), size, member)
    data = torch.empty(size, dtype=torch.uint8)
    checksum = _extended(0, text)
    coming: deque[Transfer] = deque()
    receipts: list[Transfer] = []
    lengths = list(_chunks(size))
    for number in range(len(lengths) + AHEAD):
        if number < len(lengths):
            start = number * CHUNK_BYTES
            coming.append(link.receive(data[start : start + lengths[number]], source, _CHUNK))
        if number >= AHEAD and coming:
            checksum = _extended(checksum, coming.popleft().wait())
            moved()
            receipts.append(link.send(_receipt(), source, _RECEIPT))
        if number == AHEAD:
            faults.point("worker.copying")
    (announced,) = link.receive(torch.empty(1, dtype=torch.int64), source, _CHECKSUM).wait().tolist()
    if announced != checksum:
        what = f"the state copied from {member} has the checksum {checksum:#x}, not {announced:#x}"
        raise GroupBroken(what, [member])
    receipts.append(link.send(_receipt(), source, _RECEIPT))
    for transfer in receipts:
        transfer.wait()
    return {e.name: data[e.start : e.start + e.bytes].view(e.dtype).view(e.shape) for e in entries}


def _receipt() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.uint8)


def _layout(state: Mapping[str, torch.Tensor]) -> tuple[list[_Entry], int]:
    entries, start = [], 0
    for name, tensor in state.items():
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{name} is of {tensor.dtype}, which cannot be copied between workers")
        entry = _Entry(name, tensor.dtype, tuple(tensor.shape), start)
        entries.append(entry)
        start = _aligned(start + entry.bytes)
    return entries, start


def _entries(header: bytes, size: int, member: str) -> list[_Entry]:
    """The tensors in a header, which must fit the announced size exactly."""
    try:
        described = json.loads(header)
        if described["format"] != _FORMAT:
            raise ValueError(f"format {described['format']}")
        entries, start = [], 0
        for name, dtype, shape in described["tensors"]:
            if any(not isinstance(n, int) or n < 0 for n in shape):
                raise ValueError(f"{name} has the shape {shape}")
            entry = _Entry(str(name), _NAMED[dtype], tuple(shape), start)
            entries.append(entry)
            start = _aligned(start + entry.bytes)
        if start != size:
            raise ValueError(f"its tensors have {start} bytes, not {size}")
    except (ValueError, KeyError, TypeError) as error:
        raise GroupBroken(f"{member} sent an invalid description of its state: {error}", [member]) from error
    return entries


def _pack(chunk: torch.Tensor, offset: int, entries: list[_Entry], state: Mapping[str, torch.Tensor]) -> None:
    """Fill a chunk with the bytes of the tensors that belong into it."""
    stop = offset + chunk.numel()
    for entry in entries:
        first, last = max(entry.start, offset), min(entry.start + entry.bytes, stop)
        if first < last:
            held = state[entry.name].detach().resolve_conj().resolve_neg()  # as bytes
            source = held.reshape(-1).view(torch.uint8)
            chunk[first - offset : last - offset].copy_(source[first - entry.start : last - entry.start])


def _chunks(size: int) -> Iterator[int]:
    for start in range(0, size, CHUNK_BYTES):
        yield min(CHUNK_BYTES, size - start)


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def _extended(checksum: int, piece: torch.Tensor) -> int:
    data: npt.NDArray[np.uint8] = piece.numpy()
    return int(google_crc32c.extend(checksum, data))
