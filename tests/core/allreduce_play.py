"""An all-reduce job played with obedient workers: events in, commands out."""

from __future__ import annotations

import json
from typing import Any

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.replicas import PREEMPTED, Budget
from elasticdl.core.steps import StepPlan
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.strategies.allreduce.core.membership import LAST_CALL_SECONDS, NOTHING
from elasticdl.strategies.allreduce.core.terms import AllreduceTerms
from tests.core.invariants import check_replicas

W = [f"elasticdl-j-worker-{index}" for index in range(8)]


def of(kind: type[c.Command], commands: list[c.Command]) -> list[Any]:
    return [x for x in commands if isinstance(x, kind)]


class Play:
    """A job with obedient workers; 40 records in steps of 4 are 10 steps."""

    def __init__(self, workers: int = 2, records: int = 40, max_step: int = 0, **terms: Any) -> None:
        plan = StepPlan(records, 4, 8, 1, max_step)
        terms.setdefault("budget", Budget(crashes=0))
        self.terms = AllreduceTerms("j", workers, plan, **terms)
        self.job = AllreduceMachine.new(self.terms)
        self.now = 0.0
        self.journal: list[tuple[str, bytes, float]] = []
        self.all: list[c.Command] = []
        self.hear(e.MasterStarted())

    def hear(self, event: e.Event, after: float = 0.0) -> list[c.Command]:
        self.now += after
        self.journal.append((*e.encode(event), self.now))
        out = self.job.handle(event, self.now)
        check_replicas(self.job.replicas)
        self.all += out
        return out

    def join(self, *workers: str, generation: int = 0) -> list[c.Command]:
        out: list[c.Command] = []
        for w in workers:
            out += self.hear(e.ReplicaStarted(w, f"uid-{w}"))
            out += self.hear(e.ReplicaJoined(w, f"inc-{w}", capacity=1, generation=generation, fingerprint="cpu"))
        return out

    def enter(self, state: tuple[int, int] = NOTHING, **states: tuple[int, int]) -> list[c.Command]:
        """All confirm the world that is proposed, and form it."""
        m = self.job.membership
        out: list[c.Command] = []
        for name in m.members:
            out += self.hear(e.WorldConfirmed(name, m.generation, states.get(name[-1:], state)))
        for name in m.members:
            out += self.hear(e.WorldFormed(name, m.generation))
        return out

    def trains(self, *workers: str) -> list[c.Command]:
        self.join(*workers)
        self.hear(e.TimePassed(), LAST_CALL_SECONDS)
        return self.enter()

    def step(self, step: int, after: float = 0.0, worker: str = W[0]) -> list[c.Command]:
        return self.hear(e.StepsCommitted(worker, self.job.membership.running_generation, step, 0.5), after)

    def wrote(self, step: int, error: str = "", cut: int = 0) -> list[c.Command]:
        """The worker that was asked last wrote the state, or could not."""
        asked = next(s for s in reversed(self.job.saves.asked) if not cut or s.cut == cut)
        part = "" if error else json.dumps({"step": step})
        return self.hear(e.ServerWrote(asked.worker, asked.cut, part, error))

    def publish(self, error: str = "") -> list[c.Command]:
        asked = of(c.PublishCheckpoint, self.all)[-1]
        directory = "" if error else f"/c/step-{asked.position.version}"
        return self.hear(e.CheckpointPublished(asked.cut, directory, error))

    def save(self, step: int) -> list[c.Command]:
        return self.wrote(step) + self.publish()

    def end(self, worker: str, cause: str = PREEMPTED, reason: str = "killed by SIGKILL") -> list[c.Command]:
        return self.hear(e.ReplicaGone(worker, f"uid-{worker}", cause, reason))

    def leave(self, worker: str) -> list[c.Command]:
        return self.hear(e.ReplicaLeaving(worker))

    def told(self, out: list[c.Command]) -> list[str]:
        return [x.text for x in of(c.Announce, out)]

    def replayed(self) -> AllreduceMachine:
        job = AllreduceMachine.new(self.terms)
        for kind, body, at in self.journal:
            job.handle(e.decode(kind, body), at)
        return job
