"""What workers send each other through the master, and their pulses: handled at once, and not journaled."""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.core import events as e
from elasticdl.strategies.allreduce.core.hangs import Hangs
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.strategies.allreduce.core.pulses import Pulses
from elasticdl.wire import control_pb2 as pb

COMMIT_SECONDS = 0.5  # between two entries of the journal about how far training is


class Relay:
    """The store behind the newest world's process group, and the pulses of its members."""

    def __init__(self, job: AllreduceMachine, send: Callable[[str, pb.ToReplica], None]) -> None:
        self._job, self._send = job, send
        self._generation = 0
        self._values: dict[str, pb.Stored] = {}
        self.hangs = Hangs(job.membership, Pulses(job.terms.budget.hang_seconds))
        self._told_at, self._told = 0.0, (0, 0)  # when, which generation and step

    def stored(self, worker: str, stored: pb.Stored) -> None:
        """Send a key to the other members of its generation; drop it if that is not the newest."""
        membership = self._job.membership
        if stored.generation != membership.generation or worker not in membership.members:
            return
        if stored.generation != self._generation:
            self._generation, self._values = stored.generation, {}
        self._values[stored.key] = stored
        for name in membership.members:
            if name != worker:
                self._send(name, pb.ToReplica(stored=stored))

    def again(self, worker: str, now: float, generation: int = 0) -> None:
        """A worker's stream is open (again): send what the others stored meanwhile. It was disconnected, not hung."""
        self.hangs.back(worker, now, generation)
        membership = self._job.membership
        if self._generation == membership.generation and worker in membership.members:
            for stored in self._values.values():
                self._send(worker, pb.ToReplica(stored=stored))

    def pulse(self, worker: str, pulse: pb.Pulse, now: float) -> e.Event | None:
        """Remember it; now and then it makes an event that tells how far training is."""
        self.hangs.heard(worker, pulse.step, pulse.phase, pulse.seconds, pulse.step_seconds, now, pulse.generation)
        at = (pulse.generation, pulse.step)
        if pulse.step <= self._job.step or pulse.generation != self._job.membership.running_generation:
            return None
        plan = self._job.terms.plan
        last = plan.over(pulse.step, plan.trained(pulse.step, pulse.records))  # it is not kept waiting
        # Nor is the first of a world: with it the change to that world is over.
        last = last or (self._job.changes.under_way is not None and pulse.first_step_seconds > 0)
        if now - self._told_at < COMMIT_SECONDS and (self._told == at or not last):
            return None
        self._told_at, self._told = now, at
        loss = pulse.loss if pulse.has_loss else None
        return e.StepsCommitted(worker, pulse.generation, pulse.step, loss, pulse.first_step_seconds, pulse.records)
