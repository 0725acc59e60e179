"""Layers on their way to or from a registry: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_SECONDS = 5.0
_MOVING = ("Pushing", "Downloading", "Extracting")
_UNTOLD = ("Preparing", "Waiting", "Pulling fs layer", "Verifying Checksum")
_DONE = ("Pushed", "Layer already exists", "Pull complete", "Already exists", "Mounted from")


class Layers:
    """Shows the progress of each layer of a push or a pull."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, tuple[str, float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.settle()

    def settle(self) -> None:
        """Leave the bars as they are; what follows is printed below."""
        if self._bars is not None:
            self._bars.stop()
        self._bars, self._tasks = None, {}

    def show(self, event: dict[str, Any]) -> None:
        """One event of the engine that has a status."""
        layer, status = str(event.get("id") or ""), str(event["status"])
        if not layer or status.startswith("Pulling from"):
            print(f"{layer}: {status}" if layer else status, flush=True)
        elif sys.stdout.isatty():
            self._bar(layer, status, event.get("progressDetail") or {})
        else:
            self._line(layer, status, event.get("progressDetail") or {})

    def _line(self, layer: str, status: str, detail: dict[str, Any]) -> None:
        last, when = self._said.get(layer, ("", 0.0))
        now = time.monotonic()
        if status.startswith(_UNTOLD) or (status == last and now - when < _LINE_SECONDS):
            return
        self._said[layer] = (status, now)
        moved = _amount(detail) if status in _MOVING else ""
        print(f"{layer}: {status}{moved}", flush=True)

    def _bar(self, layer: str, status: str, detail: dict[str, Any]) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        if self._bars is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TextColumn("{task.fields[status]}"),
            )
            self._bars = Progress(*columns)
            self._bars.start()
        if layer not in self._tasks:
            self._tasks[layer] = self._bars.add_task(layer, total=None, status=status)
        task = self._tasks[layer]
        total, current = detail.get("total"), detail.get("current")
        if current is not None:
            # The engine only guesses the size of what it packs while it sends.
            self._bars.update(task, total=max(total or 0, current) or None, completed=current)
        if status.startswith(_DONE):
            whole = self._bars.tasks[self._bars.task_ids.index(task)].total or 1
            self._bars.update(task, total=whole, completed=whole)
        self._bars.update(task, status=status)


def _amount(detail: dict[str, Any]) -> str:
    current, total = detail.get("current"), detail.get("total")
    if not current:
        return ""
    return f" {megabytes(current)}" + (f" of {megabytes(max(total, current))}" if total else "")


def megabytes(count: int) -> str:
    """As `docker images` counts: 1 MB is a million bytes."""
    if count < 1e6:
        return f"{count / 1e3:,.0f} kB"
    return f"{count / 1e6:,.1f} MB" if count < 1e8 else f"{count / 1e6:,.0f} MB"
