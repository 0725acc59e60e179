"""Worlds of an all-reduce job: which workers train together, generation after generation, and from which state.

A world is proposed, confirmed by every member, and started. A member confirms only once it has left the world before,
and an exchange of gradients needs all members of its world: so two worlds never commit side by side. Where no member of
the old world is in the new one, the new one waits until all of the old are known to be gone, or have been silent for so
long that they stopped by themselves. It waits in the same way for a disconnected worker that alone holds the state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from elasticdl.core.commands import Announce, Command, ProposeWorld, StartWorld
from elasticdl.strategies.allreduce.core.proposals import Candidate, Else, Phase, Proposal, Scene, decide, desired

# Which model a worker holds: the generation that committed its last step, and how many steps are in it.
State = tuple[int, int]
NOTHING: State = (0, 0)

LAST_CALL_SECONDS = 2.0  # how long the first world waits for the rest of the workers that are wanted
RETURN_SECONDS = 5.0  # how long workers may take to find a restarted master
# In which a worker notices that it is disconnected, where packets are lost silently: the keepalive of the stream. The
# master may notice at once, or be a new one. The rest is for a stopped worker, which keeps its stream for a moment.
NOTICE_SECONDS = 10.0
MARGIN_SECONDS = NOTICE_SECONDS + 3.0
STRANGERS_SECONDS = 300.0  # how long training may pause because of rejected workers
PATIENCE = 3  # worlds in a row that break without a step before a worker is replaced


@dataclass
class Ready:
    """A worker whose model is built and whose data is open."""

    incarnation: str
    fingerprint: str = ""
    in_touch: bool = True
    patience: float = 0.0  # disconnected, it is counted on until then
    silent_since: float = 0.0
    leaving: bool = False
    refused: bool = False  # different library versions or CPU type


@dataclass
class Beginning:
    """Where a world begins; repeated in messages, so kept."""

    state: State = NOTHING
    copies: dict[str, str] = field(default_factory=dict)
    directory: str = ""


@dataclass
class Membership:
    wanted: int  # how many workers train together, if they are there
    least: int = 1
    grace_seconds: float = 30.0  # a worker without a message from the master for so long stops by itself
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
    begun: Beginning = field(default_factory=lambda: Beginning())  # of the last world that was started
    holders: set[str] = field(default_factory=set)  # workers known to hold the state of that world
    committed: State = NOTHING  # the newest that was reported
    checkpoint: tuple[str, int] = ("", 0)  # directory and step of the newest on disk
    fingerprint: str = ""  # the one of the first world
    failures: int = 0  # worlds in a row that broke without a step
    suspicion: dict[str, int] = field(default_factory=dict)
    excluded: dict[str, float] = field(default_factory=dict)  # being stopped, not yet known to be gone: since when
    to_evict: list[str] = field(default_factory=list)  # for the machine to replace
    first_ready: float | None = None
    strangers_since: float | None = None  # no worker trains, and some that are there were rejected

    # What happens.

    def joined(
        self, name: str, incarnation: str, generation: int, fingerprint: str, leaving: bool, now: float
    ) -> list[Command]:
        """A worker is (back) in touch, and in this world; 0: in none."""
        out: list[Command] = []
        before = self.workers.get(name)
        if before is not None and before.incarnation != incarnation:
            out, before = self.gone(name, now), None  # another process: what the one before held is lost
        w = Ready(incarnation, fingerprint, leaving=leaving or (before is not None and before.leaving))
        if self.same_arithmetic and self.fingerprint and fingerprint != self.fingerprint:
            w.refused = True
            if before is None or not before.refused:
                out.append(self._refusal(name, fingerprint))
        self.workers[name] = w
        if self.first_ready is None:
            self.first_ready = now
        member = name in self.members
        counted_on = name in self.formed if self.phase is Phase.RUNNING else not self.urgent
        if name in self.running and generation == 0 and counted_on:
            # It left the running world without a message: others may wait for it.
            return out + self.broken(name, self.running_generation, (), now)
        out += self._review(now)
        told = any(isinstance(c, ProposeWorld) and name in c.to for c in out)
        over = generation not in (0, self.running_generation)
        if over:  # it may wait for members of a world that is no more
            out.append(ProposeWorld(self.generation, self.members, (name,), True, "its world has ended"))
        elif not told and (before is not None or generation) and generation != self.generation:
            out.append(self._proposal((name,), "it reconnected"))
        asked = (member and not told) or (w.leaving and not member)
        if asked and self.phase is Phase.RUNNING and generation != self.generation:
            out.append(self._start_for((name,)))
        return out

    def dropped(self, name: str, now: float) -> list[Command]:
        """The stream broke; the process may well be alive, and even train on."""
        w = self.workers.get(name)
        if w is None or not w.in_touch:
            return []
        w.in_touch, w.silent_since, w.patience = False, now, now
        return self._review(now)

    def gone(self, name: str, now: float) -> list[Command]:
        """The process is known to be dead."""
        counted = name in self.workers  # of one that was stopped the others know already
        lost = name if counted and name in self.running else ""
        self._forget(name)
        self.running.pop(name, None)
        self.excluded.pop(name, None)
        if not self.running and not self.holders and not self.checkpoint[0]:
            self.fingerprint = ""  # nothing is left of what was trained: the job begins anew with the workers at hand
            for w in self.workers.values():
                w.refused = False
        return self._review(now, lost)

    def exclude(self, name: str, now: float) -> list[Command]:
        """It is being stopped: it counts no more, but it may still be alive for a while."""
        w = self.workers.get(name)
        if w is None:
            return []
        self._forget(name)
        self.excluded[name] = now if w.in_touch else w.silent_since
        return self._review(now, name if name in self.running else "")

    def _forget(self, name: str) -> None:
        self.workers.pop(name, None)
        self.holders.discard(name)

    def leave(self, name: str, now: float) -> list[Command]:
        """It received SIGTERM, and leaves at the end of a step."""
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
        """An exchange failed, or the group could not be built. That alone makes no worker a suspect."""
        if generation != self.running_generation or name not in self.running:
            return []
        if self.phase is Phase.RUNNING:
            self.failures += 1
            for suspect in suspects:
                self.suspicion[suspect] = self.suspicion.get(suspect, 0) + 1
            if self.failures > PATIENCE:
                self._evict()
        elif self.urgent:
            return []  # it is being dealt with
        return self._propose(self._desired(now), True, f"{name} reported that the world broke", now)

    def form(self, name: str, generation: int, now: float) -> list[Command]:
        """A member's group stands, and it holds the world's state."""
        if self.phase is not Phase.RUNNING or generation != self.generation or name not in self.members:
            return []
        self.formed.add(name)
        self.holders.add(name)
        return self._review(now)

    def stepped(self, generation: int, step: int, now: float) -> list[Command]:
        if generation != self.running_generation or step <= self.begun.state[1]:
            return []
        self.failures = 0
        self.suspicion.clear()
        self.committed = max(self.committed, (generation, step), key=_age)
        self.holders |= {n for n in self.running if n in self.workers}
        if self.phase is not Phase.RUNNING or self.training:
            return []
        self.formed = set(self.members)  # a step needs all of them: a message of one was lost
        return self._review(now)

    def scaled(self, wanted: int, now: float) -> list[Command]:
        self.wanted = wanted
        return self._review(now)

    def master_started(self, now: float) -> None:
        """All workers have yet to find the new master."""
        for w in self.workers.values():
            w.in_touch, w.silent_since, w.patience = False, now, now + RETURN_SECONDS

    def time_passed(self, now: float) -> list[Command]:
        return self._review(now)

    def deadline(self, now: float) -> float | None:
        """When `time_passed` should come next."""
        times = []
        if self.phase is Phase.NONE and self.first_ready is not None:
            times.append(self.first_ready + LAST_CALL_SECONDS)
        if self.strangers_since is not None:
            times.append(self.strangers_since + STRANGERS_SECONDS)
        if self.phase is Phase.PROPOSED:
            times += [w.patience for n, w in self.workers.items() if n in self.members and not w.in_touch]
            if self._all_confirmed:
                times += [self._silent_until(n) for n in {*self.running, *self.holders}]
        return min((t for t in times if now < t < float("inf")), default=None)

    # Questions.

    @property
    def training(self) -> bool:
        return self.phase is Phase.RUNNING and self.formed == set(self.members)

    def holder(self) -> str:
        """The worker that can write the state: the first member in touch."""
        for name in self.members if self.phase is Phase.RUNNING else ():
            if name in self.formed and name in self.workers and self.workers[name].in_touch:
                return name
        return ""

    def keeper(self) -> str:
        """The same where no world need run."""
        return self.holder() or next((n for n, w in self.workers.items() if n in self.holders and w.in_touch), "")

    def only_leavers(self, but: str = "") -> list[str]:
        """Connected workers that hold the state, if all of them are leaving; the last to leave comes last."""
        found = [n for n, w in self.workers.items() if n in self.holders and w.in_touch and n != but]
        return found if all(self.workers[n].leaving for n in found) else []

    def silent_until(self) -> float:
        """When all disconnected workers have stopped by themselves; 0: there are none."""
        return max((self._silent_until(n) for n, w in self.workers.items() if not w.in_touch), default=0.0)

    def hopeless(self, now: float) -> str:
        """Why there is no use in waiting any longer; empty while there is."""
        if self.strangers_since is None or now < self.strangers_since + STRANGERS_SECONDS:
            return ""
        name, w = next((n, w) for n, w in self.workers.items() if w.refused)
        return (
            f"training was paused for {STRANGERS_SECONDS:.0f} s: {name} was rejected because of "
            f"{_difference(w.fingerprint, self.fingerprint)}, and there were too few other workers. Use machines and "
            "libraries like those the job began with, or continue from its checkpoint with --deterministic=false."
        )

    def _available(self, name: str, now: float) -> bool:
        w = self.workers.get(name)
        return w is not None and not w.refused and (w.in_touch or now < w.patience)

    def _desired(self, now: float) -> tuple[str, ...]:
        """The workers that should train together now."""
        able = [n for n in self.workers if self._available(n, now)]
        if self.same_arithmetic and not self.fingerprint:  # the first world decides: the most frequent, or the first
            prints = Counter(self.workers[n].fingerprint for n in able)
            able = [n for n in able if self.workers[n].fingerprint == max(prints, key=prints.__getitem__)]
        away = any(n not in able and not self.workers[n].leaving for n in self.holders)
        rank = {n: place for place, n in enumerate(self.members)}
        candidates = [
            Candidate(n, self.workers[n].leaving, n in self.holders, n in self.running, rank.get(n, len(rank)))
            for n in able
        ]
        return desired(candidates, self.wanted, self.least, away)

    def _held_by(self, names: Iterable[str]) -> bool:
        return any(n in self.holders for n in names)

    # Decisions.

    def _review(self, now: float, lost: str = "") -> list[Command]:
        """What follows from the workers that are there; `lost` was in the last world that was started."""
        scene = self._scene(now, lost)
        if self.phase is not Phase.NONE or scene.desired or not any(w.refused for w in self.workers.values()):
            self.strangers_since = None
        elif self.strangers_since is None:
            self.strangers_since = now
        decision = decide(self.phase, scene)
        if isinstance(decision, Proposal):
            return self._propose(decision.members, decision.urgent, decision.reason, now)
        return self._start(now) if decision is Else.START else []

    def _scene(self, now: float, lost: str) -> Scene:
        found = self._desired(now)
        waited = self.first_ready is not None and now >= self.first_ready + LAST_CALL_SECONDS
        silent = tuple(n for n in self.members if n not in found and not self._available(n, now))
        # A worker with the state, or the word that the last world is over, is taken in.
        outside, inside = set(found) - set(self.members), set(self.members)
        return Scene(
            desired=found,
            members=self.members,
            lost=lost,
            silent=silent,
            gone=tuple(n for n in silent if n not in self.workers),
            enough=len(found) >= self.wanted or waited or bool(self.running_generation),
            urgent=self.urgent,
            confirmed=bool(self.confirmed),
            rescued=any(k & outside and not k & inside for k in (self.holders, self.running.keys())),
            training=self.training,
            leaving=any(n in self.workers and self.workers[n].leaving for n in self.members),
        )

    def _propose(self, members: tuple[str, ...], urgent: bool, reason: str, now: float) -> list[Command]:
        # A worker that has left an exchange cannot finish the step: there is no boundary to wait for any more.
        self.urgent = urgent or (self.phase is Phase.PROPOSED and self.urgent)
        self.generation += 1
        # Members of the last world, and of the last proposal, must know that it is over.
        told = [n for n in dict.fromkeys((*members, *self.running, *self.members)) if n in self.workers]
        self.members, self.phase = members, Phase.PROPOSED
        self.confirmed, self.formed = {}, set()
        out: list[Command] = [self._proposal(tuple(told), reason)]
        if not members:
            self.phase = Phase.NONE
            needed = "1 worker is" if self.least == 1 else f"{self.least} workers are"
            out.append(Announce(f"Training paused: {reason}; at least {needed} needed"))
        return out

    def _proposal(self, to: tuple[str, ...], reason: str) -> ProposeWorld:
        return ProposeWorld(self.generation, self.members, to, self.urgent, reason)

    @property
    def _all_confirmed(self) -> bool:
        return bool(self.members) and set(self.confirmed) == set(self.members)

    def _silent_until(self, name: str) -> float:
        """When a member of the last world has stopped by itself, without a message for so long."""
        w = self.workers.get(name)
        if w is None:
            return self.excluded[name] + self.grace_seconds + MARGIN_SECONDS
        return float("inf") if w.in_touch else w.silent_since + self.grace_seconds + MARGIN_SECONDS

    def _fenced(self, now: float) -> bool:
        """Whether the last world can commit nothing any more, and no worker may return with a newer state."""
        left = any(self.workers[n].incarnation == self.running.get(n) for n in self.confirmed)
        if not left and any(self._silent_until(n) > now for n in self.running):
            return False
        return self._held_by(self.confirmed) or all(self._silent_until(n) <= now for n in self.holders)

    def _start(self, now: float) -> list[Command]:
        if not self._all_confirmed or not self._fenced(now):
            return []
        self.phase = Phase.RUNNING
        self.running = {n: self.workers[n].incarnation for n in self.members}
        self.running_generation = self.generation
        self.begun = self._beginning()
        as_built = self.begun.directory or self.begun.state == NOTHING
        self.holders = set() if as_built else set(self.members) - set(self.begun.copies)
        # A leaving worker of a world that broke waits to hear that the others have its state.
        leavers = [n for n, w in self.workers.items() if w.leaving and n not in self.members]
        out: list[Command] = [self._start_for((*self.members, *leavers))]
        if not self.fingerprint:
            self.fingerprint = self.workers[self.members[0]].fingerprint
            for name, w in self.workers.items() if self.same_arithmetic and self.fingerprint else ():
                if w.fingerprint != self.fingerprint:
                    w.refused = True
                    out.append(self._refusal(name, w.fingerprint))
        return out

    def _start_for(self, to: tuple[str, ...]) -> StartWorld:
        begun = self.begun
        return StartWorld(self.generation, self.members, to, begun.state, begun.copies, begun.directory)

    def _beginning(self) -> Beginning:
        best = max(self.confirmed.values(), key=_age)
        directory, step = self.checkpoint
        if directory and step > best[1]:
            return Beginning((0, step), dict.fromkeys(self.members[1:], self.members[0]), directory)
        # As built they may differ: all take the state of the first.
        holders = [n for n in self.members if self.confirmed[n] == best] if best != NOTHING else [self.members[0]]
        others = [n for n in self.members if n not in holders]
        return Beginning(best, {n: holders[i % len(holders)] for i, n in enumerate(others)})

    def _refusal(self, name: str, fingerprint: str) -> Announce:
        return Announce(f"Rejected {name}: {_difference(fingerprint, self.fingerprint)}")

    def _evict(self) -> None:
        """The world keeps breaking although all are in touch: replace the worker that is named most often."""
        named = [n for n in self.members if self.suspicion.get(n)]
        worst = max(named, key=lambda n: self.suspicion[n], default=self.members[-1] if len(self.members) > 1 else "")
        if worst:
            self.to_evict.append(worst)
            self.failures = 0
            self.suspicion.clear()


def _age(state: State) -> tuple[int, int]:
    return state[1], state[0]


def _difference(fingerprint: str, reference: str) -> str:
    return f"different library versions or CPU type ({fingerprint}; the first workers have {reference})"
