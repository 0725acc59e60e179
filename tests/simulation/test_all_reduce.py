"""Simulated all-reduce jobs with seeded faults: the real core, messages, relay and sessions keep every promise."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from elasticdl.collective.session import WorldSession
from elasticdl.collective.world_membership import NOTHING, WorldMembership
from elasticdl.wire import control_pb2 as pb
from tests.core.storms import LAST, SILENCE, WIND, Storm
from tests.core.worlds import Worlds
from tests.simulation.all_reduce import SessionWorlds

STORMS = 150
HANGS = {"hang": 3, "terminate": 4, "connect": 6, "scale": 1}


def test_jobs_in_storms_train_every_step_once_and_end() -> None:
    met: Counter[str] = Counter()
    for seed in range(STORMS):
        try:
            storm = Storm(seed, faults=WIND if seed % 3 == 2 else None, worlds=SessionWorlds)
            met.update(storm.run().met)
        except AssertionError as broken:
            raise AssertionError(f"storm {seed}: {broken}") from broken
    kinds = ("state copied", "sum missed", "master restarted", "damaged checkpoint", "hung found")
    assert not [kind for kind in kinds if not met[kind]], f"only {met} happened"


def test_where_the_batch_follows_the_workers_every_record_is_trained_once_in_any_storm() -> None:
    """The number of steps is not known beforehand: workers tell how many records are trained, and are believed."""
    met: Counter[str] = Counter()
    lengths = set()
    for seed in range(STORMS):
        try:
            storm = Storm(seed, faults=WIND if seed % 3 == 2 else None, worlds=SessionWorlds, share=seed % 5 + 1)
            worlds = storm.run()
            met.update(worlds.met)
            lengths.add(worlds.job.step)
        except AssertionError as broken:
            raise AssertionError(f"storm {seed}: {broken}") from broken
    kinds = ("state copied", "sum missed", "master restarted", "damaged checkpoint", "hung found")
    assert not [kind for kind in kinds if not met[kind]], f"only {met} happened"
    assert len(lengths) > 20, "the worlds were not of different sizes"


def test_a_worker_that_hangs_is_found_by_what_it_says_or_does_not_say_also_after_sigterm() -> None:
    found = 0
    for seed in range(STORMS):
        try:
            found += "hung found" in Storm(seed, faults=HANGS, worlds=SessionWorlds).run().met
        except AssertionError as broken:
            raise AssertionError(f"storm {seed}: {broken}") from broken
    assert found > 50, f"a hung worker was found in {found} storms only"


# Sessions with one bug each.


@dataclass
class StoredSaidOnce(WorldMembership):
    """What others need to build their groups is not said again on a new stream."""

    def resend(self) -> list[pb.FromReplica]:
        return super().resend() if self.formed else []


@dataclass
class BrokenSaidOnce(WorldMembership):
    """A world that broke is not told of again, when the master starts it once more."""

    def started(self, start: pb.Start) -> list[pb.FromReplica]:
        super().started(start)
        return []


@dataclass
class NeverStopsByItself(WorldSession):
    """A worker trains on for ever without a master."""

    def cut_off(self, now: float) -> bool:
        return False


@dataclass
class NameOfTheWorld(WorldMembership):
    """A state is named when the world starts, not when it is there."""

    def enter(self) -> pb.Start | None:
        start = super().enter()
        if start is not None:
            self.state = (start.state.generation, start.state.step)
        return start


@dataclass
class NameOfTheFormed(WorldMembership):
    """A state that was copied is called what it was before, until the whole world stands."""

    def loaded(self, records: int) -> None:
        if self.formed:
            super().loaded(records)


@dataclass
class StepsOfItsOwn(WorldMembership):
    """The name of a state says nothing about the world that committed it."""

    def commit(self, stop: bool, records: int) -> None:
        before = self.state
        super().commit(stop, records)
        self.state = (max(1, before[0]), before[1] + 1)


@dataclass
class StopsAlone(WorldMembership):
    """A worker that knows of a proposal stops after the step, whether the others agreed or not."""

    def commit(self, stop: bool, records: int) -> None:
        super().commit(False, records)
        self.stopping = self.superseded


@dataclass
class ConfirmsWithNothing(WorldMembership):
    """What was trained is forgotten with the world."""

    def leave(self, *what: object, **more: object) -> list[pb.FromReplica]:
        self.state = NOTHING
        return super().leave(*what, **more)  # type: ignore[arg-type]


@dataclass
class GoesWithAllOfIt(WorldMembership):
    """After SIGTERM a worker leaves a world that broke, and does not ask which workers are left."""

    @property
    def needed(self) -> bool:
        return False


KILLS = {"kill": 8, "connect": 6, "scale": 3}
MUTANTS: dict[type[WorldSession | WorldMembership], tuple[range, dict[str, int]]] = {
    StoredSaidOnce: (range(420, 480), WIND),
    BrokenSaidOnce: (range(120, 180), WIND),
    NeverStopsByItself: (range(60), SILENCE),
    NameOfTheWorld: (range(60), WIND),
    NameOfTheFormed: (range(60), KILLS),
    StepsOfItsOwn: (range(60), WIND),
    StopsAlone: (range(240, 300), WIND),
    ConfirmsWithNothing: (range(60), WIND),
    GoesWithAllOfIt: (range(60, 120), LAST),
}


@pytest.mark.parametrize("kind", MUTANTS)
def test_the_simulation_catches_the_session(kind: type[WorldSession | WorldMembership]) -> None:
    """The bug is found within these storms, and the session without it weathers the very storm that found it."""
    seeds, faults = MUTANTS[kind]
    part = "session" if issubclass(kind, WorldSession) else "membership"
    for seed in seeds:
        try:
            Storm(seed, faults=faults, worlds=type("Mutant", (SessionWorlds,), {part: kind})).run()
        except AssertionError:
            Storm(seed, faults=faults, worlds=SessionWorlds).run()
            return
    pytest.fail(f"{len(seeds)} storms did not notice {kind.__doc__ or kind.__name__}")


@pytest.mark.long
def test_many_more_storms() -> None:
    for seed in range(10_000, 16_000):
        faults = (None, LAST, WIND, SILENCE)[seed % 4]
        try:
            Storm(seed, faults=faults, worlds=SessionWorlds if seed % 8 < 4 else Worlds).run()
        except AssertionError as broken:
            raise AssertionError(f"storm {seed}: {broken}") from broken
