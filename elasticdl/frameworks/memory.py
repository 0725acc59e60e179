"""How a training process keeps its memory."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of mallopt, in glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let the allocator keep large blocks that are freed, for the next step; whether it can.

    glibc maps blocks above 32 MB anew each time, and every page of a new mapping costs a fault: a vector of ten million
    gradients takes 5 ms to fill in memory used before, and 25 ms in new memory.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    # The arenas of other threads are too small for such blocks, and map them anew whatever the limit says.
    alike = bool(mallopt(_ARENA_MAX, 1))
    return alike and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))


def have_at_hand(size_bytes: int) -> None:
    """Touch so much memory before it is needed: `keep_freed_memory` lets what comes later have it without a fault."""
    _ = b"\1" * size_bytes
