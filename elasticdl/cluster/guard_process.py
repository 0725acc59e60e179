"""Run beside the launcher: when the launcher dies, kills the process groups it left behind.

    python -I -S guard_process.py < pipe from the launcher

The pipe carries `+GROUP` and `-GROUP` lines. Its end is the end of the launcher, whatever the cause. A script, not a
module, so that it is light: it lives as long as the launcher.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def groups_left(lines: Iterable[str]) -> set[int]:
    """The groups that are still there when the lines end."""
    groups: set[int] = set()
    for line in lines:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    return groups


def main() -> None:
    # Only the end of the launcher ends the guard; a terminal's Ctrl-C or a polite kill of everything does not.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for group in groups_left(sys.stdin):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
