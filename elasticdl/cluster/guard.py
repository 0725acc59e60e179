"""The launcher's side of the guard, a process that outlives the launcher to kill its remaining process groups."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from pathlib import Path

from elasticdl.cluster.watch import Cancel, on_exit

log = logging.getLogger(__name__)

_SCRIPT = Path(__file__).with_name("guard_process.py")
_MOST_RESTARTS = 10  # it is killed on purpose, then
_END_SECONDS = 2.0  # normally a millisecond


class Guard:
    """Tells the guard process which groups exist, and restarts it if it is killed."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._unwatch: Cancel = lambda: None
        self._restarts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        command = [sys.executable, "-I", "-S", str(_SCRIPT)]
        null = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True)
        self._process = process
        for group in self._groups:
            self._tell(f"+{group}\n")
        self._unwatch = on_exit(process.pid, lambda: self._ended(process))

    def add(self, group: int) -> None:
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End the guard process, which first kills the remaining groups."""
        process, self._process = self._process, None
        if process is None:
            return
        self._unwatch()
        _close_pipe(process)
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # suspended; it has nothing left to do
            process.kill()
            process.wait()

    def _tell(self, line: str) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            # A broken pipe means that the guard was killed: `_ended` will send everything to a new one.
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        _close_pipe(process)
        self._process = None
        self._restarts += 1
        if self._restarts > _MOST_RESTARTS:
            log.warning("Not restarting the guard process (killed %d times)", self._restarts)
        else:
            self.start()
            log.warning("Restarted the guard process (it was killed)")


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
