"""How a training process keeps its memory."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt, in glibc's malloc.h


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
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
