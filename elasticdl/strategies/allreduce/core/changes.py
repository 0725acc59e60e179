"""How one world followed another: which workers left and joined, and how long every part of the change took.

Nothing is decided here. The times are those at which events came, and what workers measured themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from elasticdl.core import commands as c
from elasticdl.core import events as e

UNKNOWN = ""  # a world broke, and it is not known yet which worker is lost


@dataclass
class Change:
    """From its first sign to the first step of the world that came of it. Other worlds may have failed between."""

    began: float
    proposed: float
    before: tuple[str, ...]  # the members until then
    members: tuple[str, ...] = ()
    generation: int = 0
    why: list[str] = field(default_factory=list)
    started: float = 0.0
    formed: float | None = None  # when the last member's group stood, with the state
    abort_seconds: float = 0.0  # the step in flight was given up or, where no worker was lost, finished
    copy_seconds: float = 0.0
    copied_bytes: int = 0
    first_step_seconds: float = 0.0

    @property
    def lost(self) -> tuple[str, ...]:
        return tuple(n for n in self.before if n not in self.members)

    @property
    def parts(self) -> dict[str, float]:
        """Seconds, one part after the other."""
        agreed, stood = self.started - self.proposed, (self.formed or self.started) - self.started
        return {
            "detect": self.proposed - self.began,
            "abort": min(self.abort_seconds, agreed),
            "agree": max(0.0, agreed - self.abort_seconds),
            "rebuild": max(0.0, stood - self.copy_seconds),
            "copy": min(self.copy_seconds, stood),
            "first step": self.first_step_seconds,
        }

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def difference(self) -> str:
        came = [n for n in self.members if n not in self.before]
        parts = [f"without {', '.join(self.lost)}"] * bool(self.lost) + [f"with {', '.join(came)}"] * bool(came)
        return ", ".join(parts) or "the same workers"

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {in_words(seconds)}" for name, seconds in self.parts.items())
        return f"{self.difference} ({'; '.join(self.why)}): {parts}; {in_words(self.seconds)} in total"


@dataclass
class Changes:
    """Follows what happens to worlds."""

    members: tuple[str, ...] = ()  # of the last world that made a step
    generation: int = 0  # the newest
    signs: dict[str, float] = field(default_factory=dict)  # workers that may be lost, and when that began
    under_way: Change | None = None
    done: list[Change] = field(default_factory=list)

    def heard(self, event: e.Event, commands: Iterable[c.Command], training: bool, now: float) -> list[c.Command]:
        """Called after each decision; announces a change that is over."""
        self._look_for_signs(event, now)
        for command in commands:
            if isinstance(command, c.ProposeWorld) and command.generation > self.generation:
                self._proposed(command, now)
            elif isinstance(command, c.StartWorld) and self.under_way is not None and not self.under_way.started:
                self.under_way.started = now
        change = self.under_way
        if change is None:
            return []
        match event:
            case e.WorldConfirmed(_, generation, _, left_seconds) if generation == change.generation:
                change.abort_seconds = max(change.abort_seconds, left_seconds)
            case e.WorldFormed(_, generation, _, copy_seconds, copied_bytes) if generation == change.generation:
                change.copy_seconds = max(change.copy_seconds, copy_seconds)
                change.copied_bytes = max(change.copied_bytes, copied_bytes)
        if training and change.formed is None:
            change.formed = now
        if isinstance(event, e.StepsCommitted) and event.generation == change.generation and event.first_step_seconds:
            change.first_step_seconds = event.first_step_seconds
            return self._over(change)
        return []

    def _look_for_signs(self, event: e.Event, now: float) -> None:
        match event:
            case e.ReplicaGone(name, _, _, _, _, at):
                self._sign(name, at, now)
            case e.ReplicaDropped(name):
                self._sign(name, now, now)
            case e.WorkerHung(name, _, since):
                self._sign(name, since, now)
            case e.WorldBroken(_, generation) if generation == self.generation:
                self._sign(UNKNOWN, now, now)
            case e.ReplicaJoined(name):
                self.signs.pop(name, None)  # it was out of touch only

    def _sign(self, name: str, at: float, now: float) -> None:
        if self.under_way is None:
            self.signs[name] = min(self.signs.get(name, now), at or now)

    def _proposed(self, proposal: c.ProposeWorld, now: float) -> None:
        self.generation = proposal.generation
        if self.under_way is None:
            lost = [n for n in self.members if n not in proposal.members]
            began = min((self.signs[n] for n in (*lost, UNKNOWN) if n in self.signs), default=now)
            self.under_way = Change(began, now, self.members)
        change = self.under_way
        change.generation, change.members = proposal.generation, proposal.members
        change.started, change.formed = 0.0, None
        if proposal.reason not in change.why:
            change.why.append(proposal.reason)

    def _over(self, change: Change) -> list[c.Command]:
        self.done.append(change)
        self.members, self.under_way = change.members, None
        self.signs.clear()
        return [c.Announce(f"Generation {change.generation}: {change}")]


def in_words(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
