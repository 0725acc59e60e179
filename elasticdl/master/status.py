"""What the master tells people: the state of the job in one message."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field

from elasticdl.core.replicas import State
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
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


def phase(job: ParameterServerMachine) -> str:
    if job.outcome:
        return job.outcome
    if job.servers.stopping:
        return "stopping"
    if job.shards.paused and job.servers.checkpoints.timeline > 1:
        return "going back"
    if job.shards.paused or (not job.shards.version and not job.shards.leased):
        return "starting"
    if job.closing.auditing and not job.closing.audited:
        return "auditing"
    if job.closing.exporting:
        return "exporting"
    if job.shards.trained_out:
        return "evaluating"
    return "training"


def status(job: ParameterServerMachine, chronicle: Chronicle, now: float, master_starts: int) -> pb.Status:
    shards = job.shards
    leases: dict[str, list[str]] = {}
    for s in sorted(shards.leased.values(), key=lambda s: s.turn):
        leases.setdefault(s.worker, []).append(f"{s.id} {s.next_batch}/{s.batches}")
    out = pb.Status(
        job=job.terms.job,
        phase=phase(job),
        reason=job.reason,
        records_done=shards.done_records,
        records_total=job.terms.plan.total_records,
        epoch=min(shards.epoch, job.terms.plan.epochs - 1),
        epochs=job.terms.plan.epochs,
        version=shards.version,
        version_total=job.terms.plan.total_versions,
        loss=job.loss or 0.0,
        has_loss=job.loss is not None,
        records_per_second=chronicle.records_per_second(),
        losses=job.replicas.losses,
        incidents=job.replicas.incidents,
        recovery_seconds=[r.seconds for r in job.recoveries if r.seconds is not None],
        bad_records=[b.name for b in shards.searches.bad_records],
        started_at=chronicle.started_at,
        now=now,
        output=job.closing.exported,
        audit=job.closing.audited,
        checkpoint=job.checkpoint,
        master_starts=master_starts,
        timeline=job.servers.checkpoints.timeline,
        repeated_batches=job.repeated,
        rollbacks=job.rollbacks,
        servers=len(job.servers.names),
        servers_wanted=job.servers.wanted,
        mode=job.terms.mode,
        skipped_batches=shards.skipped,
    )
    for version, metrics in job.evaluation.done:
        out.evaluations.add(version=version, metrics=json.loads(metrics))
    for r in job.replicas.replicas.values():
        shown = (
            "waiting for work" if r.state is State.JOINED and r.role == "worker" and r.name not in leases else r.state
        )
        out.replicas.add(
            name=r.name, role=r.role, state=shown, detail=r.detail, since=r.since, leases=leases.get(r.name, [])
        )
    for at, text in chronicle.decisions:
        out.decisions.add(at=at, text=text)
    for epoch, done in sorted(shards.done.items()):
        out.epochs_done.add(epoch=epoch, records=done.records, batches=done.batches)
    return out
