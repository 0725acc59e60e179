"""`elasticdl status JOB`: shows a job; with --watch, until it ends."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
from typing import TYPE_CHECKING

from elasticdl.cli import job_lookup
from elasticdl.cli.job import Job, as_json, last_status
from elasticdl.cli.job_lookup import JobLookup
from elasticdl.errors import Unreachable

if TYPE_CHECKING:
    from rich.console import Console

    from elasticdl.cli.master_client import MasterClient
    from elasticdl.wire import control_pb2 as pb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job_lookup.add_job(parser)
    parser.add_argument("--watch", action="store_true", help="show the job until it ends")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    job_lookup.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return job_lookup.run(_status, args)


async def _status(args: argparse.Namespace, lookup: JobLookup) -> int:
    from elasticdl.cli.screen import make_console

    job = await lookup.find(args.job)
    if args.watch and job.running:
        if job.note and not args.json:  # else nothing would be printed while it waits
            _show(make_console(), job, None, "")
        await _watch(job, as_lines_of_json=args.json)
        job = await job.again()
    status, silence = None, ""
    try:
        status = await last_status(job, job.answer_seconds)
    except Unreachable as error:  # not started yet, or between two lives
        silence, job = str(error), await job.again()
        if not job.running:  # it has ended meanwhile
            status = await last_status(job, job.answer_seconds)
    if args.json:
        print(json.dumps(as_json(job, status), indent=None if args.watch else 1, allow_nan=False))
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
        what = "its master does not answer yet" if job.state == "running" else "nothing has started yet"
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


async def _watch(job: Job, as_lines_of_json: bool) -> None:
    """Show the job until it ends: a live view, or a line per change where there is no terminal."""
    from elasticdl.cli.screen import LiveScreen, is_live, make_console
    from elasticdl.cli.view import View

    console = make_console()
    async with job.reach() as client:
        screen = None
        if is_live(console) and not as_lines_of_json:
            screen = LiveScreen(console, View(job.name, "Ctrl-C leaves this view; the job continues."), client)
        showing = asyncio.create_task(screen.follow() if screen is not None else _print(client, as_lines_of_json))
        over = asyncio.create_task(job.ended())
        try:
            # The master ends with its job: the view alone would wait for another master.
            await asyncio.wait({showing, over}, return_when=asyncio.FIRST_COMPLETED)
            await over
        finally:
            showing.cancel()
            over.cancel()
            await asyncio.wait({showing, over})
            if screen is not None:
                screen.close()


async def _print(client: MasterClient, as_lines_of_json: bool) -> None:
    from elasticdl.cli.summary import status_json
    from elasticdl.cli.view import plain

    last = ""
    async with contextlib.aclosing(client.watch()) as statuses:
        async for status in statuses:
            line = "the master does not answer" if status is None else plain(status)
            if line == last or (status is None and not last):  # it is being reached
                continue
            last = line
            if not as_lines_of_json:
                print(line, flush=True)
            elif status is not None:
                print(json.dumps(status_json(status), allow_nan=False), flush=True)
