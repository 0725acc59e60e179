"""Memory of messages: kept by the process for the next one instead of being given back to the kernel."""

from __future__ import annotations

import ctypes
import logging

log = logging.getLogger(__name__)

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_BYTES = 256 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Messages of megabytes come and go with every batch; a page that the kernel has to clear again costs as much as
    the bytes it is filled with. At most 256 MB stay. Other C libraries than glibc are left as they are."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        log.debug("This C library has no mallopt")
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
