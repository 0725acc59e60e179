"""Keeps the memory of a message for the next one instead of returning it to the kernel."""

from __future__ import annotations

import ctypes
import logging

log = logging.getLogger(__name__)

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_BYTES = 256 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Every batch has messages of megabytes, and clearing a page costs the kernel as much time as filling it. The
    process keeps at most 256 MB. Only glibc has this option."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        log.debug("This C library has no mallopt")
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
