"""Which workers of an all-reduce job hang: their pulses, seen against the worlds that they are in.

Pulses come a few times a second and are not journaled. That a worker hangs, or that a world is stuck, is an event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl.core import events as e
from elasticdl.strategies.allreduce.core.membership import Membership
from elasticdl.strategies.allreduce.core.proposals import Phase
from elasticdl.strategies.allreduce.core.pulses import EXCHANGES, Pulses

AGAIN_SECONDS = 0.5  # in which pulses come that waited for this process, if it was the one that stood still


@dataclass
class Hangs:
    membership: Membership
    pulses: Pulses
    in_vain: dict[str, float] = field(default_factory=dict)  # workers in an aborted exchange, first heard when
    doubted: dict[str, float] = field(default_factory=dict)  # workers that seem to hang, since when
    stuck_since: float | None = None  # the whole world seems to hang, since when

    def heard(
        self, worker: str, step: int, phase: str, seconds: float, step_seconds: float, now: float, generation: int
    ) -> None:
        self.pulses.heard(worker, step, phase, seconds, step_seconds, now, generation)
        if phase in EXCHANGES and self._given_up(generation):
            self.in_vain.setdefault(worker, now)
        else:
            self.in_vain.pop(worker, None)

    def back(self, worker: str, now: float, generation: int) -> None:
        """A worker's stream is (back) there. It was out of touch, and not hung."""
        self.pulses.back(worker, now, generation)
        self.in_vain.pop(worker, None)

    def hung(self, now: float) -> list[e.Event]:
        """Workers that others wait for and that stand still, also when looked at a second time."""
        watched, others = self._watched()
        seen = [*self._wedged(now), *self._missed(now), *self.pulses.hung(watched, now, others)]
        found = {one[0]: one for one in seen}
        self.doubted = {name: self.doubted.get(name, now) for name in found}
        hung = [e.WorkerHung(*one) for name, one in found.items() if now - self.doubted[name] >= AGAIN_SECONDS]
        return [*hung, *self._stuck(now)]

    def _wedged(self, now: float) -> list[tuple[str, str, float]]:
        """Like `Pulses.hung`, for workers that do not leave an aborted exchange: nothing interrupts a driver."""
        found, beats = [], self.pulses.beats
        for name in self._watched()[0]:
            since = self.in_vain.get(name)
            if since is not None and now >= since + self.pulses.stall_seconds:
                why = f"still in the exchange of step {beats[name].step}, which was aborted {now - since:.1f} s ago"
                found.append((name, why, since))
        return found

    def _given_up(self, generation: int) -> bool:
        """Whether this world was aborted, as its members know. 0: the worker has left it."""
        m = self.membership
        return generation != m.running_generation or (m.phase is not Phase.RUNNING and m.urgent)

    def _missed(self, now: float) -> list[tuple[str, str, float]]:
        """Like `Pulses.hung`, for the one member whose stream broke: that of a stopped process does."""
        name, at = self._missed_at()
        if at is None or now < at:
            return []
        beat = self.pulses.beats[name]
        why = f"silent for {now - beat.heard:.1f} s while the others wait for it in the exchange of step {beat.step}"
        return [(name, why, beat.heard)]

    def _missed_at(self) -> tuple[str, float | None]:
        """The member without a stream, and when it counts as hung: once all others wait for it in an exchange."""
        m, beats = self.membership, self.pulses.beats
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
        """No member leaves the exchange, or no state is copied; also when looked at twice."""
        at, m = self._stuck_at(), self.membership
        if at is None or now < at:
            self.stuck_since = None
            return []
        if self.stuck_since is None:
            self.stuck_since = now
        if now - self.stuck_since < AGAIN_SECONDS:
            return []
        self.stuck_since = None
        inside = self._inside()
        beats = [self.pulses.beats[name] for name in inside]
        step, seconds = min(b.step for b in beats), now - max(b.since for b in beats)
        why = f"all workers have been in the exchange of step {step} for {seconds:.1f} s"
        if any(b.phase == "copy" for b in beats):
            why = f"no part of the state was copied for {seconds:.1f} s"
        return [e.WorldBroken(inside[0], m.running_generation, step, why)]

    def _stuck_at(self) -> float | None:
        m, (_, out) = self.membership, self._world()
        if m.phase is Phase.RUNNING and len(m.members) == 1:
            return None
        return self.pulses.stuck_at(self._inside(), m.running_generation, not out)

    def _world(self) -> tuple[list[str], list[str]]:
        """Members of the running world, also if it is to end with a step: those in touch, and the others. Of an aborted
        one, none."""
        m = self.membership
        if self._given_up(m.running_generation):
            return [], []
        counted = [n for n in m.running if n in m.workers]
        there = [n for n in counted if m.workers[n].in_touch]
        return there, [n for n in counted if n not in there]

    def _inside(self) -> list[str]:
        """Members in touch that have not yet left that world after its last step."""
        m, beats = self.membership, self.pulses.beats
        there, _ = self._world()
        return [n for n in there if m.phase is Phase.RUNNING or n not in beats or beats[n].generation]

    def deadline(self) -> float | None:
        (watched, others), (missed, missed_at) = self._watched(), self._missed_at()
        times = [self.doubted[n] + AGAIN_SECONDS for n in [*watched, *others, missed] if n in self.doubted]
        missed_at = None if missed in self.doubted else missed_at
        stuck = self._stuck_at() if self.stuck_since is None else self.stuck_since + AGAIN_SECONDS
        watched, others = ([n for n in names if n not in self.doubted] for names in (watched, others))
        times += [self.in_vain[n] + self.pulses.stall_seconds for n in watched if n in self.in_vain]
        first = self.pulses.deadline(watched, others)
        return min([*times, *(t for t in (first, stuck, missed_at) if t is not None)], default=None)

    def _watched(self) -> tuple[list[str], list[str]]:
        """Workers in touch: those that others wait for (members of the newest world, and those that have yet to leave
        the one before), and the rest."""
        m, beats = self.membership, self.pulses.beats
        for name in [n for n in beats if n not in m.workers]:
            self.pulses.forget(name)
            self.in_vain.pop(name, None)
        there = [n for n in dict.fromkeys((*m.members, *beats)) if n in m.workers and m.workers[n].in_touch]
        watched = [n for n in there if n in m.members or beats[n].generation]
        return watched, [n for n in there if n not in watched]
