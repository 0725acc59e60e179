"""The processes and ports of a local job as the kernel shows them, also after the job is over."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from elasticdl.cli.chaos import connections
from elasticdl.cluster.watch import all_ended
from elasticdl.job import names

_END_SECONDS = 5.0  # from the launcher's end to that of the last process it ended

Identity = tuple[int, str]  # a process id is used again some day; with its start time it is not


def send(pid: int, replica: str, number: signal.Signals) -> bool:
    """Send a signal to the process that bears this name; False when it is gone."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Asked after the descriptor was opened: from here on the process id cannot become another's.
        if variable(pid, names.ENV_REPLICA) != replica:
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def variable(pid: int, name: str) -> str:
    """An environment variable of another process; empty when it has none, or is gone."""
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    found = [entry for entry in block.split(b"\0") if entry.startswith(name.encode() + b"=")]
    return os.fsdecode(found[0].partition(b"=")[2]) if found else ""


@dataclass
class Population:
    """Everything that was ever seen to belong to a job."""

    paths: names.JobPaths
    launcher_pid: int
    seen: dict[Identity, str] = field(default_factory=dict)  # -> what it is
    ports: dict[int, int] = field(default_factory=dict)  # inode of a listening socket -> port

    def note(self) -> None:
        """Look at the processes that run now."""
        for pid in [self.launcher_pid, *_descendants(self.launcher_pid), *self._marked()]:
            identity = _identity(pid)
            if identity is not None:
                name = variable(pid, names.ENV_REPLICA)
                self.seen[identity] = name or self.seen.get(identity, "") or _command(pid)
                self.ports |= connections.listening(pid)

    async def left(self) -> list[str]:
        """Processes that still run once the job is over and its last ones had a moment to end."""
        for pid in self._marked():  # some that were not seen while they had a parent
            if (identity := _identity(pid)) is not None:
                self.seen.setdefault(identity, variable(pid, names.ENV_REPLICA))
        alive = [identity for identity in self.seen if _identity(identity[0]) == identity]
        await all_ended([pid for pid, _ in alive], _END_SECONDS)
        return sorted(
            f"{self.seen[identity]} (process {identity[0]})" for identity in alive if _identity(identity[0]) == identity
        )

    def ports_left(self) -> list[int]:
        """Ports on which a socket of the job still listens."""
        open_now = connections.listening(os.getpid(), every_process=True)
        return sorted(port for inode, port in self.ports.items() if inode in open_now)

    def _marked(self) -> Iterator[int]:
        """Processes that were started for this job, whatever their parent is now."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and variable(int(entry.name), names.ENV_JOB_FILE) == str(self.paths.job_file):
                yield int(entry.name)


def _identity(pid: int) -> Identity | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the command stands in brackets and may contain anything
    return None if fields[0] in "ZX" else (pid, fields[19])


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()[:80]
    return ""


def _descendants(pid: int) -> Iterator[int]:
    for entry in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, entry.read_text().split()):
                yield child
                yield from _descendants(child)
