"""`elasticdl status --watch`: another look at a job that runs."""

from __future__ import annotations

import asyncio
import contextlib
import json

from elasticdl.cli.job import Job
from elasticdl.cli.master_client import MasterClient
from elasticdl.cli.screen import LiveScreen, is_live, make_console
from elasticdl.cli.summary import status_json
from elasticdl.cli.view import View, plain


async def watch(job: Job, as_json: bool) -> None:
    """Show the job until it ends: a live view, or a line per change where there is no terminal."""
    console = make_console()
    async with job.reach() as client:
        screen = None
        if is_live(console) and not as_json:
            screen = LiveScreen(console, View(job.name, "Ctrl-C leaves this view; the job goes on."), client)
        showing = asyncio.create_task(screen.follow() if screen is not None else _print(client, as_json))
        over = asyncio.create_task(job.ended())
        try:
            # A job that ends takes its master along: the view alone would wait for another one.
            await asyncio.wait({showing, over}, return_when=asyncio.FIRST_COMPLETED)
            await over
        finally:
            showing.cancel()
            over.cancel()
            await asyncio.wait({showing, over})
            if screen is not None:
                screen.close()


async def _print(client: MasterClient, as_json: bool) -> None:
    last = ""
    async with contextlib.aclosing(client.watch()) as statuses:
        async for status in statuses:
            line = "the master is away" if status is None else plain(status)
            if line == last or (status is None and not last):  # it is being reached
                continue
            last = line
            if not as_json:
                print(line, flush=True)
            elif status is not None:
                print(json.dumps(status_json(status), allow_nan=False), flush=True)
