"""What workers say to each other through the master, and how they are doing: heard at once, and not journaled."""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.core import events as e
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.strategies.allreduce.core.membership import Phase
from elasticdl.strategies.allreduce.core.pulses import EXCHANGES, Pulses
from elasticdl.wire import control_pb2 as pb

COMMIT_SECONDS = 0.5  # how often the journal hears how far training is
AGAIN_SECONDS = 0.5  # in which pulses come that waited for this process, if it was the one that stood still


class Relay:
    """The store behind the newest world's process group, and the pulses of its members."""

    def __init__(self, job: AllreduceMachine, send: Callable[[str, pb.ToReplica], None]) -> None:
        self._job, self._send = job, send
        self._generation = 0
        self._values: dict[str, pb.Stored] = {}
        self.pulses = Pulses(job.terms.budget.hang_seconds)
        self._told_at, self._told = 0.0, (0, 0)  # when, which generation and step
        self._in_vain: dict[str, float] = {}  # who is in an exchange that was given up, heard first when
        self._doubted: dict[str, float] = {}  # who seems to be hung, since when
        self._stuck_since: float | None = None  # that the whole world seems to be

    def stored(self, worker: str, stored: pb.Stored) -> None:
        """Pass a key on to the other members of its generation; of an older one nobody hears any more."""
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
        """A worker's stream is (back) there: what the others stored meanwhile. It was out of touch, and not hung."""
        self.pulses.back(worker, now, generation)
        self._in_vain.pop(worker, None)
        membership = self._job.membership
        if self._generation == membership.generation and worker in membership.members:
            for stored in self._values.values():
                self._send(worker, pb.ToReplica(stored=stored))

    def pulse(self, worker: str, pulse: pb.Pulse, now: float) -> e.Event | None:
        """Remember it; now and then it is an event: how far training is."""
        self.pulses.heard(worker, pulse.step, pulse.phase, pulse.seconds, pulse.step_seconds, now, pulse.generation)
        if pulse.phase in EXCHANGES and self._given_up(pulse.generation):
            self._in_vain.setdefault(worker, now)
        else:
            self._in_vain.pop(worker, None)
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

    def hung(self, now: float) -> list[e.Event]:
        """Who is waited for and stands still, also when looked at a second time."""
        watched, others = self._watched()
        seen = [*self._wedged(now), *self._missed(now), *self.pulses.hung(watched, now, others)]
        found = {one[0]: one for one in seen}
        self._doubted = {name: self._doubted.get(name, now) for name in found}
        hung = [e.WorkerHung(*one) for name, one in found.items() if now - self._doubted[name] >= AGAIN_SECONDS]
        return [*hung, *self._stuck(now)]

    def _wedged(self, now: float) -> list[tuple[str, str, float]]:
        """Like `Pulses.hung`, of those who cannot be called out of an exchange: in a driver nothing interrupts them."""
        found, beats = [], self.pulses.beats
        for name in self._watched()[0]:
            since = self._in_vain.get(name)
            if since is not None and now >= since + self.pulses.stall_seconds:
                why = f"in the exchange of step {beats[name].step} still, which was given up {now - since:.1f} s ago"
                found.append((name, why, since))
        return found

    def _given_up(self, generation: int) -> bool:
        """Whether what its members do in this world is in vain, as they have heard. 0: who says so has left it."""
        m = self._job.membership
        return generation != m.running_generation or (m.phase is not Phase.RUNNING and m.urgent)

    def _missed(self, now: float) -> list[tuple[str, str, float]]:
        """Like `Pulses.hung`, of the one member whose stream broke, as that of a process that stands still does."""
        name, at = self._missed_at()
        if at is None or now < at:
            return []
        beat = self.pulses.beats[name]
        why = f"silent for {now - beat.heard:.1f} s, and the others wait for it in the exchange of step {beat.step}"
        return [(name, why, beat.heard)]

    def _missed_at(self) -> tuple[str, float | None]:
        """Who is out of touch, and when it counts as hung. While others exchange with it, it is merely out of touch."""
        m, beats = self._job.membership, self.pulses.beats
        there, out = self._world()
        waiting = all(
            n in beats and (beats[n].phase, beats[n].generation) == ("exchange", m.running_generation) for n in there
        )
        forming = m.phase is Phase.RUNNING and not m.training
        if forming or not there or not waiting or len(out) != 1 or out[0] not in beats:
            return "", None
        since = max(beats[out[0]].heard, *(beats[n].since for n in there))
        return out[0], since + self.pulses.limit_of_the_silent(beats[out[0]].phase)

    def _stuck(self, now: float) -> list[e.Event]:
        """That no member of the world gets out of the exchange, or is given the state; also when looked at twice."""
        at, m = self._stuck_at(), self._job.membership
        if at is None or now < at:
            self._stuck_since = None
            return []
        if self._stuck_since is None:
            self._stuck_since = now
        if now - self._stuck_since < AGAIN_SECONDS:
            return []
        self._stuck_since = None
        inside = self._inside()
        beats = [self.pulses.beats[name] for name in inside]
        step, seconds = min(b.step for b in beats), now - max(b.since for b in beats)
        why = f"everybody is in the exchange of step {step}, which does not end in {seconds:.1f} s"
        if any(b.phase == "copy" for b in beats):
            why = f"everybody waits for the state to be copied, of which nothing came for {seconds:.1f} s"
        return [e.WorldBroken(inside[0], m.running_generation, step, why)]

    def _stuck_at(self) -> float | None:
        m, (_, out) = self._job.membership, self._world()
        if m.phase is Phase.RUNNING and len(m.members) == 1:
            return None
        return self.pulses.stuck_at(self._inside(), m.running_generation, not out)

    def _world(self) -> tuple[list[str], list[str]]:
        """Of the world that runs, also if it is to end with a step: who is in touch, and who is not. Nobody of one that
        was given up."""
        m = self._job.membership
        if self._given_up(m.running_generation):
            return [], []
        counted = [n for n in m.running if n in m.workers]
        there = [n for n in counted if m.workers[n].in_touch]
        return there, [n for n in counted if n not in there]

    def _inside(self) -> list[str]:
        """Who is in touch and in that world; not who has left it after the step that was to be its last."""
        m, beats = self._job.membership, self.pulses.beats
        there, _ = self._world()
        return [n for n in there if m.phase is Phase.RUNNING or n not in beats or beats[n].generation]

    def deadline(self) -> float | None:
        (watched, others), (missed, missed_at) = self._watched(), self._missed_at()
        times = [self._doubted[n] + AGAIN_SECONDS for n in [*watched, *others, missed] if n in self._doubted]
        missed_at = None if missed in self._doubted else missed_at
        stuck = self._stuck_at() if self._stuck_since is None else self._stuck_since + AGAIN_SECONDS
        watched, others = ([n for n in names if n not in self._doubted] for names in (watched, others))
        times += [self._in_vain[n] + self.pulses.stall_seconds for n in watched if n in self._in_vain]
        first = self.pulses.deadline(watched, others)
        return min([*times, *(t for t in (first, stuck, missed_at) if t is not None)], default=None)

    def _watched(self) -> tuple[list[str], list[str]]:
        """Who is in touch and waited for: members of the newest world, and whoever has yet to leave the one before. And
        who is in touch besides."""
        m, beats = self._job.membership, self.pulses.beats
        for name in [n for n in beats if n not in m.workers]:
            self.pulses.forget(name)
            self._in_vain.pop(name, None)
        there = [n for n in dict.fromkeys((*m.members, *beats)) if n in m.workers and m.workers[n].in_touch]
        watched = [n for n in there if n in m.members or beats[n].generation]
        return watched, [n for n in there if n not in watched]
