"""`elasticdl list | status | logs | stop`: looking after jobs, of this machine and of a cluster alike."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.cli import job_lookup
from elasticdl.cli.job import Job, LogWish
from elasticdl.cli.job_lookup import JobLookup
from elasticdl.errors import Problem, Unreachable, UsageError, WireError
from elasticdl.job import names

if TYPE_CHECKING:
    from rich.console import Console

    from elasticdl.wire import control_pb2 as pb

_GLANCE_SECONDS = 5.0  # at each job of a list
_AGAIN_SECONDS = 1.0  # before a master that does not answer is asked again
_ASKED_AT_ONCE = 8  # masters, for a list


def add_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    """The arguments of one of the commands."""
    if name != "list":
        parser.add_argument("job", metavar="JOB", help="the job's name, as `elasticdl list` shows it")
    if name == "logs":
        what = "a replica (worker-0, ps-0, master), or all; by default the master"
        parser.add_argument("replica", metavar="REPLICA", nargs="?", default=names.MASTER, help=what)
        parser.add_argument("-f", "--follow", action="store_true", help="show new lines until the job ends")
        parser.add_argument("--tail", type=_count, metavar="N", help="only the last N lines of what is there")
        what = "of the process (in a cluster: the container) before the present one"
        parser.add_argument("-p", "--previous", action="store_true", help=what)
    if name == "status":
        parser.add_argument("--watch", action="store_true", help="stay and show how the job goes on")
    if name in ("list", "status"):
        parser.add_argument("--json", action="store_true", help="for programs")
    if name == "stop":
        parser.add_argument("--now", action="store_true", help="at once, without a checkpoint")
        what = "how long to wait for the end (default: 120)"
        parser.add_argument("--timeout", type=_count, metavar="SECONDS", default=120, help=what)
    job_lookup.add_arguments(parser, every_namespace=name == "list")


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def run(name: str, args: argparse.Namespace) -> int:
    """Run one of the commands."""
    commands: dict[str, Callable[[argparse.Namespace, JobLookup], Awaitable[int]]] = {
        "list": _list,
        "status": _status,
        "logs": _logs,
        "stop": _stop,
    }

    async def run_it() -> int:
        async with job_lookup.lookup(args) as lookup:
            return await commands[name](args, lookup)

    return asyncio.run(run_it())


# list


async def _list(args: argparse.Namespace, lookup: JobLookup) -> int:
    jobs = await lookup.all()
    statuses = await _statuses(jobs)
    if lookup.trouble:
        print(lookup.trouble, file=sys.stderr)
    if args.json:
        shown = [_as_json(job, status) for job, status in zip(jobs, statuses, strict=True)]
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
        lasted = _lasted(job)
        state = Text(job.state, style=STYLES.get(job.state, "cyan"))
        place = [job.place] if where else []
        table.add_row(job.name, *place, state, _progress(status), started, "–" if lasted is None else duration(lasted))
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


async def last_status(job: Job, deadline_seconds: float) -> pb.Status | None:
    """From its master, or as it was at the end; None where that was not kept. Raises `Unreachable`, `Refused`."""
    if not job.running:
        if not job.result.get("status"):
            return None
        from elasticdl.cli.summary import status_of

        return status_of(job.result)
    if job.state == "pending":
        raise Unreachable(job.note or "its master is not there yet")
    async with job.reach() as master:
        return await master.status(deadline_seconds)


def _progress(status: pb.Status | None) -> str:
    if status is None or not status.records_total:
        return "–"
    return f"{status.records_done / status.records_total:.0%} of {status.records_total:,} records"


def _lasted(job: Job) -> float | None:
    if job.started_at is None or job.state == "died":
        return None
    return (job.ended_at or time.time()) - job.started_at


def _as_json(job: Job, status: pb.Status | None) -> dict[str, Any]:
    from elasticdl.cli.summary import status_json

    return {
        "name": job.name,
        "where": job.place,
        "state": job.state,
        "reason": job.result.get("reason", "") or job.note,
        "started_at": job.started_at,
        "duration_seconds": _lasted(job),
        **job.facts(),
        "troubles": [{"replicas": list(t.replicas), "what": t.what, "remedy": t.remedy} for t in job.troubles],
        "status": None if status is None else status_json(status),
    }


# status


async def _status(args: argparse.Namespace, lookup: JobLookup) -> int:
    from elasticdl.cli.screen import make_console

    job = await lookup.find(args.job)
    if args.watch and job.running:
        from elasticdl.cli.watching import watch

        if job.note and not args.json:  # else it waits without a word
            _show(make_console(), job, None, "")
        await watch(job, as_json=args.json)
        job = await job.again()
    status, silence = None, ""
    try:
        status = await last_status(job, job.answer_seconds)
    except Unreachable as error:  # not started yet, or between two lives
        silence, job = str(error), await job.again()
        if not job.running:  # it has ended meanwhile
            status = await last_status(job, job.answer_seconds)
    if args.json:
        print(json.dumps(_as_json(job, status), indent=None if args.watch else 1, allow_nan=False))
        return 0
    _show(make_console(), job, status, silence)
    return 0


def _show(console: Console, job: Job, status: pb.Status | None, silence: str) -> None:
    from elasticdl.cli import summary
    from elasticdl.cli.view import View

    if job.state == "died":
        console.print(f"{job.name} died: {job.note}.", soft_wrap=True)
        console.print(f"  logs  {job.logs_at}", soft_wrap=True)
        if job.left_over:
            console.print(f"  `elasticdl stop {job.name} --now` removes what is left of it.", soft_wrap=True)
    elif not job.running:
        reason = str(job.result.get("reason", ""))
        remedies = [t.remedy if t.what in reason else f"{t}. {t.remedy}" for t in job.troubles]
        summary.show(console, job.name, job.result, job.logs_at, remedies)
        return
    elif status is None:
        why = job.note or silence
        what = "its master does not answer yet" if job.state == "running" else "nothing runs yet"
        console.print(f"{job.name} is {job.state}; {what}" + (f": {why}" if why else "."), soft_wrap=True)
    else:
        view = View(job.name)
        view.update(status)
        console.print(view.render())
    for remedy, troubles in itertools.groupby(job.troubles, lambda trouble: trouble.remedy):
        for trouble in troubles:
            if status is not None or trouble.what not in job.note:
                console.print(str(trouble), soft_wrap=True)
        if remedy:
            console.print(f"  {remedy}", soft_wrap=True)


# logs


async def _logs(args: argparse.Namespace, lookup: JobLookup) -> int:
    if args.follow and args.previous:
        what = "the process before this one says no more"
        raise UsageError([Problem("--previous", "", what, "Give --follow or --previous.")])
    job = await lookup.find(args.job)
    wish = LogWish(args.replica, args.tail, args.follow, args.previous)
    async with contextlib.aclosing(job.log(wish)) as lines:
        async for line in lines:
            print(line, flush=args.follow)
    return 0


# stop


async def _stop(args: argparse.Namespace, lookup: JobLookup) -> int:
    job = await lookup.find(args.job)
    if not job.running and not (args.now and job.left_over):
        what, remedy = f"it does not run: it {job.state}", f"`elasticdl status {job.name}` says more."
        if job.left_over:
            remedy = f"`elasticdl stop {job.name} --now` removes what is left of it."
        raise UsageError([Problem(job.name, "", what, remedy)])
    if not args.now:
        return await _stop_gracefully(job, args.timeout, args.context)
    await job.stop_now()
    return _say_end(await job.again(), job, args.context)


async def _stop_gracefully(job: Job, timeout_seconds: float, context: str | None) -> int:
    print(f"Stopping {job.name}; what it trained is saved first.", flush=True)
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        try:
            async with job.reach() as master:
                await master.stop("stopped by `elasticdl stop`", job.answer_seconds)
            break
        except Unreachable:  # no master yet, or between two lives
            if await job.stop_without_master() or await job.ended(_AGAIN_SECONDS):
                break
    if await job.ended(max(0.0, deadline - time.monotonic())):
        return _say_end(await job.again(), job, context)
    remedy = f"Wait for it, or run `elasticdl stop {job.name} --now`."
    print(f"{job.name} is still stopping after {timeout_seconds:g} s. {remedy}", file=sys.stderr)
    return 1


def _say_end(job: Job, before: Job, context: str | None) -> int:
    print(f"{job.name} {job.state}" + (f": {job.result['reason']}" if job.result.get("reason") else ""))
    from elasticdl.cli.summary import status_of

    checkpoint = status_of(job.result).checkpoint
    spec = before.spec() if job.state == "stopped" and checkpoint else None
    if spec is not None:
        from elasticdl.cli.resume import resume_command

        print(f"Go on where it stopped with\n  {resume_command(spec, Path(checkpoint), context)}")
        if spec.cluster_spec is not None and not Path(spec.cluster_spec).exists():
            print("The file of --cluster_spec is on the machine from which the job was submitted.")
    return 0
