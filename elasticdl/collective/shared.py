"""Memory that workers on one machine share: each reads what the others bring to a sum where they have put it.

Gloo takes the same numbers through sockets, which costs each of two workers four copies and a dozen system calls a
megabyte. Who has put numbers there, and who has read them, is said in words.
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

from elasticdl.collective.words import Words

MOST_MEMBERS = 4  # everybody reads what everybody brings: among more, the ring of Gloo moves less
_WORD_BYTES = 16
_HEAD_BYTES = 4096  # in front of the vector: a word by which it is known, and the generation that writes it


class Segment:
    """A vector of this process that others may read; it lasts as long as anybody has it.

    It takes no memory before `reserve`, which only those need whose others can read it.
    """

    def __init__(self, floats: int) -> None:
        self._word = secrets.token_hex(_WORD_BYTES // 2).encode()
        self._file = os.memfd_create("elasticdl-sum", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(self._file, _HEAD_BYTES + 4 * floats)
        os.pwrite(self._file, self._word, 0)
        # Whoever has mapped it can rely on its size.
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.place = Place.of(mmap.mmap(self._file, _HEAD_BYTES + 4 * floats))
        self._reserved = False

    def reserve(self) -> bool:
        """Have the memory now, and not when it is first written to; False where there is none."""
        if not self._reserved:
            try:
                os.posix_fallocate(self._file, 0, _HEAD_BYTES + 4 * self.place.vector.numel())
            except OSError:
                return False
            self._reserved = True
        return True

    def offer(self, generation: int) -> Mapping[str, Any]:
        """What another process needs to find it. From now on it belongs to this generation."""
        self.place.generation.fill_(generation)
        return {"process": os.getpid(), "file": self._file, "word": self._word.decode()}


@dataclass(frozen=True)
class Place:
    """Where a member's numbers are."""

    vector: torch.Tensor
    generation: torch.Tensor  # the one that they belong to: its owner may have gone on to another

    @classmethod
    def of(cls, mapped: mmap.mmap) -> Place:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a peer's cannot be written to is as it should be
            vector = torch.frombuffer(mapped, dtype=torch.float32, offset=_HEAD_BYTES)
            return cls(vector, torch.frombuffer(mapped, dtype=torch.int64, count=1, offset=_WORD_BYTES))


def segment(floats: int) -> Segment | None:
    """None where the system has no such memory."""
    if sys.platform != "linux" or not floats:
        return None
    try:
        return Segment(floats)
    except OSError:
        return None


def reached(offer: Mapping[str, Any], floats: int) -> Place | None:
    """The vector of another process, to be read; None where it is not to be had: on another machine, in another pod."""
    size = _HEAD_BYTES + 4 * floats
    try:
        # Elsewhere it may name anything, a pipe too: that must not be waited for.
        how = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.open(f"/proc/{int(offer['process'])}/fd/{int(offer['file'])}", how)
    except OSError:
        return None
    try:
        known = os.pread(file, _WORD_BYTES, 0) == str(offer["word"]).encode() and os.fstat(file).st_size == size
        return Place.of(mmap.mmap(file, size, prot=mmap.PROT_READ)) if known else None
    except OSError:
        return None
    finally:
        os.close(file)


@dataclass(frozen=True)
class Shared:
    """The places of all members of a world, by rank, this one's own among them."""

    places: Sequence[Place]
    rank: int
    generation: int
    words: Words

    @property
    def mine(self) -> torch.Tensor:
        return self.places[self.rank].vector

    def add(self, bucket: slice, total: torch.Tensor) -> None:
        """In the order of the ranks: all members get the same bits."""
        first, second, *more = (place.vector[bucket] for place in self.places)
        torch.add(first, second, out=total[bucket])
        for vector in more:
            total[bucket] += vector

    def check(self) -> None:
        """What was read is what was meant: a member that has left for another generation may have written meanwhile."""
        if any(int(place.generation) != self.generation for place in self.places):
            raise RuntimeError("a member has gone on to another generation")
