"""Memory that workers on one machine share: each reads the others' contributions to a sum where they wrote them.

Gloo sends the same numbers through sockets, which costs each of two workers four copies and a dozen system calls a
megabyte. Signals through `peer_sockets` tell when a vector is written, and when it is read.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from elasticdl.collective.peer_sockets import PeerSockets

MOST_MEMBERS = 4  # every member reads every vector: with more members, the ring of Gloo moves less
_KEY_BYTES = 16
_HEAD_BYTES = 4096  # in front of the vector: its random key, and the generation that writes it


class Segment:
    """A vector of this process that others may read; it lasts as long as any process has it mapped.

    It takes no memory before `reserve`, which is called when others can read it.
    """

    def __init__(self, floats: int) -> None:
        self._key = secrets.token_hex(_KEY_BYTES // 2).encode()
        self._file = os.memfd_create("elasticdl-sum", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(self._file, _HEAD_BYTES + 4 * floats)
        os.pwrite(self._file, self._key, 0)
        # Processes that map it can rely on its size.
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.place = Place.of(mmap.mmap(self._file, _HEAD_BYTES + 4 * floats))
        self._reserved = False

    def reserve(self) -> bool:
        """Allocate the memory now, and not when it is first written to; False where there is none."""
        if not self._reserved:
            try:
                os.posix_fallocate(self._file, 0, _HEAD_BYTES + 4 * self.place.vector.numel())
            except OSError:
                return False
            self._reserved = True
        return True

    def offer(self, generation: int) -> Mapping[str, Any]:
        """What another process needs to map it. From now on it belongs to this generation."""
        self.place.generation.fill_(generation)
        return {"process": os.getpid(), "file": self._file, "key": self._key.decode()}


@dataclass(frozen=True)
class Place:
    """A member's vector."""

    vector: torch.Tensor
    generation: torch.Tensor  # that it belongs to: its owner may have moved on to another

    @classmethod
    def of(cls, mapped: mmap.mmap) -> Place:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a peer's, which is read-only
            vector = torch.frombuffer(mapped, dtype=torch.float32, offset=_HEAD_BYTES)
            return cls(vector, torch.frombuffer(mapped, dtype=torch.int64, count=1, offset=_KEY_BYTES))


def segment(floats: int) -> Segment | None:
    """None where the system has no such memory."""
    if sys.platform != "linux" or not floats:
        return None
    try:
        return Segment(floats)
    except OSError:
        return None


def mapped(offer: Mapping[str, Any], floats: int) -> Place | None:
    """The vector of another process, read-only; None where it is on another machine or in another pod."""
    size = _HEAD_BYTES + 4 * floats
    try:
        # On another machine the number may name anything, even a pipe, which must not block.
        how = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.open(f"/proc/{int(offer['process'])}/fd/{int(offer['file'])}", how)
    except OSError:
        return None
    try:
        known = os.pread(file, _KEY_BYTES, 0) == str(offer["key"]).encode() and os.fstat(file).st_size == size
        return Place.of(mmap.mmap(file, size, prot=mmap.PROT_READ)) if known else None
    except OSError:
        return None
    finally:
        os.close(file)


@dataclass(frozen=True)
class Shared:
    """The vectors of all members of a world, by rank, including this one's."""

    places: Sequence[Place]
    rank: int
    generation: int
    sockets: PeerSockets

    @property
    def mine(self) -> torch.Tensor:
        return self.places[self.rank].vector

    def add(self, bucket: slice, total: torch.Tensor) -> None:
        """In the order of the ranks, so that all members get the same bits."""
        first, second, *more = (place.vector[bucket] for place in self.places)
        torch.add(first, second, out=total[bucket])
        for vector in more:
            total[bucket] += vector

    def check(self) -> None:
        """Raise if a member moved on to another generation: it may have written while the others read."""
        if any(int(place.generation) != self.generation for place in self.places):
            raise RuntimeError("a member moved on to another generation")
