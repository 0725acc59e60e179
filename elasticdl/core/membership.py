"""Worlds of an all-reduce job: which workers train together, generation after generation, and from which state.

A world is proposed, confirmed by every member, and started. A member confirms only once it has left the world before,
and an exchange of gradients needs all members of its world: so two worlds never commit side by side. Where nobody of
the old world is in the new one, the new one waits until all of the old are known to be gone, or have been silent for so
long that they stopped by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from elasticdl.core.commands import Announce, Command, ProposeWorld, StartWorld

# Which model a worker holds: the generation that committed its last step, and how many steps are in it.
State = tuple[int, int]
NOTHING: State = (0, 0)

LAST_CALL_SECONDS = 2.0  # how long the first world waits for the rest of the workers that are wanted
RETURN_SECONDS = 5.0  # how long workers may take to find a master that came back
PATIENCE = 3  # worlds in a row that break without a step before somebody has to go


class Phase(StrEnum):
    NONE = "none"  # nobody trains
    PROPOSED = "proposed"
    RUNNING = "running"


@dataclass
class Ready:
    """A worker whose model is built and whose data is open."""

    incarnation: str
    fingerprint: str = ""
    in_touch: bool = True
    patience: float = 0.0  # out of touch, it is counted on until then
    silent_since: float = 0.0
    leaving: bool = False
    refused: bool = False  # its arithmetic differs


@dataclass
class Membership:
    wanted: int  # how many workers train together, if they are there
    least: int = 1
    grace_seconds: float = 30.0  # a worker that has heard nothing from the master for so long stops by itself
    same_arithmetic: bool = True
    workers: dict[str, Ready] = field(default_factory=dict)  # in the order of their coming
    generation: int = 0  # the newest
    phase: Phase = Phase.NONE
    members: tuple[str, ...] = ()  # of the newest generation, by rank
    urgent: bool = False
    confirmed: dict[str, State] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)  # of the last world that was started: member -> incarnation
    running_generation: int = 0
    formed: set[str] = field(default_factory=set)
    committed: State = NOTHING  # the newest that was heard of
    checkpoint: tuple[str, int] = ("", 0)  # directory and step of the newest on disk
    fingerprint: str = ""  # the one of the first world
    failures: int = 0  # worlds in a row that broke without a step
    suspicion: dict[str, int] = field(default_factory=dict)
    excluded: dict[str, float] = field(default_factory=dict)  # being put down, not yet known to be gone: since when
    to_evict: list[str] = field(default_factory=list)  # for the job to replace
    first_ready: float | None = None

    # What happens.

    def joined(
        self, name: str, incarnation: str, generation: int, fingerprint: str, leaving: bool, now: float
    ) -> list[Command]:
        """A worker is (back) in touch, and in this world; 0: in none."""
        before = self.workers.get(name)
        w = Ready(incarnation, fingerprint, leaving=leaving or (before is not None and before.leaving))
        out: list[Command] = []
        if self.same_arithmetic and self.fingerprint and fingerprint != self.fingerprint:
            w.refused = True
            if before is None or not before.refused:
                out.append(Announce(f"{name} is not taken: {_difference(fingerprint, self.fingerprint)}"))
        self.workers[name] = w
        if self.first_ready is None:
            self.first_ready = now
        if name not in self.members:
            return out + self._review(now)
        if self.phase is Phase.PROPOSED:
            out.append(self._proposal((name,), "it is back"))
        elif self.phase is Phase.RUNNING and generation != self.generation:
            if generation == 0 and name in self.formed:  # it left this world, and could not say so
                return out + self.broken(name, self.generation, (), now)
            out += [self._proposal((name,), "it is back"), self._start_for((name,))]
        return out + self._review(now)

    def dropped(self, name: str, now: float) -> list[Command]:
        """The stream broke; the process may well be alive, and even train on."""
        w = self.workers.get(name)
        if w is None or not w.in_touch:
            return []
        w.in_touch, w.silent_since, w.patience = False, now, now
        return self._review(now)

    def gone(self, name: str, now: float) -> list[Command]:
        """The process is known to be dead."""
        self.running.pop(name, None)
        self.excluded.pop(name, None)
        if self.workers.pop(name, None) is None:
            return []
        return self._review(now, lost=name in self.members)

    def exclude(self, name: str, now: float) -> list[Command]:
        """It is being put down: it counts no more, but it may still be alive for a while."""
        if self.workers.pop(name, None) is None:
            return []
        self.excluded[name] = now
        return self._review(now, lost=name in self.members)

    def leave(self, name: str, now: float) -> list[Command]:
        """It was told to go, and would like to at the end of a step."""
        w = self.workers.get(name)
        if w is None or w.leaving:
            return []
        w.leaving = True
        return self._review(now)

    def confirm(self, name: str, generation: int, state: State, now: float) -> list[Command]:
        if self.phase is not Phase.PROPOSED or generation != self.generation or name not in self.members:
            return []
        self.confirmed[name] = state
        self.committed = max(self.committed, state, key=_age)
        return self._start(now)

    def broken(self, name: str, generation: int, suspects: Iterable[str], now: float) -> list[Command]:
        """An exchange failed, or the group could not be built. That alone makes nobody a suspect of the master's."""
        if self.phase is Phase.NONE or generation != self.running_generation or name not in self.running:
            return []
        if self.phase is Phase.PROPOSED:
            if self.urgent:
                return []  # it is being dealt with
            return self._propose(self._desired(now), True, f"{name} reports that the world broke", now)
        self.failures += 1
        for suspect in suspects:
            self.suspicion[suspect] = self.suspicion.get(suspect, 0) + 1
        if self.failures > PATIENCE:
            self._evict()
        return self._propose(self._desired(now), True, f"{name} reports that the world broke", now)

    def form(self, name: str, generation: int, now: float) -> list[Command]:
        """A member's group stands, and it holds the world's state."""
        if self.phase is not Phase.RUNNING or generation != self.generation or name not in self.members:
            return []
        self.formed.add(name)
        return self._review(now)

    def stepped(self, generation: int, step: int) -> None:
        if generation == self.running_generation:
            self.failures = 0
            self.suspicion.clear()
            self.committed = max(self.committed, (generation, step), key=_age)

    def scaled(self, wanted: int, now: float) -> list[Command]:
        self.wanted = wanted
        return self._review(now)

    def master_started(self, now: float) -> None:
        """Everybody has yet to find the new master."""
        for w in self.workers.values():
            w.in_touch, w.silent_since, w.patience = False, now, now + RETURN_SECONDS

    def time_passed(self, now: float) -> list[Command]:
        return self._review(now) + (self._start(now) if self.phase is Phase.PROPOSED else [])

    def deadline(self, now: float) -> float | None:
        """When `time_passed` should come next."""
        times = []
        if self.phase is Phase.NONE and self.first_ready is not None:
            times.append(self.first_ready + LAST_CALL_SECONDS)
        if self.phase is Phase.PROPOSED:
            times += [w.patience for n, w in self.workers.items() if n in self.members and not w.in_touch]
            if self._all_confirmed and not self._fenced(now):
                times += [self._silent_until(n) for n in self.running]
        return min((t for t in times if t > now), default=None)

    # Questions.

    @property
    def training(self) -> bool:
        return self.phase is Phase.RUNNING and self.formed == set(self.members)

    def holder(self) -> str:
        """Who can be asked to write the state: the first in the world that is in touch."""
        for name in self.members if self.phase is Phase.RUNNING else ():
            if name in self.formed and name in self.workers and self.workers[name].in_touch:
                return name
        return ""

    def _available(self, name: str, now: float) -> bool:
        w = self.workers.get(name)
        return w is not None and not w.refused and (w.in_touch or now < w.patience)

    def _desired(self, now: float) -> tuple[str, ...]:
        """Who should train together now: who does already, then who came first."""
        able = [n for n in self.workers if self._available(n, now)]
        staying = [n for n in able if not self.workers[n].leaving]
        order = [n for n in self.members if n in staying] + [n for n in staying if n not in self.members]
        desired = order[: self.wanted]
        if desired and not any(n in self.running for n in desired):
            # All who hold the state are about to leave: one of them stays until the others have it.
            desired += [n for n in self.running if n in able and self.workers[n].leaving][:1]
        return tuple(desired) if len(desired) >= self.least else ()

    # Decisions.

    def _review(self, now: float, lost: bool = False) -> list[Command]:
        desired = self._desired(now)
        if self.phase is Phase.NONE:
            waited = self.first_ready is not None and now >= self.first_ready + LAST_CALL_SECONDS
            if not desired or not (len(desired) >= self.wanted or waited or self.running_generation):
                return []
            return self._propose(desired, True, f"{_workers(len(desired))} ready", now)
        silent = [n for n in self.members if n not in desired and not self._available(n, now)]
        if self.phase is Phase.PROPOSED:
            if silent or lost:
                return self._propose(desired, self.urgent or lost, _missing(silent), now)
            grown = not self.urgent and set(desired) != set(self.members)
            shrunk = any(n not in desired for n in self.members)
            if grown or (shrunk and not self.confirmed):
                return self._propose(desired, self.urgent, "the workers that are there changed", now)
            return []
        if lost:
            return self._propose(desired, True, "a member is gone", now)
        if not self.training and not any(n in self.workers and self.workers[n].leaving for n in self.members):
            return []  # one change after the other
        leavers = [n for n in self.members if n not in desired and n not in silent]
        comers = [n for n in desired if n not in self.members]
        if leavers:
            return self._propose(desired, False, f"{', '.join(leavers)} leaves", now)
        if comers and not silent:
            return self._propose(desired, False, f"{', '.join(comers)} joins", now)
        return []

    def _propose(self, members: tuple[str, ...], urgent: bool, reason: str, now: float) -> list[Command]:
        # Whoever has left an exchange cannot finish the step: from there on there is no boundary to wait for.
        self.urgent = urgent or (self.phase is Phase.PROPOSED and self.urgent)
        self.generation += 1
        self.members, self.phase = members, Phase.PROPOSED
        self.confirmed, self.formed = {}, set()
        told = [n for n in (*members, *(n for n in self.running if n not in members)) if n in self.workers]
        out: list[Command] = [self._proposal(tuple(told), reason)]
        if not members:
            self.phase = Phase.NONE
            out.append(Announce(f"nobody trains: {reason}, and {self.least} are needed"))
        return out

    def _proposal(self, to: tuple[str, ...], reason: str) -> ProposeWorld:
        return ProposeWorld(self.generation, self.members, to, self.urgent, reason)

    @property
    def _all_confirmed(self) -> bool:
        return bool(self.members) and set(self.confirmed) == set(self.members)

    def _silent_until(self, name: str) -> float:
        """When a member of the last world has stopped by itself, having heard nothing for so long."""
        w = self.workers.get(name)
        if w is None:
            return self.excluded[name] + self.grace_seconds
        return float("inf") if w.in_touch else w.silent_since + self.grace_seconds

    def _fenced(self, now: float) -> bool:
        """Whether the last world can commit nothing any more."""
        left = any(self.workers[n].incarnation == self.running.get(n) for n in self.confirmed)
        return left or all(self._silent_until(n) <= now for n in self.running)

    def _start(self, now: float) -> list[Command]:
        if not self._all_confirmed or not self._fenced(now):
            return []
        self.phase = Phase.RUNNING
        self.running = {n: self.workers[n].incarnation for n in self.members}
        self.running_generation = self.generation
        if not self.fingerprint:
            self.fingerprint = self.workers[self.members[0]].fingerprint
        return [self._start_for(self.members)]

    def _start_for(self, to: tuple[str, ...]) -> StartWorld:
        best = max(self.confirmed.values(), key=_age)
        directory, step = self.checkpoint
        if directory and step > best[1]:
            copies = dict.fromkeys(self.members[1:], self.members[0])
            return StartWorld(self.generation, self.members, to, (0, step), copies, directory)
        # As built they may differ: everybody takes what the first one has.
        holders = [n for n in self.members if self.confirmed[n] == best] if best != NOTHING else [self.members[0]]
        others = [n for n in self.members if n not in holders]
        copies = {n: holders[i % len(holders)] for i, n in enumerate(others)}
        return StartWorld(self.generation, self.members, to, best, copies, "")

    def _evict(self) -> None:
        """The world breaks again and again although everybody is in touch: who is named most often goes."""
        named = [n for n in self.members if self.suspicion.get(n)]
        worst = max(named, key=lambda n: self.suspicion[n], default=self.members[-1] if len(self.members) > 1 else "")
        if worst:
            self.to_evict.append(worst)
            self.failures = 0
            self.suspicion.clear()


def _age(state: State) -> tuple[int, int]:
    return state[1], state[0]


def _workers(count: int) -> str:
    return "1 worker is" if count == 1 else f"{count} workers are"


def _missing(names: list[str]) -> str:
    return f"{', '.join(names)} is out of touch" if names else "a member is gone"


def _difference(fingerprint: str, reference: str) -> str:
    return f"its arithmetic differs from the first world's ({fingerprint}; {reference}), and weights would depend on it"
