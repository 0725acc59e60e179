"""What a job came to: the lines printed at its end, and its status as plain JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table
from rich.text import Text

from elasticdl.cli.view import CHANGE_PARTS, STYLES, by_kind, duration, number, short_name
from elasticdl.job.outcome import Outcome
from elasticdl.wire import control_pb2 as pb


def status_of(result: Mapping[str, Any]) -> pb.Status:
    """The last status in a job's result; an empty one where there is none."""
    try:
        return ParseDict(result.get("status", {}), pb.Status(), ignore_unknown_fields=True)
    except ParseError:  # written by another version
        return pb.Status()


def rows(result: Mapping[str, Any], logs: Path | str, remedies: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The summary as (label, text)."""
    s = status_of(result)
    found: list[tuple[str, str]] = []
    if s.records_total:
        found.append(("steps", f"{s.version:,}"))
        epochs = f", {s.epochs} epochs" if s.epochs > 1 else ""
        found.append(("records trained", f"{s.records_done:,} of {s.records_total:,}{epochs}"))
        if s.mode:
            found.append(("mode", s.mode))
        if s.has_loss:
            found.append(("last loss", number(s.loss)))
    if s.audit:
        found.append(("audit", s.audit))
    if s.evaluations:
        last = s.evaluations[-1]
        metrics = ", ".join(f"{name} {number(value)}" for name, value in sorted(last.metrics.items()))
        found.append(("metrics", f"{metrics} (at step {last.version:,})"))
    if s.skipped_batches:
        found.append(("batches skipped", f"{s.skipped_batches:,}, with non-finite gradients"))
    if s.losses:
        found.append(("replicas lost and replaced", str(s.losses)))
    if s.incidents:
        found.append(("incidents", by_kind(s)))
    if s.rollbacks:
        found.append(("rollbacks", f"{s.rollbacks}, {s.repeated_batches:,} steps trained again"))
    if s.recovery_seconds:
        median, most = statistics.median(s.recovery_seconds), max(s.recovery_seconds)
        found.append(("recovery", f"median {median:.2f} s, longest {most:.2f} s"))
    if s.master_starts > 1:
        found.append(("master restarted", f"{s.master_starts - 1} times" if s.master_starts > 2 else "once"))
    if s.bad_records:
        found.append(("bad records set aside", ", ".join(s.bad_records)))
    if s.output:
        found.append(("model", s.output))
    if s.checkpoint:
        found.append(("checkpoint", s.checkpoint))
    if "elapsed_seconds" in result:
        found.append(("time", duration(result["elapsed_seconds"])))
    return [*found, *(("remedy", remedy) for remedy in remedies), ("logs", str(logs))]


def show(console: Console, job: str, result: Mapping[str, Any], logs: Path | str, remedies: Sequence[str] = ()) -> None:
    """Print how the job ended: aligned lines, in colour on a terminal."""
    outcome, reason = str(result.get("outcome")), str(result.get("reason", ""))
    show_end(console, job, outcome, reason, rows(result, logs, remedies))


def show_end(console: Console, job: str, outcome: str, reason: str, table: Sequence[tuple[str, str]]) -> None:
    first, _, rest = reason.partition("\n")
    line = Text.assemble((job, "bold"), " ", (outcome, STYLES.get(outcome, "")), f": {first}" if first else "")
    console.print(line, soft_wrap=True)
    if rest:
        console.print(Text(rest, style="red" if outcome == Outcome.FAILED else ""), soft_wrap=True)
    width = max(len(label) for label, _ in table)
    for label, text in table:
        console.print(Text.assemble((f"  {label:<{width}}  ", "dim"), text), soft_wrap=True)


def status_json(status: pb.Status) -> dict[str, Any]:
    """A status with plain numbers; protobuf's own JSON writes large integers as text and leaves out zeros."""
    first = "job phase reason records_done records_total epoch epochs version version_total mode skipped_batches"
    last = "bad_records started_at now output checkpoint master_starts audit"
    return {
        **_fields(status, first),
        "loss": _finite(status.loss) if status.has_loss else None,
        "records_per_second": _finite(status.records_per_second),
        "evaluations": [
            {"version": e.version, "metrics": {name: _finite(value) for name, value in e.metrics.items()}}
            for e in status.evaluations
        ],
        "epochs_done": [_fields(e, "epoch records batches") for e in status.epochs_done],
        "replicas": [
            {"short_name": short_name(r.name, status.job), **_fields(r, "name role state detail since leases")}
            for r in status.replicas
        ],
        "decisions": [_fields(d, "at text") for d in status.decisions],
        "incidents": dict(status.incidents),
        **_fields(status, "losses timeline rollbacks repeated_batches servers recovery_seconds"),
        "changes": [
            {
                **_fields(w, "generation at who why copied_bytes"),
                **{f"{part}_seconds": getattr(w, part) for part in CHANGE_PARTS},
            }
            for w in status.changes
        ],
        **_fields(status, last),
    }


def _fields(message: Message, names: str) -> dict[str, Any]:
    values = ((name, getattr(message, name)) for name in names.split())
    return {name: value if isinstance(value, (str, int, float)) else list(value) for name, value in values}


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None


def table_of(*columns: str) -> Table:
    """A table without lines, wide enough for what is in it."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table
