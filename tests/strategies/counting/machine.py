"""The machine of a job that only counts: shards go to workers, come back from those that are lost, and are done."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.machine import Progress
from elasticdl.core.plan import Plan
from elasticdl.core.replicas import Budget, Replicas
from elasticdl.core.shards import Shards, WorkerLost
from elasticdl.job.outcome import Outcome


@dataclass(frozen=True)
class CountingTerms:
    job: str
    plan: Plan
    budget: Budget
    mode: str


@dataclass
class CountingMachine:
    terms: CountingTerms
    replicas: Replicas
    shards: Shards
    outcome: Outcome | None = None
    reason: str = ""
    parting: bool = False

    def handle(self, event: e.Event, now: float) -> list[c.Command]:
        if self.outcome:
            return []
        news = isinstance(event, e.ReplicaGone) and self.replicas.concerns(event.name, event.uid)
        out = self.replicas.handle(event, now)
        lost = [(x.name, x.reason) for x in out if isinstance(x, c.StopReplica)]
        lost += [(event.name, event.reason)] if isinstance(event, e.ReplicaGone) and news else []
        for name, reason in lost:
            out += self.shards.handle(WorkerLost(name, reason), now)
        if isinstance(event, e.StopRequested):
            out.append(c.FinishJob(Outcome.STOPPED, event.reason))
        elif not isinstance(event, e.ReplicaGone):
            out += self.shards.handle(event, now)
        if self.shards.trained_out:
            out.append(c.FinishJob(Outcome.SUCCEEDED, f"all {self.shards.done_records} records are counted"))
        for end in [x for x in out if isinstance(x, c.FinishJob)][:1]:
            self.outcome, self.reason, self.replicas.finished = end.outcome, end.reason, True
        return out

    def deadline(self) -> float | None:
        return self.replicas.deadline()

    def progress(self) -> Progress:
        plan, shards = self.terms.plan, self.shards
        epoch, done = min(shards.epoch, plan.epochs - 1), shards.done_records
        return Progress(done, plan.total_records, shards.version, plan.total_versions, epoch, plan.epochs, None)

    def refused(self, role: str, count: int) -> str:
        return "the workers that count stay as many as they are"
