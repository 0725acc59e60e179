"""What only a parameter-server job has to tell of itself."""

from __future__ import annotations

from elasticdl.core.replicas import State
from elasticdl.master.status import add_training
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
from elasticdl.wire import control_pb2 as pb


def phase(job: ParameterServerMachine) -> str:
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


def describe(job: ParameterServerMachine, out: pb.Status) -> None:
    add_training(out, job, job.evaluation.done, job.shards.searches.bad_records)
    out.timeline, out.rollbacks = job.servers.checkpoints.timeline, job.rollbacks
    out.servers, out.servers_wanted = len(job.servers.names), job.servers.wanted
    out.output, out.audit = job.closing.exported, job.closing.audited
    out.skipped_batches = job.shards.skipped
    leases: dict[str, list[str]] = {}
    for s in sorted(job.shards.leased.values(), key=lambda s: s.turn):
        leases.setdefault(s.worker, []).append(f"{s.id} {s.next_batch}/{s.batches}")
    for r in out.replicas:
        r.leases.extend(leases.get(r.name, []))
        if r.state == State.JOINED and r.role == "worker" and not r.leases:
            r.state = "waiting for work"
    for epoch, done in sorted(job.shards.done.items()):
        out.epochs_done.add(epoch=epoch, records=done.records, batches=done.batches)
