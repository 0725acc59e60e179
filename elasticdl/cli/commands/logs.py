"""`elasticdl logs JOB [REPLICA]`: the log of a job's replicas."""

from __future__ import annotations

import argparse
import contextlib

from elasticdl.cli import job_lookup
from elasticdl.cli.argument_types import count
from elasticdl.cli.job import LogWish
from elasticdl.cli.job_lookup import JobLookup
from elasticdl.errors import Problem, UsageError
from elasticdl.job import names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job_lookup.add_job(parser)
    what = "a replica (worker-0, ps-0, master), or all (default: master)"
    parser.add_argument("replica", metavar="REPLICA", nargs="?", default=names.MASTER, help=what)
    parser.add_argument("-f", "--follow", action="store_true", help="show new lines until the job ends")
    parser.add_argument("--tail", type=count, metavar="N", help="show only the last N lines")
    what = "show the log of the process (in a cluster: the container) before the present one"
    parser.add_argument("-p", "--previous", action="store_true", help=what)
    job_lookup.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return job_lookup.run(_logs, args)


async def _logs(args: argparse.Namespace, lookup: JobLookup) -> int:
    if args.follow and args.previous:
        what = "the process before this one has ended and logs nothing more"
        raise UsageError([Problem("--previous", "", what, "Give --follow or --previous.")])
    job = await lookup.find(args.job)
    wish = LogWish(args.replica, args.tail, args.follow, args.previous)
    async with contextlib.aclosing(job.log(wish)) as lines:
        async for line in lines:
            print(line, flush=args.follow)
    return 0
