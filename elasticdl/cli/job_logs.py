"""The log files of a job: one replica's, or all of them in the order of time."""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.cli.job import ALL, no_such_replica
from elasticdl.cli.tail import Changes, LogReader
from elasticdl.job import names

if TYPE_CHECKING:
    from elasticdl.cli.local_job import LocalJob

# A log line's own time, or that of the header which each process's part of a file starts with.
_TIME = re.compile(
    r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\]|==== \S+ starts at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})"
)
HEADER = "==== "  # starts the line that a log file gets with each process


@dataclass(frozen=True)
class ReplicaLog:
    """A log file, and what its lines are marked with when several are shown."""

    path: Path
    mark: str = ""


def _short(job: LocalJob, path: Path) -> str:
    return path.stem.removeprefix(f"{names.APP}-{job.name}-")


def choose(job: LocalJob, replica: str) -> list[ReplicaLog]:
    """The logs of one replica, by its short or whole name, or of all."""
    there = {_short(job, path): path for path in sorted(job.paths.logs.glob("*.log"))}
    if replica == ALL:
        width = max((len(name) for name in there), default=0)
        return [ReplicaLog(path, f"{name:<{width}} | ") for name, path in there.items()]
    short = replica.removeprefix(f"{names.APP}-{job.name}-")
    if short in there:
        return [ReplicaLog(there[short])]
    if short == names.MASTER and job.running:  # about to be started
        return [ReplicaLog(job.paths.log(names.replica_name(job.name, names.MASTER)))]
    known = f"There are {', '.join([*there, ALL])}." if there else "It has no logs yet."
    raise no_such_replica(job, replica, short, there, known)


def lines(logs: list[ReplicaLog], tail: int | None, *, previous: bool = False) -> list[str]:
    """The lines of the logs: in the order of time where there are several."""
    timed = (_timed(log, previous) for log in logs)
    merged = [f"{log.mark}{line}" for _, log, line in heapq.merge(*timed, key=lambda found: found[0])]
    return merged if tail is None else merged[len(merged) - min(tail, len(merged)) :]


def _timed(log: ReplicaLog, previous: bool) -> Iterator[tuple[str, ReplicaLog, str]]:
    """Each line with its time; lines without one belong to the line before."""
    at = ""
    for line in _of_process_before(log) if previous else LogReader(log.path).last_line():
        found = _TIME.match(line)
        if found is not None:
            at = found[1] or found[2].replace("T", " ").replace(".", ",")
        yield at, log, line


def _of_process_before(log: ReplicaLog) -> list[str]:
    """The part of a file that the process before the last wrote."""
    parts: list[list[str]] = []
    for line in LogReader(log.path).last_line():
        if line.startswith(HEADER) or not parts:
            parts.append([])
        parts[-1].append(line)
    return parts[-2] if len(parts) > 1 else []


async def follow(job: LocalJob, logs: list[ReplicaLog], tail: int | None, new_ones: bool) -> AsyncGenerator[str, None]:
    """Present and new lines, until the job ends; with `new_ones`, also of replicas that start later."""
    job.paths.logs.mkdir(parents=True, exist_ok=True)
    over = asyncio.create_task(job.ended())
    try:
        with Changes(job.paths.logs) as changes:
            sizes = {log.path: log.path.stat().st_size if log.path.exists() else 0 for log in logs}
            for line in lines(logs, tail):
                yield line
            # Lines that came meanwhile may be shown twice; none is lost.
            readers = {log.path: (log, LogReader(log.path, sizes[log.path])) for log in logs}
            while not over.done():
                changed = asyncio.create_task(changes.wait())
                await asyncio.wait({changed, over}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if new_ones:
                    for log in choose(job, ALL):
                        readers.setdefault(log.path, (log, LogReader(log.path)))
                for log, reader in readers.values():
                    for line in reader.new_lines():
                        yield f"{log.mark}{line}"
            for log, reader in readers.values():
                for line in reader.last_line():
                    yield f"{log.mark}{line}"
    finally:
        over.cancel()
