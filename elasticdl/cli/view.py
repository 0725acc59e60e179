"""How a job looks on a terminal: progress, replicas, evaluations and the last decisions, drawn from its status."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elasticdl.job.names import APP
from elasticdl.job.outcome import Outcome
from elasticdl.wire import control_pb2 as pb

BARS = "▁▂▃▄▅▆▇█"
LOSSES_KEPT = 40
STYLES = {
    "joined": "green",
    "waiting for work": "green",
    "launched": "yellow",
    "running": "yellow",
    "lost touch": "yellow",
    "stopping": "yellow",
    "gone": "red",
    "succeeded": "bold green",
    "stopped": "bold yellow",
    "failed": "bold red",
    "died": "bold red",
}
WORDS = {"launched": "starting", "running": "starting", "joined": "working"}  # the core's states, for people
_GONE_SHOWN, _EVALUATIONS_SHOWN, _DECISIONS_SHOWN, _CHANGES_SHOWN = 2, 4, 4, 3
CHANGE_PARTS = ("detect", "abort", "agree", "rebuild", "copy", "first_step", "total")  # of a world


def duration(seconds: float) -> str:
    """`0:01:23`"""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def number(value: float) -> str:
    """A whole number with its thousands marked, another one with six digits."""
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def sparkline(values: Sequence[float]) -> str:
    """A line of bars as high as the values, the lowest and the highest of them as limits."""
    finite = [v for v in values if abs(v) != float("inf") and v == v]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    steps = (high - low) / (len(BARS) - 1) or 1.0
    return "".join(BARS[round((v - low) / steps)] for v in finite)


def eta_seconds(status: pb.Status) -> float | None:
    """How long the rest takes at the present pace."""
    if status.phase != "training" or status.records_per_second <= 0:
        return None
    return (status.records_total - status.records_done) / status.records_per_second


class View:
    """Keeps what no status contains: the losses of the last minutes, and whether the master answers."""

    def __init__(self, job: str, hint: str = "") -> None:
        self.job, self.hint = job, hint
        self.status: pb.Status | None = None
        self.master_away = False
        self.stopping = ""  # text while the job stops
        self._losses: deque[float] = deque(maxlen=LOSSES_KEPT)
        self._began = self._heard = time.monotonic()

    def update(self, status: pb.Status | None) -> None:
        """Take in a status; None: the master does not answer."""
        self.master_away = status is None and self.status is not None
        if status is None:
            return
        if status.has_loss and (self.status is None or status.version > self.status.version):
            self._losses.append(status.loss)
        self.status, self._heard = status, time.monotonic()

    def render(self, height: int = 40) -> RenderableType:
        """Everything, in about `height` lines."""
        status = self.status
        if status is None:
            parts: list[RenderableType] = [self._header("starting", time.monotonic() - self._began)]
        else:
            over = status.phase in tuple(Outcome)
            ago = 0.0 if over else time.monotonic() - self._heard
            parts = [self._header(status.phase, status.now - status.started_at + ago), progress(status)]
            parts.append(self._figures(status))
            room = max(2, height - 8)
            parts += [part for part in (evaluations(status), replicas(status, room // 2)) if part is not None]
            if height > 20 and (changed := changes(status)) is not None:
                parts.append(changed)
            shown = decisions(status, _DECISIONS_SHOWN if height > 20 else 1)
            parts += [shown] if shown is not None else []
        if self.master_away:
            parts.append(Text("The master does not answer; waiting for it.", style="yellow"))
        if self.stopping or self.hint:
            parts.append(Text(self.stopping or self.hint, style="yellow" if self.stopping else "dim"))
        return Group(*parts)

    def _header(self, phase: str, elapsed: float) -> RenderableType:
        line = Table.grid(expand=True)
        line.add_column()
        line.add_column(justify="right")
        title = Text.assemble((self.job, "bold"), "  ", (phase, STYLES.get(phase, "cyan")))
        if self.status is not None and self.status.epochs > 1:
            title.append(f"  epoch {self.status.epoch + 1} of {self.status.epochs}")
        if self.status is not None and self.status.mode:
            title.append(f"  {self.status.mode}", style="dim")
        line.add_row(title, Text(duration(elapsed), style="dim"))
        return line

    def _figures(self, status: pb.Status) -> RenderableType:
        of = f" of {status.version_total:,}" if status.version_total else ""  # not always known beforehand
        text = Text(f"step {status.version:,}{of}")
        if status.has_loss:
            text.append(f"   loss {number(status.loss)} ").append(sparkline(self._losses), style="cyan")
        if status.records_per_second > 0:
            text.append(f"   {status.records_per_second:,.0f} records/s")
        if status.losses:
            text.append(f"   {status.losses} lost and replaced", style="yellow")
        if status.incidents:
            text.append(f"   {by_kind(status)}", style="yellow")
        if status.skipped_batches:
            text.append(f"   {status.skipped_batches:,} batches skipped (non-finite gradients)", style="red")
        if status.bad_records:
            text.append(f"   {len(status.bad_records)} bad records set aside", style="red")
        return text


def progress(status: pb.Status) -> RenderableType:
    """The bar over records, with what is left of it."""
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    total = status.records_total
    share = f"{status.records_done / total:.0%}" if total else "–"
    left = eta_seconds(status)
    text = f"{status.records_done:,} of {total:,} records  {share}" + (f"  {duration(left)} left" if left else "")
    line.add_row(ProgressBar(total=max(total, 1), completed=status.records_done), Text(text))
    return line


def evaluations(status: pb.Status) -> RenderableType | None:
    """The metrics of the last rounds."""
    if not status.evaluations:
        return None
    last = status.evaluations[-_EVALUATIONS_SHOWN:]
    metrics = sorted({name for e in last for name in e.metrics})
    table = _table("evaluation at step", *metrics)
    for e in last:
        table.add_row(f"{e.version:,}", *(number(e.metrics[m]) if m in e.metrics else "" for m in metrics))
    return table


def short_name(replica: str, job: str) -> str:
    """`worker-0` for `elasticdl-<job>-worker-0`."""
    return replica.removeprefix(f"{APP}-{job}-")


def replicas(status: pb.Status, room: int = 20) -> RenderableType | None:
    """The replicas and what they work on; of those that are gone, the last."""
    alive = [r for r in status.replicas if r.state != "gone"]
    gone = sorted((r for r in status.replicas if r.state == "gone"), key=lambda r: r.since)[-_GONE_SHOWN:]
    if not (alive or gone):
        return None
    table = _table("replica", "state", "since", "doing")
    shown = [*alive, *gone]
    for r in shown[: max(room, 3)]:
        doing = ", ".join(r.leases) or r.detail
        state = Text(WORDS.get(r.state, r.state), style=STYLES.get(r.state, ""))
        table.add_row(short_name(r.name, status.job), state, duration(status.now - r.since), first_line(doing))
    hidden = len(shown) - max(room, 3)
    if hidden > 0:
        table.add_row(f"and {hidden} more", "", "", "")
    return table


def changes(status: pb.Status, most: int = _CHANGES_SHOWN) -> RenderableType | None:
    """How long each part of the last changes of the world took."""
    if not status.changes:
        return None
    table = _table("world", *(part.replace("_", " ") for part in CHANGE_PARTS), "change")
    for change in status.changes[-most:]:
        parts = (f"{1e3 * getattr(change, part):,.0f} ms" for part in CHANGE_PARTS)
        who = change.who.replace(f"{APP}-{status.job}-", "")
        table.add_row(str(change.generation), *parts, who)
    return table


def decisions(status: pb.Status, most: int = _DECISIONS_SHOWN) -> RenderableType | None:
    """What was decided last, and why."""
    if not status.decisions:
        return None
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, style="dim", min_width=8)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for d in status.decisions[-most:]:
        table.add_row(time.strftime("%H:%M:%S", time.localtime(d.at)), Text(first_line(d.text)))
    return table


def first_line(text: str) -> str:
    return text.partition("\n")[0]


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False)
    for column in columns:
        table.add_column(column, no_wrap=column != "doing", overflow="ellipsis")
    return table


def by_kind(status: pb.Status) -> str:
    """`1 crashed, 2 preempted`: what happened to replicas, as the cluster reports it."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(status.incidents.items()))


def plain(status: pb.Status) -> str:
    """The status in one line, for logs."""
    parts = [status.phase, f"{status.records_done} of {status.records_total} records", f"step {status.version}"]
    if status.has_loss:
        parts.append(f"loss {number(status.loss)}")
    if status.records_per_second > 0:
        parts.append(f"{status.records_per_second:.0f} records/s")
    alive = [short_name(r.name, status.job) for r in status.replicas if r.state != "gone"]
    return ", ".join(parts) + (f"; {' '.join(alive)}" if alive else "")
