"""Interprets the end of a process: its exit code or signal, and whether it ran out of memory."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elasticdl.cluster.protocol import EXIT_OUT_OF_MEMORY, Exit

# How Python, numpy, torch and C++ log a failed allocation.
_ALLOCATION_FAILED = re.compile(
    r"^([\w.]*MemoryError\b|RuntimeError: .*can't allocate memory|.*\bstd::bad_alloc\b|.*\bCannot allocate memory\b)"
)
_LINES_SEARCHED = 5  # a traceback's last line, with room for what interpreters print after it
_MIB = 1 << 20


@dataclass(frozen=True)
class Circumstances:
    """Facts about a process that ended, besides its wait status."""

    last_lines: tuple[str, ...] = ()
    memory_limit_bytes: int | None = None
    peak_bytes: int = 0
    kernel_killed_for_memory: bool = False  # the kernel counted an out-of-memory kill while it ran
    killed_because: str = ""  # why we killed it, when we did


def classify(wait_status: int, known: Circumstances) -> Exit:
    """The exit for a wait status."""
    result = os.waitstatus_to_exitcode(wait_status)
    return judge(result, None, known) if result >= 0 else judge(None, -result, known)


def judge(code: int | None, number: int | None, known: Circumstances) -> Exit:
    """The exit for an exit code or signal."""
    evidence = "" if known.killed_because or code == 0 else _evidence_of_no_memory(code, number, known)
    if evidence:
        reason = f"out of memory: {evidence}{_measured(known)}"
    elif number is not None:
        reason = f"killed by {signal_name(number)}" + (f": {known.killed_because}" if known.killed_because else "")
    else:
        reason = f"exit code {code}"
    return Exit(code, number, oom=bool(evidence), reason=reason, last_lines=known.last_lines)


def _evidence_of_no_memory(code: int | None, number: int | None, known: Circumstances) -> str:
    if code == EXIT_OUT_OF_MEMORY:
        return f"exit code {EXIT_OUT_OF_MEMORY}"
    if number == signal.SIGKILL and known.kernel_killed_for_memory:
        return "killed by SIGKILL, and the kernel reported an out-of-memory kill"
    # A failed allocation ends in an exception or an abort. With any other signal, such a log line is older.
    if code is not None or number == signal.SIGABRT:
        for line in reversed(known.last_lines[-_LINES_SEARCHED:]):
            if _ALLOCATION_FAILED.match(line):
                return f"its log ends with {line.strip()[:200]!r}"
    return ""


def _measured(known: Circumstances) -> str:
    if known.memory_limit_bytes is None:
        return ""
    return f" (limit {known.memory_limit_bytes // _MIB} MiB, at most {known.peak_bytes // _MIB} MiB resident)"


def never_started(why: str) -> Exit:
    """The exit of a replica whose process could not be started."""
    return Exit(None, None, oom=False, reason=f"could not be started: {why}")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class OutOfMemoryKills:
    """The kernel's count of out-of-memory kills, in our control group if it has a count, else on this machine.

    The count names no process. A kill is attributed to the next replica that ended by a SIGKILL which we did not send.
    That is wrong if another process with the same count was killed before.
    """

    def __init__(self, sources: Sequence[Path] | None = None) -> None:
        """Read the first of these files that has a count (default: the usual places)."""
        candidates = _count_files() if sources is None else sources
        self._source = next((path for path in candidates if _read_count(path) is not None), None)
        self._attributed = self._count()

    def take_one(self) -> bool:
        """Whether there was a kill that is not attributed yet; it is attributed now."""
        if self._count() > self._attributed:
            self._attributed += 1
            return True
        return False

    def _count(self) -> int:
        return (_read_count(self._source) or 0) if self._source else 0


def _count_files() -> list[Path]:
    files = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    root = Path("/sys/fs/cgroup")
    for line in lines:
        _, controllers, group = line.split(":", 2)
        # Inside a container the path may be the host's, while the mount already is the group.
        if controllers == "":
            files += [root / group.lstrip("/") / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            files += [root / "memory" / group.lstrip("/") / "memory.oom_control", root / "memory/memory.oom_control"]
    return [*files, Path("/proc/vmstat")]


def _read_count(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
