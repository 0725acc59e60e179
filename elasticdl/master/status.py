"""The state of a job in one message, for people."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from elasticdl.core.machine import Recovery
from elasticdl.core.plan import BadRecord
from elasticdl.master.side import Side
from elasticdl.wire import control_pb2 as pb

RATE_SECONDS = 30.0
KEPT_DECISIONS = 200


@dataclass
class Chronicle:
    """What the status needs besides the job's state: recent decisions and the recent pace."""

    started_at: float
    decisions: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=KEPT_DECISIONS))
    pace: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, text: str) -> None:
        self.decisions.append((now, text))

    def progress(self, now: float, records: int) -> None:
        if self.pace and records < self.pace[-1][1]:  # the job went back to a checkpoint
            self.pace.clear()
        self.pace.append((now, records))
        while len(self.pace) > 2 and now - self.pace[0][0] > RATE_SECONDS:
            self.pace.popleft()

    def records_per_second(self) -> float:
        if len(self.pace) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self.pace[0], self.pace[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0


def phase(side: Side[Any]) -> str:
    return side.machine.outcome or side.phase()


def status(side: Side[Any], chronicle: Chronicle, now: float, master_starts: int) -> pb.Status:
    machine, at = side.machine, side.machine.progress()
    out = pb.Status(
        job=machine.terms.job,
        mode=machine.terms.mode,
        phase=phase(side),
        reason=machine.reason,
        records_done=at.records,
        records_total=at.total_records,
        epoch=at.epoch,
        epochs=at.epochs,
        version=at.version,
        version_total=at.total_versions,
        loss=at.loss or 0.0,
        has_loss=at.loss is not None,
        records_per_second=chronicle.records_per_second(),
        losses=machine.replicas.losses,
        incidents=machine.replicas.incidents,
        started_at=chronicle.started_at,
        now=now,
        master_starts=master_starts,
    )
    for r in machine.replicas.replicas.values():
        out.replicas.add(name=r.name, role=r.role, state=r.state, detail=r.detail, since=r.since)
    for when, text in chronicle.decisions:
        out.decisions.add(at=when, text=text)
    side.describe(out)
    return out


class Trains(Protocol):
    """A machine of a job that trains a model and saves it."""

    recoveries: list[Recovery]
    repeated: int
    checkpoint: str


def add_training(
    out: pb.Status, machine: Trains, evaluations: Iterable[tuple[int, str]], bad_records: Iterable[BadRecord]
) -> None:
    """Facts about the training, in strategies that train a model."""
    out.recovery_seconds.extend(r.seconds for r in machine.recoveries if r.seconds is not None)
    out.bad_records.extend(b.name for b in bad_records)
    out.repeated_batches, out.checkpoint = machine.repeated, machine.checkpoint
    for version, metrics in evaluations:
        out.evaluations.add(version=version, metrics=json.loads(metrics))
