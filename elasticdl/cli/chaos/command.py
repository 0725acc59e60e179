"""The command line of `elasticdl chaos`, and what it prints while it runs."""

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
    Kind.TERMINATE: "terminated (SIGTERM)",
    Kind.CUT: "lost its",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("job", metavar="JOB", help="a running job of this machine, as `elasticdl list` shows it")
    parser.add_argument(
        "--seed", type=count, metavar="N", help="the seed of the schedule (default: a new one, which is printed)"
    )
    what = f"how many faults (default: {EVENTS}), spread over the records left unless --every or --seconds is given"
    parser.add_argument("--events", type=count, metavar="N", help=what)
    parser.add_argument("--seconds", type=seconds, metavar="S", help="stop injecting faults after this time")
    what = f"mean time between two faults (default with --seconds: {EVERY_SECONDS:g})"
    parser.add_argument("--every", type=seconds, metavar="SECONDS", help=what)
    what = "do not hit replicas of this role; may be repeated"
    parser.add_argument("--spare", choices=ROLES, action="append", default=[], help=what)
    what = "inject only this kind of fault; may be repeated (default: all kinds)"
    parser.add_argument("--kind", choices=[str(k) for k in Kind], action="append", default=[], help=what)
    what = f"longest pause of a replica (default: {LONGEST_PAUSE:g})"
    parser.add_argument("--longest_pause", type=seconds, metavar="SECONDS", default=LONGEST_PAUSE, help=what)
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the report to this file, as JSON")
    add_state_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Inject faults until the job has ended. 0: it succeeded and left nothing behind; else 1."""
    if sys.platform != "linux":
        raise UsageError([Problem("elasticdl chaos", "", "needs Linux: /proc and pidfd", "Run the job on Linux.")])
    job = JobLookup(state_dir_of(args)).find_here(args.job)
    problems = []
    if not job.running:
        problems.append(not_running(job, "Start it, and run this beside it."))
    if set(args.spare) == set(ROLES):
        problems.append(Problem("--spare", ", ".join(args.spare), "no role is left to hit", "Leave one of them out."))
    if args.report is not None and not args.report.absolute().parent.is_dir():
        problems.append(Problem("--report", str(args.report), "its directory does not exist", "Create it first."))
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
    console.print(
        f"Injecting faults into {job.name} with seed {plan.seed}; Ctrl-C ends the faults, and the job continues.",
        soft_wrap=True,
    )

    def tell(delivery: Delivery) -> None:
        console.print(Text(line_of(delivery)), soft_wrap=True)

    def show(status: pb.Status, coming: str) -> None:
        if live.is_started:
            live.update(Group(progress(status), Text(f"{status.phase}; {coming}", style="dim")), refresh=True)

    striking = asyncio.create_task(Striker(job, plan, tell, show).run())
    # No replica stays paused when this command is ended.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, striking.cancel)
    if is_live(console):
        live.start()
    try:
        report = await striking
    except asyncio.CancelledError:
        live.stop()
        console.print(f"No more faults; {job.name} continues.")
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
    """A fault as a line of its own."""
    at = time.strftime("%H:%M:%S", time.localtime(d.at))
    if d.not_delivered:
        return f"{at}  at {d.records_done:>9,} records  {d.role:<10}  {d.kind} not delivered: {d.not_delivered}"
    return f"{at}  at {d.records_done:>9,} records  {d.replica:<10}  {_SAYS[Kind(d.kind)]} {d.detail}".rstrip()
