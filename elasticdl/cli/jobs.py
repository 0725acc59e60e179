"""`elasticdl list | status | logs | stop`: looking after the jobs of this machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.cli.job_dir import JobView, all_jobs, ended, find_job, look
from elasticdl.errors import Problem, Unreachable, UsageError
from elasticdl.job import names

if TYPE_CHECKING:
    from elasticdl.wire import control_pb2 as pb

_ANSWER_SECONDS = 5.0  # a master that is started again needs two
_NOW_SECONDS = 15.0  # from "at once" to the last process gone; after that the launcher is killed


def add_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    """The arguments of one of the commands."""
    if name != "list":
        parser.add_argument("job", metavar="JOB", help="the job's name, as `elasticdl list` shows it")
    if name == "logs":
        what = "a replica (worker-0, ps-0, master), or all; by default the master"
        parser.add_argument("replica", metavar="REPLICA", nargs="?", default=names.MASTER, help=what)
        parser.add_argument("-f", "--follow", action="store_true", help="show new lines until the job ends")
        parser.add_argument("--tail", type=_count, metavar="N", help="only the last N lines of what is there")
    if name == "status":
        parser.add_argument("--watch", action="store_true", help="stay and show how the job goes on")
    if name in ("list", "status"):
        parser.add_argument("--json", action="store_true", help="for programs")
    if name == "stop":
        parser.add_argument("--now", action="store_true", help="at once, without a checkpoint")
        what = "how long to wait for the end (default: 120)"
        parser.add_argument("--timeout", type=_count, metavar="SECONDS", default=120, help=what)
    what = "where the jobs are kept (default: ELASTICDL_STATE_DIR or ~/.elasticdl/jobs)"
    parser.add_argument("--state_dir", "--state-dir", metavar="DIR", help=what)


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def run(name: str, args: argparse.Namespace) -> int:
    """Run one of the commands."""
    commands: dict[str, Callable[[argparse.Namespace, Path], int]] = {
        "list": _list,
        "status": _status,
        "logs": _logs,
        "stop": _stop,
    }
    state_dir = names.expanded(args.state_dir).absolute() if args.state_dir else names.default_state_dir()
    return commands[name](args, state_dir)


# list


def _list(args: argparse.Namespace, state_dir: Path) -> int:
    jobs = all_jobs(state_dir)
    statuses = asyncio.run(_statuses(jobs))
    if args.json:
        print(json.dumps([_as_json(job, statuses[job.name]) for job in jobs], indent=1, allow_nan=False))
        return 0
    if not jobs:
        print(f"There are no jobs in {state_dir}.")
        return 0
    from rich.text import Text

    from elasticdl.cli.screen import make_console
    from elasticdl.cli.summary import table_of
    from elasticdl.cli.view import STYLES, duration

    table = table_of("NAME", "STATE", "PROGRESS", "STARTED", "DURATION")
    for job in jobs:
        started = "–" if job.started_at is None else time.strftime("%F %T", time.localtime(job.started_at))
        lasted = _lasted(job)
        shown = "–" if lasted is None else duration(lasted)
        state = Text(job.state, style=STYLES.get(job.state, "cyan"))
        table.add_row(job.name, state, _progress(statuses[job.name]), started, shown)
    make_console().print(table)
    return 0


async def _statuses(jobs: list[JobView]) -> dict[str, pb.Status | None]:
    """The last status of every job; a running one is asked for it."""
    found = await asyncio.gather(*(_last_status(job, 2.0) for job in jobs))
    return {job.name: status for job, status in zip(jobs, found, strict=True)}


async def _last_status(job: JobView, deadline_seconds: float) -> pb.Status | None:
    if not job.running:
        if not job.result.get("status"):
            return None
        from elasticdl.cli.summary import status_of

        return status_of(job.result)
    from elasticdl.cli.master_client import MasterClient

    try:
        return await MasterClient.of(job.paths).status(deadline_seconds)
    except Unreachable:  # not started yet, or between two lives
        return None


def _progress(status: pb.Status | None) -> str:
    if status is None or not status.records_total:
        return "–"
    return f"{status.records_done / status.records_total:.0%} of {status.records_total:,} records"


def _lasted(job: JobView) -> float | None:
    if job.started_at is None or job.state == "died":
        return None
    return (job.ended_at or time.time()) - job.started_at


def _as_json(job: JobView, status: pb.Status | None) -> dict[str, Any]:
    from elasticdl.cli.summary import status_json

    return {
        "name": job.name,
        "state": job.state,
        "reason": job.result.get("reason", ""),
        "started_at": job.started_at,
        "duration_seconds": _lasted(job),
        "launcher_pid": job.pid if job.running else None,
        "directory": str(job.paths.root),
        "status": None if status is None else status_json(status),
    }


# status


def _status(args: argparse.Namespace, state_dir: Path) -> int:
    job = find_job(state_dir, args.job)
    if args.watch and job.running:
        from elasticdl.cli.watching import watch

        asyncio.run(watch(job, as_json=args.json))
        job = look(job.paths)
    status = asyncio.run(_last_status(job, _ANSWER_SECONDS))
    if args.json:
        print(json.dumps(_as_json(job, status), indent=None if args.watch else 1, allow_nan=False))
        return 0
    from elasticdl.cli import summary
    from elasticdl.cli.screen import make_console
    from elasticdl.cli.view import View

    console = make_console()
    if job.state == "died":
        console.print(f"{job.name} died: its launcher (process {job.pid}) ended without saying how.", soft_wrap=True)
        console.print(f"  logs  {job.paths.logs}", soft_wrap=True)
    elif not job.running:
        summary.show(console, job.name, job.result, job.paths.logs)
    elif status is None:
        console.print(f"{job.name} is running; its master does not answer yet.")
    else:
        view = View(job.name)
        view.update(status)
        console.print(view.render())
    return 0


# logs


def _logs(args: argparse.Namespace, state_dir: Path) -> int:
    from elasticdl.cli import job_logs

    job = find_job(state_dir, args.job)
    chosen = job_logs.choose(job, args.replica)
    if not args.follow:
        for line in job_logs.lines(chosen, args.tail):
            print(line)
        return 0
    asyncio.run(job_logs.follow(job, chosen, args.tail, args.replica == job_logs.ALL))
    return 0


# stop


def _stop(args: argparse.Namespace, state_dir: Path) -> int:
    job = find_job(state_dir, args.job)
    if not job.running:
        what = f"it does not run: it {job.state}"
        raise UsageError([Problem(job.name, "", what, f"`elasticdl status {job.name}` says more.")])
    return asyncio.run(_stop_now(job) if args.now else _stop_gracefully(job, args.timeout))


async def _stop_gracefully(job: JobView, timeout_seconds: float) -> int:
    from elasticdl.cli.master_client import MasterClient

    print(f"Stopping {job.name}; what it trained is saved first.", flush=True)
    try:
        await MasterClient.of(job.paths).stop("stopped by `elasticdl stop`", _ANSWER_SECONDS)
    except Unreachable:  # no master yet, or between two lives: the launcher sees to it
        _signal(job, signal.SIGTERM)
    if await ended(job, timeout_seconds):
        return _say_end(look(job.paths))
    remedy = f"Wait for it, or run `elasticdl stop {job.name} --now`."
    print(f"{job.name} is still stopping after {timeout_seconds:g} s. {remedy}", file=sys.stderr)
    return 1


async def _stop_now(job: JobView) -> int:
    _signal(job, signal.SIGQUIT)
    if not await ended(job, _NOW_SECONDS):
        _signal(job, signal.SIGKILL)  # the kernel and the guard take its processes along
        await ended(job, _NOW_SECONDS)
    return _say_end(look(job.paths))


def _say_end(job: JobView) -> int:
    print(f"{job.name} {job.state}" + (f": {job.result['reason']}" if job.result.get("reason") else ""))
    from elasticdl.cli.summary import status_of

    checkpoint = status_of(job.result).checkpoint
    if job.state == "stopped" and checkpoint:
        from elasticdl.cli.resume import resume_command
        from elasticdl.job.spec import JobSpec

        spec = JobSpec.from_json(job.paths.job_file.read_bytes())
        print(f"Go on where it stopped with\n  {resume_command(spec, Path(checkpoint))}")
    return 0


def _signal(job: JobView, number: signal.Signals) -> None:
    if look(job.paths).running and job.pid is not None:  # locked: this process id is still the launcher's
        os.kill(job.pid, number)
