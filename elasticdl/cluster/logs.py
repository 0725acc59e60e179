"""The log file of a replica: one per name; each process with that name appends to it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_TAIL_BYTES = 16 * 1024
_TAIL_LINES = 20


@dataclass(frozen=True)
class ReplicaLog:
    """One process's part of a log file, which begins at `start`."""

    path: Path
    start: int

    def last_lines(self) -> tuple[str, ...]:
        """The last lines that this process wrote."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                begin = max(self.start, size - _TAIL_BYTES)
                file.seek(begin)
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:  # the user removed it
            return ()
        lines = text.splitlines()
        if begin > self.start and len(lines) > 1:
            del lines[0]  # incomplete
        return tuple(lines[-_TAIL_LINES:])


def open_log(path: Path, name: str, uid: str) -> tuple[BinaryIO, ReplicaLog]:
    """Open the file for a new process and write a header line."""
    file = path.open("ab", buffering=0)
    now = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
    file.write(f"==== {name} starts at {now} (uid {uid}) ====\n".encode())
    return file, ReplicaLog(path, file.tell())
