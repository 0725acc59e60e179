"""Liveness is progress: which worker of a world stands still while the others wait for it.

Pulses come a few times a second and are not journaled; that a worker is hung is an event, which is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

FLOOR_SECONDS = 5.0
STEPS = 10  # a part of a step that lasts as long as so many whole ones does not end any more
QUIET_SECONDS = 2.0  # many pulses would have come
STALL_SECONDS = 30.0  # networks between machines stand still for a while, and recover
# Phases whose length follows from the step time. The others may take long: storage may stand still for all workers
# at once, and between two steps a program may do anything.
LEARNT = ("compute", "apply")
# In these a worker waits for others; in the first two for its world, where the network may be stuck.
EXCHANGES = ("exchange", "copy")
WAITING = (*EXCHANGES, "wait")


@dataclass
class Beat:
    step: int
    phase: str
    since: float  # when that phase began
    heard: float
    generation: int = 0  # of the world it is in


@dataclass
class Pulses:
    hang_seconds: float  # the limit as long as nothing is learnt, and the upper one
    beats: dict[str, Beat] = field(default_factory=dict)
    step_seconds: dict[str, float] = field(default_factory=dict)

    def heard(
        self, worker: str, step: int, phase: str, seconds: float, step_seconds: float, now: float, generation: int = 0
    ) -> None:
        self.beats[worker] = Beat(step, phase, now - seconds, now, generation)
        if step_seconds > 0:
            self.step_seconds[worker] = step_seconds

    def back(self, worker: str, now: float, generation: int = 0) -> None:
        """It is in touch, and in this world: its earlier pulses do not count any more."""
        step = self.beats[worker].step if worker in self.beats else 0
        self.beats[worker] = Beat(step, "wait", now, now, generation)

    def forget(self, worker: str) -> None:
        self.beats.pop(worker, None)
        self.step_seconds.pop(worker, None)

    @property
    def limit_seconds(self) -> float:
        learnt = max(self.step_seconds.values(), default=0.0)
        return min(self.hang_seconds, max(FLOOR_SECONDS, STEPS * learnt)) if learnt else self.hang_seconds

    @property
    def stall_seconds(self) -> float:
        return min(self.hang_seconds, STALL_SECONDS)

    def hung(self, members: Iterable[str], now: float, others: Collection[str] = ()) -> list[tuple[str, str, float]]:
        """Workers that stand still, with the reason, and since when. A worker that waits for others does not. `others`
        are in no world, so none waits for them: they may be silent for long, as a program that pickles is."""
        found = []
        for name in (*members, *others):
            limit = self.hang_seconds if name in others else self.limit_seconds
            beat = self.beats.get(name)
            if beat is None:
                continue
            silent, lasts = now - beat.heard, now - beat.since
            if silent >= limit or (lasts >= self._limit_of(beat.phase) and name not in others):
                # A silent worker may be at something else by now.
                if silent >= QUIET_SECONDS:
                    why, since = f"silent for {silent:.1f} s (last: {beat.phase} of step {beat.step})", beat.heard
                else:
                    why, since = f"{beat.phase} of step {beat.step} has taken {lasts:.1f} s", beat.since
                found.append((name, why, since))
        return found

    def stuck_at(self, members: Sequence[str], generation: int, all_in_touch: bool) -> float | None:
        """When a world is of no use any more, if these members stay where they are: all wait in an exchange, or for the
        state to be copied, of which nothing comes any more.

        Then none is slow: messages are lost. Or one does not leave an exchange that the others have finished, and they
        wait for it in the next.
        """
        beats = [self.beats.get(name) or Beat(0, "", 0.0, 0.0) for name in members]
        if not beats or any(b.phase not in EXCHANGES or b.generation != generation for b in beats):
            return None
        usual = STALL_SECONDS if any(b.phase == "copy" for b in beats) else max(STALL_SECONDS, self.limit_seconds)
        # A disconnected member may still be at work.
        return max(b.since for b in beats) + (min(self.hang_seconds, usual) if all_in_touch else self.hang_seconds)

    def _limit_of(self, phase: str) -> float:
        if phase in LEARNT:
            return self.limit_seconds
        return float("inf") if phase in WAITING else self.hang_seconds

    def limit_of_the_silent(self, phase: str) -> float:
        """For a worker that others wait for and that was last in this phase."""
        return self.limit_seconds if phase in (*LEARNT, *WAITING) else self.hang_seconds

    def deadline(self, members: Iterable[str], others: Iterable[str] = ()) -> float | None:
        """When a worker may turn out to be hung."""
        beats = [self.beats[n] for n in members if n in self.beats]
        times = [b.heard + self.limit_seconds for b in beats] + [b.since + self._limit_of(b.phase) for b in beats]
        times += [self.beats[n].heard + self.hang_seconds for n in others if n in self.beats]
        return min(times, default=None)
