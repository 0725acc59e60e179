"""Runs in a new replica's process before its command: ties it to the launcher, sets limits, executes the command.

    python -I -S exec_shim.py LAUNCHER_PID MEMORY_LIMIT_BYTES|- LC_CTYPE|- COMMAND...

A script, not a module: it runs without site-packages and imports almost nothing (about 15 ms). It uses a fresh
interpreter, because a `preexec_fn` would run Python between fork and exec of a launcher that may have threads.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CANNOT_EXECUTE, NOT_FOUND = 126, 127  # what shells return for these


def die_with(launcher_pid: int) -> None:
    """Let the kernel kill this process when the launcher dies; exit if it has already died."""
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != launcher_pid:
        sys.exit("the launcher is gone")


def limit_memory(limit_bytes: int) -> None:
    """Limit private writable memory; not address space, of which frameworks reserve far more than they use."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main(launcher_pid: str, memory_limit_bytes: str, lc_ctype: str, *command: str) -> None:
    die_with(int(launcher_pid))
    if lc_ctype == "-":  # Python sets this variable in the C locale; the command should not see it
        os.environ.pop("LC_CTYPE", None)
    if memory_limit_bytes != "-":
        limit_memory(int(memory_limit_bytes))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE)


if __name__ == "__main__":
    main(*sys.argv[1:])
