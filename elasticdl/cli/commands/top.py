"""`elasticdl top [JOB …]`: what the replicas of running jobs use of their machines, live on a terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elasticdl.cli import job_lookup
from elasticdl.cli.job import Job, last_status, not_running
from elasticdl.cli.job_lookup import JobLookup
from elasticdl.errors import UsageError, WireError
from elasticdl.job import names

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from elasticdl.job.spec import JobSpec
    from elasticdl.wire import control_pb2 as pb

_FRAME_SECONDS = 0.5
_LOOK_SECONDS = 5.0  # how often it is seen which jobs there are
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "names of jobs, as `elasticdl list` shows them (default: all that run)"
    parser.add_argument("jobs", metavar="JOB", nargs="*", help=what)
    parser.add_argument(
        "--once", action="store_true", help="print one table and exit (the default where there is no terminal)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON once, for programs")
    job_lookup.add_arguments(parser, every_namespace=True)


def run(args: argparse.Namespace) -> int:
    return job_lookup.run(_top, args)


async def _top(args: argparse.Namespace, lookup: JobLookup) -> int:
    from elasticdl.cli.screen import is_live, make_console

    jobs = await _chosen(lookup, args.jobs)
    console = make_console()
    if is_live(console) and not args.once and not args.json and jobs:
        from rich.live import Live

        with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
            await _Watch(lookup, args.jobs).show(lambda shown: live.update(shown, refresh=True))
        return 0
    if lookup.trouble:
        print(lookup.trouble, file=sys.stderr)
    looks = await asyncio.gather(*map(_look, jobs))
    if args.json:
        print(json.dumps([look.as_json() for look in looks], indent=1, allow_nan=False))
    elif not looks:
        print(f"No jobs are running in {lookup.described}.")
    else:
        console.print(table(looks))
    return 0


async def _chosen(lookup: JobLookup, wanted: Sequence[str]) -> list[Job]:
    """The jobs that were named, or all that run."""
    if not wanted:
        return [job for job in await lookup.all() if job.running]
    found = [await lookup.find(name) for name in dict.fromkeys(wanted)]
    over = [job for job in found if not job.running]
    if over:
        raise UsageError([not_running(job) for job in over])
    return found


@dataclass(frozen=True)
class ReplicaRow:
    """One row."""

    name: str
    role: str
    state: str
    doing: str
    cpu: float | None  # cores; None: not reported yet
    memory_bytes: int | None
    cpu_limit: float | None
    memory_limit_bytes: float | None


@dataclass(frozen=True)
class Look:
    """A job, its last status, and why its master does not answer."""

    job: Job
    status: pb.Status | None = None
    silence: str = ""

    @functools.cached_property
    def replicas(self) -> list[ReplicaRow]:
        """The master first, then the others that are not gone."""
        if self.status is None:
            return []
        from elasticdl.cli.view import WORDS, first_line

        spec = self.job.spec()
        master = names.replica_name(self.job.name, names.MASTER)
        found = [_row(self.status, spec, master, names.MASTER, "working", "")]
        for r in self.status.replicas:
            if r.state != "gone":
                doing = first_line(", ".join(r.leases) or r.detail)
                found.append(_row(self.status, spec, r.name, r.role, WORDS.get(r.state, r.state), doing))
        return found

    def as_json(self) -> dict[str, Any]:
        status, replicas = self.status, self.replicas
        return {
            "name": self.job.name,
            "where": self.job.place,
            "state": self.job.state,
            "reason": self.silence,
            "phase": None if status is None else status.phase,
            "records_per_second": None if status is None else status.records_per_second,
            "cpu": sum(r.cpu or 0.0 for r in replicas),
            "memory_bytes": sum(r.memory_bytes or 0 for r in replicas),
            "replicas": [vars(r) for r in replicas],
        }


def _row(status: pb.Status, spec: JobSpec | None, name: str, role: Any, state: str, doing: str) -> ReplicaRow:
    used = status.usage.get(name)
    limit = spec.limit(role) if spec is not None else None
    return ReplicaRow(
        name.removeprefix(f"{names.APP}-{status.job}-"),
        role,
        state,
        doing,
        None if used is None else used.cpu,
        None if used is None else used.memory_bytes,
        None if limit is None else limit.cpu,
        None if limit is None else limit.memory,
    )


async def _look(job: Job) -> Look:
    try:
        return Look(job, await last_status(job, job.answer_seconds))
    except WireError as error:
        return Look(job, None, str(error))


# What is drawn.


def size(count: float) -> str:
    """`512 MiB`, `1.5 GiB`"""
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.1f} {_UNITS[power]}" if count < 10 and power else f"{count:.0f} {_UNITS[power]}"


def table(looks: Sequence[Look]) -> RenderableType:
    """Every job with its sums, and below it its replicas."""
    from elasticdl.cli.summary import table_of

    found = table_of("REPLICA", "STATE", "CPU", "MEMORY", "DOING")
    rows: list[list[Text | str]] = []
    for look in looks:
        rows += [[""] * len(found.columns)] if rows else []
        rows += _rows(look)
    for number, column in enumerate(found.columns):
        column.justify = "right" if column.header in ("CPU", "MEMORY") else "left"
        if column.header != "DOING":  # what there is no room for is cut off at the end
            column.min_width = max((len(row[number]) for row in rows), default=0)
    for row in rows:
        found.add_row(*row)
    return found


def _rows(look: Look) -> list[list[Text | str]]:
    from rich.text import Text

    from elasticdl.cli.view import STYLES

    status, replicas = look.status, look.replicas
    name = Text(look.job.name + ("" if look.job.place == "here" else f" ({look.job.place})"), style="bold")
    if status is None:
        return [[name, Text(look.job.state, style="yellow"), "–", "–", look.silence]]
    done = f"{status.records_done / status.records_total:.0%}" if status.records_total else "–"
    cpu, memory = sum(r.cpu or 0.0 for r in replicas), sum(r.memory_bytes or 0 for r in replicas)
    sums = [Text(f"{cpu:.2f}", style="bold"), Text(size(memory), style="bold")]
    phase = Text(status.phase, style=STYLES.get(status.phase, "cyan"))
    rows: list[list[Text | str]] = [[name, phase, *sums, f"{done}, {status.records_per_second:,.0f} records/s"]]
    for r in replicas:
        rows.append([f"  {r.name}", Text(r.state, style=STYLES.get(r.state, "")), _cpu(r), _memory(r), r.doing])
    return rows


def _cpu(r: ReplicaRow) -> str:
    if r.cpu is None:
        return "–"
    return f"{r.cpu:.2f}" + (f" of {r.cpu_limit:g}" if r.cpu_limit is not None else "")


def _memory(r: ReplicaRow) -> Text:
    from rich.text import Text

    if r.memory_bytes is None:
        return Text("–")
    if r.memory_limit_bytes is None:
        return Text(size(r.memory_bytes))
    near = r.memory_bytes > 0.9 * r.memory_limit_bytes
    return Text(f"{size(r.memory_bytes)} of {size(r.memory_limit_bytes)}", style="red" if near else "")


# Live.


class _Watch:
    """Follows the masters of running jobs, and notices new jobs and ended ones."""

    def __init__(self, lookup: JobLookup, wanted: Sequence[str]) -> None:
        self._lookup, self._wanted = lookup, wanted
        self._looks: dict[tuple[str, str], Look] = {}
        self._hearing: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def show(self, draw: Callable[[RenderableType], None]) -> None:
        """Until no job runs any more."""
        looking = asyncio.create_task(self._look_for_jobs())
        try:
            while not looking.done():
                draw(self._picture())
                await asyncio.wait({looking}, timeout=_FRAME_SECONDS)
            looking.result()
        finally:
            for task in (looking, *self._hearing.values()):
                task.cancel()
            await asyncio.wait({looking, *self._hearing.values()})

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        lines: list[RenderableType] = [table(list(self._looks.values()))]
        if self._lookup.trouble:
            lines.append(Text(self._lookup.trouble, style="yellow"))
        lines.append(Text("Ctrl-C leaves this view; the jobs continue.", style="dim"))
        return Group(*lines)

    async def _look_for_jobs(self) -> None:
        while True:
            with contextlib.suppress(WireError):  # the cluster is away for a moment
                there = {(job.place, job.name): job for job in await self._lookup.all()}
                keys = [k for k, job in there.items() if job.running and (not self._wanted or k[1] in self._wanted)]
                if not keys:
                    return
                for key in set(self._looks) - set(keys):
                    self._hearing.pop(key).cancel()
                    del self._looks[key]
                for key in keys:
                    if key not in self._hearing or self._hearing[key].done():
                        self._looks.setdefault(key, Look(there[key], None, there[key].note))
                        self._hearing[key] = asyncio.create_task(self._hear(key, there[key]))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _hear(self, key: tuple[str, str], job: Job) -> None:
        try:
            if job.state == "pending":
                self._looks[key] = Look(job, None, job.note)
                return
            async with job.reach() as master, contextlib.aclosing(master.watch()) as statuses:
                async for status in statuses:
                    if status is not None:
                        self._looks[key] = Look(job, status)
        except WireError as error:
            self._looks[key] = Look(job, None, str(error))
