"""The CPU time and memory that this process and its children use."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from pathlib import Path

from elasticdl.wire import control_pb2 as pb

REPORT_SECONDS = 2.0
_SHORTEST_SECONDS = 0.5  # the kernel counts in ticks of 10 ms
_PROC = Path("/proc")


class Meter:
    """Cores in use since the last reading, and memory now. Without /proc, of this process alone."""

    def __init__(self) -> None:
        self._at, self._seconds = time.monotonic(), _measure()[0]
        self._last: pb.Usage | None = None

    def read(self) -> pb.Usage:
        now = time.monotonic()
        if self._last is not None and now - self._at < _SHORTEST_SECONDS:
            return self._last
        seconds, memory = _measure()
        # Less than before: a child has ended without being waited for.
        cores = max(0.0, seconds - self._seconds) / max(now - self._at, 1e-3)
        self._at, self._seconds = now, seconds
        self._last = pb.Usage(cpu=cores, memory_bytes=memory)
        return self._last


def _measure() -> tuple[float, int]:
    """(seconds of processor time so far, bytes resident now) of this process and its descendants."""
    try:
        found = [_of(pid) for pid in _family(os.getpid())]
        return sum(seconds for seconds, _ in found), sum(memory for _, memory in found)
    except (OSError, ValueError, IndexError):
        used = resource.getrusage(resource.RUSAGE_SELF)
        unit = 1 if sys.platform == "darwin" else 1024
        return used.ru_utime + used.ru_stime, used.ru_maxrss * unit


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in (_PROC / str(pid) / "task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ended, or a kernel that does not list children
            for child in (task / "children").read_text().split():
                with contextlib.suppress(OSError):
                    found += _family(int(child))
    return found


def _of(pid: int) -> tuple[float, int]:
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        if pid == os.getpid():
            raise
        return 0.0, 0
    ticks = sum(int(fields[i]) for i in (11, 12, 13, 14))  # its own and those of children that it waited for
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
