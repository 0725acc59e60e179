"""`elasticdl train` on this machine: checks everything, runs the job, shows it and its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from elasticdl.cli import summary
from elasticdl.cli.interrupts import Interrupts
from elasticdl.cli.job_dir import PREVIOUS, Claim, claim, write_private
from elasticdl.cli.launcher import Launcher, Order, Result, write_result
from elasticdl.cli.local_job import LocalJob, look
from elasticdl.cli.resume import resume_command
from elasticdl.cli.screen import LiveScreen, PlainScreen, Screen, is_live, make_console
from elasticdl.cli.view import View
from elasticdl.cluster.checking import check
from elasticdl.errors import Problem, UsageError
from elasticdl.job import names
from elasticdl.job.outcome import Outcome
from elasticdl.job.resolve import Resolved
from elasticdl.job.spec import JobSpec
from elasticdl.master import preflight
from elasticdl.wire.auth import Keys

STOPPED_BY_COMMAND = 143  # as if by SIGTERM: a job that was stopped is not done


def run(resolved: Resolved, token: str | None = None) -> int:
    """Run a resolved job here. 0: succeeded, 1: failed, 2: never started, 128 + n: stopped by signal n.

    `token` is the job's secret; by default a new one.
    """
    return asyncio.run(_run(resolved, token))


@dataclass
class Prepared:
    """Everything a job needs before its first process starts."""

    spec: JobSpec
    paths: names.JobPaths
    claim: Claim
    port: socket.socket
    datasets: dict[str, Any]
    checkpoint: Path | None
    notes: list[str]


async def _run(resolved: Resolved, token: str | None) -> int:
    spec = resolved.require()
    console = make_console()
    with Interrupts() as interrupts, contextlib.ExitStack() as held:
        _introduce(console, resolved)
        preparing = asyncio.create_task(_prepare(spec, console, held))
        interrupted = asyncio.create_task(interrupts.first.wait())
        await asyncio.wait({preparing, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        if not preparing.done():
            preparing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await preparing
            console.print("Interrupted; nothing was started.")
            return interrupts.exit_code
        prepared = preparing.result()
        for note in prepared.notes:
            console.print(note, soft_wrap=True)
        return await _launch(prepared, console, interrupts, token)


def _introduce(console: Console, resolved: Resolved) -> None:
    for line in (*resolved.decisions, *resolved.notes):
        console.print(line, soft_wrap=True)


# Before anything starts.


async def _prepare(spec: JobSpec, console: Console, held: contextlib.ExitStack) -> Prepared:
    """Check everything; raises UsageError with every problem that was found."""
    paths = names.JobPaths(Path(str(spec.state_dir)), str(spec.job_name))
    before = look(paths)
    problems: list[Problem] = []
    claimed: Claim | None = None
    try:
        claimed = claim(paths)
        held.callback(claimed.release)
    except UsageError as error:
        problems += error.problems
    port, wrong = preflight.reserve_port(spec.master_port)
    problems += wrong
    if port is not None:
        held.callback(port.close)
    wrong, notes = preflight.check_output(spec)
    problems += [*wrong, *preflight.check_checkpoint_dir(spec)]
    checkpoint, wrong, damaged = preflight.find_checkpoint(spec)
    notes += damaged
    problems += wrong
    with _busy(console, "checking model and data") as doing:
        checked = await check(spec, lambda line: console.print(line, soft_wrap=True), doing)
    problems += checked.problems
    notes += checked.notes
    if checkpoint is not None and "training" in checked.datasets:
        problems += preflight.check_data_of_checkpoint(spec, checkpoint, checked.datasets)
    if problems or claimed is None or port is None:
        raise UsageError(problems)
    if Path(str(spec.checkpoint_dir)) != paths.checkpoint:  # no other job uses its own one
        problems = preflight.claim_checkpoint_dir(spec, held)
        if problems:
            raise UsageError(problems)
    if checkpoint is not None:
        spec = spec.with_values(checkpoint_dir_for_init=str(checkpoint))
        notes.append(f"Starting from the checkpoint in {checkpoint}.")
    notes += _reuse(before)
    return Prepared(spec, paths, claimed, port, checked.datasets, checkpoint, notes)


def _reuse(before: LocalJob) -> list[str]:
    if before.state == "died" and not before.paths.job_file.exists():
        return []
    kept = before.paths.root / PREVIOUS
    return [f"An earlier job {before.name} ({before.state}) is kept in {kept} until the name is used again."]


@contextlib.contextmanager
def _busy(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal, whose text can be changed; nothing elsewhere."""
    if is_live(console):
        with console.status(f"{what} …") as status:
            yield lambda text: status.update(f"{text} …")
    else:
        yield lambda text: None


# While it runs, and after.


async def _launch(prepared: Prepared, console: Console, interrupts: Interrupts, token: str | None) -> int:
    spec, paths = prepared.spec, prepared.paths
    token = prepared.claim.begin(spec.to_json(), prepared.checkpoint, token)
    write_private(paths.datasets, json.dumps(prepared.datasets))
    keys = Keys.new() if spec.encrypt_data_plane else None
    order = Order(spec, paths, token, prepared.port.getsockname()[1], keys)
    screen = _screen(console, order)
    launcher = Launcher(order, interrupts, screen.tell, screen.stopping)
    await launcher.start()
    following = asyncio.create_task(screen.follow())
    try:
        result = await launcher.run()
    finally:
        following.cancel()
        await asyncio.wait({following})
        screen.close()
        broken = None if following.cancelled() else following.exception()
        if broken is not None:  # training goes on without a view
            screen.tell(f"The live view failed: {broken!r}")
    code = _exit_code(result, interrupts)
    result["exit_code"] = code
    write_result(paths, result)
    _conclude(console, prepared, result)
    return code


def _screen(console: Console, order: Order) -> Screen:
    job = order.paths.job_name
    if not is_live(console):
        return PlainScreen(console, order.paths.log(names.replica_name(job, names.MASTER)))
    hint = f"Ctrl-C stops with a checkpoint, twice without. Logs: {order.paths.logs}"
    return LiveScreen(console, View(job, hint), order.client)


def _exit_code(result: Result, interrupts: Interrupts) -> int:
    match result["outcome"]:
        case Outcome.SUCCEEDED:
            return 0
        case Outcome.STOPPED:
            return interrupts.exit_code or STOPPED_BY_COMMAND
    return 1


def _conclude(console: Console, prepared: Prepared, result: Result) -> None:
    summary.show(console, prepared.paths.job_name, result, prepared.paths.logs)
    checkpoint = summary.status_of(result).checkpoint
    if result["outcome"] == Outcome.STOPPED and checkpoint:
        console.print("Resume it with")
        console.print(f"  {resume_command(prepared.spec, Path(checkpoint))}", soft_wrap=True)
