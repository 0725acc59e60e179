"""`elasticdl stop JOB`: ends a job, with a checkpoint unless it is to end at once."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from elasticdl.cli import job_lookup
from elasticdl.cli.argument_types import count
from elasticdl.cli.job import Job, not_running
from elasticdl.cli.job_lookup import JobLookup
from elasticdl.errors import Unreachable, UsageError

_AGAIN_SECONDS = 1.0  # before a master that does not answer is asked again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job_lookup.add_job(parser)
    parser.add_argument("--now", action="store_true", help="stop at once, without a checkpoint")
    what = "how long to wait for the end (default: 120)"
    parser.add_argument("--timeout", type=count, metavar="SECONDS", default=120, help=what)
    job_lookup.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return job_lookup.run(_stop, args)


async def _stop(args: argparse.Namespace, lookup: JobLookup) -> int:
    job = await lookup.find(args.job)
    if not job.running and not (args.now and job.left_over):
        remedy = f"`elasticdl stop {job.name} --now` removes what is left of it." if job.left_over else ""
        raise UsageError([not_running(job, remedy)])
    if not args.now:
        return await _stop_gracefully(job, args.timeout, args.context)
    await job.stop_now()
    return _say_end(await job.again(), job, args.context)


async def _stop_gracefully(job: Job, timeout_seconds: float, context: str | None) -> int:
    print(f"Stopping {job.name}; saving a checkpoint first.", flush=True)
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

        print(f"Resume it with\n  {resume_command(spec, Path(checkpoint), context)}")
        if spec.cluster_spec is not None and not Path(spec.cluster_spec).exists():
            print("The file of --cluster_spec is on the machine that submitted the job.")
    return 0
