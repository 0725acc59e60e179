"""What only an all-reduce job has to tell of itself."""

from __future__ import annotations

from elasticdl.core.replicas import State
from elasticdl.master.status import add_training
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.strategies.allreduce.core.membership import Phase
from elasticdl.wire import control_pb2 as pb

CHANGES_SHOWN = 10


def phase(job: AllreduceMachine) -> str:
    if job.saves.stopping:
        return "stopping"
    if not job.step and not job.membership.training:
        return "starting"
    if job.closing.exporter and not job.closing.over:
        return "exporting"
    if job.trained_out:
        return "evaluating"
    return "training" if job.membership.phase is not Phase.NONE else "waiting for workers"


def describe(job: AllreduceMachine, out: pb.Status) -> None:
    add_training(out, job, job.evaluations, job.bad_records)
    out.output, out.audit = job.closing.exported, job.closing.audited
    out.generation = job.membership.generation
    out.world.extend(job.membership.members)
    for change in job.changes.done[-CHANGES_SHOWN:]:
        parts = {name.replace(" ", "_"): seconds for name, seconds in change.parts.items()}
        out.changes.add(
            generation=change.generation, at=change.began, who=change.who, why="; ".join(change.why),
            total=change.seconds, copied_bytes=change.copied_bytes, **parts,
        )  # fmt: skip
    for r in out.replicas:
        if r.state == State.JOINED:
            r.state = _seat(job, r.name)
    plan = job.terms.plan
    for epoch in range(out.epoch + 1):
        done = min(max(0, job.records - epoch * plan.records), plan.records)
        if done:
            out.epochs_done.add(epoch=epoch, records=done, batches=0 if plan.share else plan.steps_in(epoch, job.step))


def _seat(job: AllreduceMachine, name: str) -> str:
    m = job.membership
    if name not in m.members or m.phase is Phase.NONE:
        return "standby" if job.terms.standby else "ready"
    rank = f"rank {m.members.index(name)} of {len(m.members)}"
    return rank if name in m.formed else f"{rank}, joining"
