"""`elasticdl scale JOB --ps N --workers N`: changes the number of replicas while the job trains."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

from elasticdl.cli import job_lookup
from elasticdl.cli.job import not_running
from elasticdl.cli.job_lookup import JobLookup
from elasticdl.cli.master_client import MasterClient
from elasticdl.errors import Problem, UsageError
from elasticdl.job.outcome import Outcome
from elasticdl.wire import control_pb2 as pb

OVER = tuple(Outcome)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job_lookup.add_job(parser)
    parser.add_argument(
        "--ps", type=int, metavar="N", help="change to N parameter servers; only the rows that must move do"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="change to N workers")
    what = "how long to wait until it is done (default: 120); 0 does not wait"
    parser.add_argument("--timeout", type=float, metavar="SECONDS", default=120.0, help=what)
    job_lookup.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.ps is None and args.workers is None:
        raise UsageError([Problem("elasticdl scale", "", "no change given", "Give --ps N, --workers N or both.")])
    wrong = [(flag, n) for flag, n in (("--ps", args.ps), ("--workers", args.workers)) if n is not None and n < 1]
    if wrong:
        raise UsageError([Problem(flag, str(n), "a job needs at least one", "Give 1 or more.") for flag, n in wrong])
    return job_lookup.run(_find_and_scale, args)


async def _find_and_scale(args: argparse.Namespace, lookup: JobLookup) -> int:
    job = await lookup.find(args.job)
    if not job.running:
        raise UsageError([not_running(job)])
    async with job.reach() as master:
        return await _scale(master, job.name, args, job.answer_seconds)


async def _scale(master: MasterClient, name: str, args: argparse.Namespace, answer_seconds: float) -> int:
    for role, count in (("ps", args.ps), ("worker", args.workers)):
        if count is None:
            continue
        refused = await master.scale(role, count, answer_seconds)
        if refused:
            raise UsageError([Problem("--ps" if role == "ps" else "--workers", str(count), refused, "")])
    if not args.timeout:
        return 0
    last = await _reached(master, args)
    if last is not None and _is_there(last, args):
        said = [_counted(args.ps, "server holds", "servers hold") + " the model"] if args.ps is not None else []
        said += [_counted(args.workers, "worker trains", "workers train")] if args.workers is not None else []
        print(f"{name}: {' and '.join(said)}.")
        return 0
    over = last is not None and last.phase in OVER
    text = (
        f"{name} {last.phase} before it reached that."
        if over and last is not None
        else f"{name} has not reached that yet;"
    )
    print(text if over else f"{text} `elasticdl status {name}` shows why.", file=sys.stderr)
    return 1


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


async def _reached(master: MasterClient, args: argparse.Namespace) -> pb.Status | None:
    """The status in which the job came to the numbers asked for, or the last before it was over or changed its mind."""
    status: pb.Status | None = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(args.timeout), contextlib.aclosing(master.watch()) as statuses:
            async for status in statuses:
                if status is None:
                    continue
                given_up = args.ps is not None and status.servers_wanted != args.ps
                if _is_there(status, args) or given_up or status.phase in OVER:
                    break
    return status


def _is_there(status: pb.Status, args: argparse.Namespace) -> bool:
    if status.generation:  # all-reduce: the workers in the world are those that train
        return len(status.world) == args.workers and not any(r.state.endswith("joining") for r in status.replicas)
    at_work = sum(1 for r in status.replicas if r.role == "worker" and r.state in ("joined", "waiting for work"))
    moved = args.ps is None or (status.servers == args.ps and status.phase != "going back")
    return moved and (args.workers is None or at_work == args.workers)
