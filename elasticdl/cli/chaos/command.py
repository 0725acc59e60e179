"""The command line of `elasticdl chaos`, and what is seen while it runs."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

from elasticdl.cli.argument_types import count, seconds
from elasticdl.cli.chaos.schedule import LONGEST_PAUSE, ROLES, Kind, Plan, Timing
from elasticdl.cli.job import not_running
from elasticdl.cli.job_lookup import JobLookup, add_state_dir, state_dir_of
from elasticdl.cli.local_job import LocalJob
from elasticdl.errors import Problem, UsageError

if TYPE_CHECKING:
    from elasticdl.cli.chaos.report import Delivery

EVENTS = 10
EVERY_SECONDS = 5.0
_SAYS = {
    Kind.KILL: "killed (SIGKILL)",
    Kind.PAUSE: "paused (SIGSTOP)",
    Kind.TERMINATE: "told to go (SIGTERM)",
    Kind.CUT: "cut off:",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("job", metavar="JOB", help="a job that runs on this machine, as `elasticdl list` shows it")
    parser.add_argument("--seed", type=count, metavar="N", help="draws the schedule; by default a new one, printed")
    what = f"how many (default: {EVENTS}), spread over the records left to train unless --every or --seconds is given"
    parser.add_argument("--events", type=count, metavar="N", help=what)
    parser.add_argument("--seconds", type=seconds, metavar="S", help="stop disturbing the job after so long")
    what = f"mean pause between two events, by the clock (default with --seconds: {EVERY_SECONDS:g})"
    parser.add_argument("--every", type=seconds, metavar="SECONDS", help=what)
    what = "leave replicas of this role alone; may be given again"
    parser.add_argument("--spare", choices=ROLES, action="append", default=[], help=what)
    what = "do only this to them; may be given again (default: all of them)"
    parser.add_argument("--kind", choices=[str(k) for k in Kind], action="append", default=[], help=what)
    what = f"for how long a replica is paused at most (default: {LONGEST_PAUSE:g})"
    parser.add_argument("--longest_pause", type=seconds, metavar="SECONDS", default=LONGEST_PAUSE, help=what)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report there too, as JSON")
    add_state_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Disturb the job until it has ended. 0: it succeeded and left nothing behind; 1: not so."""
    if sys.platform != "linux":
        raise UsageError([Problem("elasticdl chaos", "", "needs Linux: /proc and pidfd", "Run the job on Linux.")])
    job = JobLookup(state_dir_of(args)).find_here(args.job)
    problems = []
    if not job.running:
        problems.append(not_running(job, "Start it, and run this beside it."))
    if set(args.spare) == set(ROLES):
        problems.append(
            Problem("--spare", ", ".join(args.spare), "nobody is left to disturb", "Leave one of them out.")
        )
    if args.report is not None and not args.report.absolute().parent.is_dir():
        problems.append(Problem("--report", str(args.report), "its directory is not there", "Make it first."))
    if problems:
        raise UsageError(problems)
    return asyncio.run(_run(job, plan_of(args), args.report))


def plan_of(args: argparse.Namespace) -> Plan:
    """The schedule that the arguments ask for."""
    seed = args.seed if args.seed is not None else SystemRandom().randrange(1_000_000)
    by_clock = args.every is not None or args.seconds is not None
    events = args.events if args.events is not None or args.seconds is not None else EVENTS
    timing = Timing(events, (args.every or EVERY_SECONDS) if by_clock else None, args.seconds)
    roles = [role for role in ROLES if role not in args.spare]
    return Plan(seed, timing, roles, [Kind(k) for k in args.kind] or list(Kind), args.longest_pause)


async def _run(job: LocalJob, plan: Plan, report_file: Path | None) -> int:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from elasticdl.cli.chaos.striking import Striker
    from elasticdl.cli.screen import is_live, make_console
    from elasticdl.cli.view import progress
    from elasticdl.wire import control_pb2 as pb

    console = make_console()
    live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
    console.print(f"Disturbing {job.name} with seed {plan.seed}; Ctrl-C leaves it alone again.", soft_wrap=True)

    def tell(delivery: Delivery) -> None:
        console.print(Text(line_of(delivery)), soft_wrap=True)

    def show(status: pb.Status, coming: str) -> None:
        if live.is_started:
            live.update(Group(progress(status), Text(f"{status.phase}; {coming}", style="dim")), refresh=True)

    striking = asyncio.create_task(Striker(job, plan, tell, show).run())
    # Whoever is paused must not stay so because somebody ends this command.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, striking.cancel)
    if is_live(console):
        live.start()
    try:
        report = await striking
    except asyncio.CancelledError:
        live.stop()
        console.print(f"{job.name} is left alone, and goes on.")
        if asyncio.current_task().cancelling():  # type: ignore[union-attr] # by Ctrl-C
            raise
        return 128 + signal.SIGTERM
    finally:
        live.stop()
    report.show(console)
    if report_file is not None:
        report.write(report_file)
    return 0 if report.passed else 1


def line_of(d: Delivery) -> str:
    """An event as a line of its own."""
    at = time.strftime("%H:%M:%S", time.localtime(d.at))
    if d.not_delivered:
        return f"{at}  at {d.records_done:>9,} records  {d.role:<10}  {d.kind} not delivered: {d.not_delivered}"
    return f"{at}  at {d.records_done:>9,} records  {d.replica:<10}  {_SAYS[Kind(d.kind)]} {d.detail}".rstrip()
