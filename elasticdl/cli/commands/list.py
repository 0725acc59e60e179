"""`elasticdl list`: the jobs of this machine and of a cluster."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING

from elasticdl.cli import job_lookup
from elasticdl.cli.job import Job, as_json, last_status, lasted
from elasticdl.cli.job_lookup import JobLookup
from elasticdl.errors import WireError

if TYPE_CHECKING:
    from elasticdl.wire import control_pb2 as pb

_GLANCE_SECONDS = 5.0  # at each job
_ASKED_AT_ONCE = 8  # masters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    job_lookup.add_arguments(parser, every_namespace=True)


def run(args: argparse.Namespace) -> int:
    return job_lookup.run(_list, args)


async def _list(args: argparse.Namespace, lookup: JobLookup) -> int:
    jobs = await lookup.all()
    statuses = await _statuses(jobs)
    if lookup.trouble:
        print(lookup.trouble, file=sys.stderr)
    if args.json:
        shown = [as_json(job, status) for job, status in zip(jobs, statuses, strict=True)]
        print(json.dumps(shown, indent=1, allow_nan=False))
        return 0
    if not jobs:
        print(f"There are no jobs in {lookup.described}.")
        return 0
    from rich.text import Text

    from elasticdl.cli.screen import make_console
    from elasticdl.cli.summary import table_of
    from elasticdl.cli.view import STYLES, duration

    where = ["WHERE"] if lookup.api is not None else []
    table = table_of("NAME", *where, "STATE", "PROGRESS", "STARTED", "DURATION")
    for job, status in zip(jobs, statuses, strict=True):
        started = "–" if job.started_at is None else time.strftime("%F %T", time.localtime(job.started_at))
        seconds = lasted(job)
        state = Text(job.state, style=STYLES.get(job.state, "cyan"))
        place = [job.place] if where else []
        length = "–" if seconds is None else duration(seconds)
        table.add_row(job.name, *place, state, _progress(status), started, length)
    make_console().print(table)
    return 0


async def _statuses(jobs: list[Job]) -> list[pb.Status | None]:
    """The last status of every job; a running one is asked for it."""
    turn = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def status(job: Job) -> pb.Status | None:
        async with turn:
            with contextlib.suppress(WireError):
                return await last_status(job, min(_GLANCE_SECONDS, job.answer_seconds))
        return None

    return await asyncio.gather(*map(status, jobs))


def _progress(status: pb.Status | None) -> str:
    if status is None or not status.records_total:
        return "–"
    return f"{status.records_done / status.records_total:.0%} of {status.records_total:,} records"
