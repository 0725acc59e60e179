"""The machine of worlds with one bug each: a suite that lets one of them pass proves nothing about the one without."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elasticdl.core.commands import Command, ProposeWorld, StartWorld
from elasticdl.strategies.allreduce.core.membership import NOTHING, NOTICE_SECONDS, Beginning, Membership, State
from elasticdl.strategies.allreduce.core.proposals import Phase
from tests.core.storms import LEAVERS, SILENCE, WIND, Storm


@dataclass
class Unfenced(Membership):
    def _fenced(self, now: float) -> bool:
        return True


@dataclass
class SilenceIsDeath(Membership):
    def _silent_until(self, name: str) -> float:
        return min(super()._silent_until(name), self.excluded.get(name, 0.0))


@dataclass
class NoTimeToNotice(Membership):
    def _silent_until(self, name: str) -> float:
        return super()._silent_until(name) - NOTICE_SECONDS


@dataclass
class HoldersForgotten(Membership):
    """Only safety is waited for, not the state that a disconnected worker holds."""

    def _fenced(self, now: float) -> bool:
        left = any(self.workers[n].incarnation == self.running.get(n) for n in self.confirmed)
        return left or all(self._silent_until(n) <= now for n in self.running)


@dataclass
class StartsWithoutTheLast(Membership):
    @property
    def _all_confirmed(self) -> bool:
        return len(self.confirmed) >= max(1, len(self.members) - 1)

    def _beginning(self) -> Beginning:
        self.confirmed = dict.fromkeys(self.members, NOTHING) | self.confirmed
        return super()._beginning()


@dataclass
class OldConfirmationCounts(Membership):
    def confirm(self, name: str, generation: int, state: State, now: float) -> list[Command]:
        return super().confirm(name, self.generation, state, now)


@dataclass
class NumberUsedAgain(Membership):
    def _propose(self, members: tuple[str, ...], urgent: bool, reason: str, now: float) -> list[Command]:
        if self.phase is Phase.PROPOSED:
            self.generation -= 1
        return super()._propose(members, urgent, reason, now)


@dataclass
class FirstMemberIsRight(Membership):
    """All copy from rank 0, whatever it holds."""

    def _beginning(self) -> Beginning:
        begun = super()._beginning()
        if begun.directory:
            return begun
        return Beginning(self.confirmed[self.members[0]], dict.fromkeys(self.members[1:], self.members[0]))


@dataclass
class AsBuiltIsEqual(Membership):
    def _beginning(self) -> Beginning:
        begun = super()._beginning()
        return Beginning() if begun.state == NOTHING else begun


@dataclass
class StepIsEnough(Membership):
    """Two states of the same step are taken for the same one, whichever world committed them."""

    def _beginning(self) -> Beginning:
        begun = super()._beginning()
        if begun.directory or begun.state == NOTHING:
            return begun
        behind = {n: s for n, s in begun.copies.items() if self.confirmed[n][1] != begun.state[1]}
        return Beginning(begun.state, behind)


@dataclass
class CheckpointIgnored(Membership):
    def _beginning(self) -> Beginning:
        kept, self.checkpoint = self.checkpoint, ("", 0)
        begun = super()._beginning()
        self.checkpoint = kept
        return begun


@dataclass
class LeaverIsNotKept(Membership):
    def _desired(self, now: float) -> tuple[str, ...]:
        return tuple(n for n in super()._desired(now) if not self.workers[n].leaving)


@dataclass
class WhoComesFirstTrains(Membership):
    """Workers that hold the state are not preferred."""

    def _desired(self, now: float) -> tuple[str, ...]:
        kept, self.holders = self.holders, set()
        desired = super()._desired(now)
        self.holders = kept
        return desired


@dataclass
class NoneIsRescued(Membership):
    """A worker that comes back with the state finds that the others go on without."""

    def _review(self, now: float, lost: str = "") -> list[Command]:
        there = self._all_confirmed and all(self._available(n, now) for n in self.members)
        if self.phase is Phase.PROPOSED and there and not self._fenced(now):
            return []
        return super()._review(now, lost)


@dataclass
class BrokenIsTheirOwnAffair(Membership):
    def broken(self, name: str, generation: int, suspects: Iterable[str], now: float) -> list[Command]:
        return []


@dataclass
class ProposalSaidOnce(Membership):
    """A worker that was disconnected when a world was proposed never hears of it."""

    def joined(self, name: str, *what: object) -> list[Command]:
        known = name in self.workers
        out = super().joined(name, *what)  # type: ignore[arg-type]
        return [c for c in out if not (known and isinstance(c, ProposeWorld) and c.to == (name,))]


@dataclass
class StartSaidOnce(Membership):
    def joined(self, name: str, *what: object) -> list[Command]:
        out = super().joined(name, *what)  # type: ignore[arg-type]
        return [c for c in out if not (isinstance(c, StartWorld) and c.to == (name,))]


@dataclass
class NothingIsUrgent(Membership):
    def _propose(self, members: tuple[str, ...], urgent: bool, reason: str, now: float) -> list[Command]:
        return super()._propose(members, urgent and self.phase is Phase.NONE, reason, now)


@dataclass
class DeathOpensNoGate(Membership):
    """A world that waits for the members of the last one does not hear that they are gone."""

    def gone(self, name: str, now: float) -> list[Command]:
        waiting = self.phase is Phase.PROPOSED and self._all_confirmed
        generation = self.generation
        kept = dict(self.__dict__)
        out = super().gone(name, now)
        if waiting and self.phase is Phase.RUNNING and self.generation == generation:
            self.__dict__.update(kept)
            return []
        return out


@dataclass
class LeastIgnored(Membership):
    def _desired(self, now: float) -> tuple[str, ...]:
        kept, self.least = self.least, 1
        desired = super()._desired(now)
        self.least = kept
        return desired


@dataclass
class TooManyTrain(Membership):
    def _desired(self, now: float) -> tuple[str, ...]:
        kept, self.wanted = self.wanted, 100
        desired = super()._desired(now)
        self.wanted = kept
        return desired


@dataclass
class FirstWorldMixesArithmetic(Membership):
    def _desired(self, now: float) -> tuple[str, ...]:
        kept, self.same_arithmetic = self.same_arithmetic, False
        desired = super()._desired(now)
        self.same_arithmetic = kept
        return desired


@dataclass
class LateComersNeverJoin(Membership):
    """A worker that comes while a world is being formed is forgotten."""

    def form(self, name: str, generation: int, now: float) -> list[Command]:
        out = super().form(name, generation, now)
        if out and self.phase is Phase.PROPOSED:
            self.phase, self.generation, self.members = Phase.RUNNING, generation, tuple(self.running)
            self.formed = set(self.members)
            return []
        return out


@dataclass
class MembersLeaveUnheard(Membership):
    """A worker that comes back in no world, though it was in the one that runs, is taken to be in it."""

    def joined(
        self, name: str, incarnation: str, generation: int, fingerprint: str, leaving: bool, now: float
    ) -> list[Command]:
        seen = generation or (self.running_generation if name in self.running else 0)
        return super().joined(name, incarnation, seen, fingerprint, leaving, now)


@dataclass
class Mutant:
    """A bug, in which storms to look for it, and how many of them the suite may take to notice it."""

    what: str
    kind: type[Membership]
    storms: int = 60
    first: int = 0
    faults: dict[str, int] | None = None
    other: float = 0.05

    def storm(self, seed: int, kind: type[Membership]) -> Storm:
        return Storm(seed, kind, self.faults, self.other)


MUTANTS: dict[str, Mutant] = {
    "unfenced": Mutant("a world starts while the one before may still commit", Unfenced, faults=WIND),
    "silence-is-death": Mutant("a silent worker is taken to be gone", SilenceIsDeath, faults=WIND),
    "not-noticed": Mutant(
        "a world starts before a silent one has noticed that it is", NoTimeToNotice, first=80, faults=SILENCE
    ),
    "holders-forgotten": Mutant(
        "a world goes back though a disconnected worker holds more", HoldersForgotten, first=380, faults=WIND
    ),
    "without-the-last": Mutant("a world starts before all have confirmed it", StartsWithoutTheLast),
    "old-confirmation": Mutant("a confirmation of an older world counts", OldConfirmationCounts),
    "number-again": Mutant("two worlds bear one number", NumberUsedAgain),
    "first-is-right": Mutant("all copy from the first, whatever it holds", FirstMemberIsRight),
    "as-built-is-equal": Mutant("models as built are taken to be equal", AsBuiltIsEqual),
    "step-is-enough": Mutant("states of one step are taken to be the same", StepIsEnough, first=300, faults=WIND),
    "checkpoint-ignored": Mutant("a checkpoint is not read though all is lost", CheckpointIgnored),
    "leaver-not-kept": Mutant(
        "the last that holds the state goes before another has it", LeaverIsNotKept, faults=LEAVERS
    ),
    "first-come": Mutant("holders of the state are not preferred", WhoComesFirstTrains, faults=WIND),
    "not-rescued": Mutant("a worker that comes back with the state is left out", NoneIsRescued, first=220, faults=WIND),
    "broken-ignored": Mutant("a world that broke is not followed by another", BrokenIsTheirOwnAffair),
    "proposed-once": Mutant("a proposal that was lost is not said again", ProposalSaidOnce),
    "started-once": Mutant("a start that was lost is not said again", StartSaidOnce, first=80, faults=WIND),
    "not-urgent": Mutant("survivors are told to finish a step that has no end", NothingIsUrgent),
    "no-gate": Mutant("a death does not let the world start that waits for it", DeathOpensNoGate),
    "least-ignored": Mutant("fewer train than must", LeastIgnored),
    "too-many": Mutant("more train than are wanted", TooManyTrain),
    "mixed": Mutant("the first world mixes arithmetics", FirstWorldMixesArithmetic, first=290, other=0.5),
    "never-join": Mutant("a worker that came while a world was being formed never joins", LateComersNeverJoin),
    "left-unheard": Mutant("a worker that left unheard is waited for", MembersLeaveUnheard),
}
