"""Runs beside the launcher; when the launcher dies, kills the process groups that it left.

    python -I -S guard_process.py < pipe from the launcher

The pipe carries `+GROUP` and `-GROUP` lines, and closes when the launcher ends for any reason. A script, not a module,
to stay small: it lives as long as the launcher.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def groups_left(lines: Iterable[str]) -> set[int]:
    """The groups that still exist when the lines end."""
    groups: set[int] = set()
    for line in lines:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    return groups


def main() -> None:
    # Only the end of the launcher ends the guard, not Ctrl-C in a terminal or a SIGTERM to all processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for group in groups_left(sys.stdin):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
