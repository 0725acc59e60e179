"""What the master of an all-reduce job tells people: its state in one message."""

from __future__ import annotations

import json

from elasticdl.core.replicas import State
from elasticdl.master.status import Chronicle
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.strategies.allreduce.core.membership import Phase
from elasticdl.wire import control_pb2 as pb

CHANGES_SHOWN = 10


def world_phase(job: AllreduceMachine) -> str:
    if job.outcome:
        return job.outcome
    if job.saves.stopping:
        return "stopping"
    if not job.step and not job.membership.training:
        return "starting"
    if job.closing.exporter and not job.closing.over:
        return "exporting"
    if job.trained_out:
        return "evaluating"
    return "training" if job.membership.phase is not Phase.NONE else "waiting for workers"


def world_status(job: AllreduceMachine, chronicle: Chronicle, now: float, master_starts: int) -> pb.Status:
    at, membership = job.progress(), job.membership
    out = pb.Status(
        job=job.terms.job,
        phase=world_phase(job),
        reason=job.reason,
        records_done=at.records,
        records_total=at.total_records,
        epoch=at.epoch,
        epochs=at.epochs,
        version=at.version,
        version_total=at.total_versions,
        loss=at.loss or 0.0,
        has_loss=at.loss is not None,
        records_per_second=chronicle.records_per_second(),
        losses=job.replicas.losses,
        incidents=job.replicas.incidents,
        recovery_seconds=[r.seconds for r in job.recoveries if r.seconds is not None],
        bad_records=[b.name for b in job.bad_records],
        started_at=chronicle.started_at,
        now=now,
        output=job.closing.exported,
        audit=job.closing.audited,
        checkpoint=job.checkpoint,
        master_starts=master_starts,
        repeated_batches=job.repeated,
        mode=job.terms.mode,
        generation=membership.generation,
        world=membership.members,
    )
    for change in job.changes.done[-CHANGES_SHOWN:]:
        parts = {name.replace(" ", "_"): seconds for name, seconds in change.parts.items()}
        out.changes.add(
            generation=change.generation, at=change.began, who=change.who, why="; ".join(change.why),
            total=change.seconds, copied_bytes=change.copied_bytes, **parts,
        )  # fmt: skip
    for version, metrics in job.evaluations:
        out.evaluations.add(version=version, metrics=json.loads(metrics))
    for r in job.replicas.replicas.values():
        shown: str = r.state
        if r.state is State.JOINED:
            shown = _seat(job, r.name)
        out.replicas.add(name=r.name, role=r.role, state=shown, detail=r.detail, since=r.since)
    for when, text in chronicle.decisions:
        out.decisions.add(at=when, text=text)
    plan = job.terms.plan
    for epoch in range(at.epoch + 1):
        done = min(max(0, job.records - epoch * plan.records), plan.records)
        if done:
            out.epochs_done.add(epoch=epoch, records=done, batches=0 if plan.share else plan.steps_in(epoch, job.step))
    return out


def _seat(job: AllreduceMachine, name: str) -> str:
    m = job.membership
    if name not in m.members or m.phase is Phase.NONE:
        return "standby" if job.terms.standby else "ready"
    rank = f"rank {m.members.index(name)} of {len(m.members)}"
    return rank if name in m.formed else f"{rank}, joining"
