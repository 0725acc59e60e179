"""What the user sees while a job runs: a live view on a terminal, the master's log lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import IO, Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from elasticdl.cli.job_logs import HEADER
from elasticdl.cli.master_client import MasterClient
from elasticdl.cli.tail import Changes, LogReader
from elasticdl.cli.view import View
from elasticdl.errors import WireError

_FRAME_SECONDS = 0.25
_PLAIN_COLUMNS = 120  # where no terminal says how wide it is


class Screen(Protocol):
    """Where a running job is shown."""

    def tell(self, text: str) -> None:
        """Show a line that stays."""

    def stopping(self, text: str) -> None:
        """Show this text from now on, while the job stops."""

    async def follow(self) -> None:
        """Show the job until it ends or this is cancelled."""

    def close(self) -> None:
        """Show the last lines, and restore the terminal."""


class SturdyOutput:
    """Standard output that may break: a job continues when its terminal or `| head` is closed."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        return len(text)

    def flush(self) -> None:
        self.write("")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def make_console() -> Console:
    """A console on standard output."""
    output: Any = SturdyOutput(sys.stdout)
    console = Console(file=output, highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = _PLAIN_COLUMNS
    return console


def is_live(console: Console) -> bool:
    """Whether a view can be drawn and redrawn here."""
    return console.is_terminal and not console.is_dumb_terminal


class PlainScreen:
    """The master's log, line by line."""

    def __init__(self, console: Console, log: Path) -> None:
        self._console, self._log = console, LogReader(log)

    def tell(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def stopping(self, text: str) -> None:
        self.tell(text)

    async def follow(self) -> None:
        with Changes(self._log.path.parent) as changes:
            while True:
                self._forward()
                await changes.wait()

    def _forward(self) -> None:
        for line in self._log.new_lines():
            if not line.startswith(HEADER):
                self.tell(line)

    def close(self) -> None:
        self._forward()
        for line in self._log.last_line():
            self.tell(line)


class LiveScreen:
    """A view that is redrawn in place, below the lines that stay."""

    def __init__(self, console: Console, view: View, client: MasterClient) -> None:
        self._console, self.view, self._client = console, view, client
        self._changed = asyncio.Event()
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)

    def tell(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def stopping(self, text: str) -> None:
        self.view.stopping = text
        self._changed.set()

    async def follow(self) -> None:
        self._live.start()
        hearing = asyncio.create_task(self._hear())
        try:
            while not hearing.done():
                self._live.update(self.view.render(self._console.height), refresh=True)
                with contextlib.suppress(TimeoutError):  # without news, redraw the clock
                    await asyncio.wait_for(self._changed.wait(), _FRAME_SECONDS)
                self._changed.clear()
            await hearing
        finally:
            hearing.cancel()

    async def _hear(self) -> None:
        try:
            async with contextlib.aclosing(self._client.watch()) as statuses:
                async for status in statuses:
                    self.view.update(status)
                    self._changed.set()
        except WireError as error:
            self.tell(f"The live view ended: {error}")

    def close(self) -> None:
        self._live.stop()
