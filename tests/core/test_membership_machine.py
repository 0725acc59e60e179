"""Worlds under anything that can happen, in any order: promises hold after each event, and calm ends every job."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from elasticdl.core import events as e
from elasticdl.core.checkpoints import Schedule
from elasticdl.core.replicas import CRASHED, PREEMPTED
from elasticdl.strategies.allreduce.core.membership import Membership
from tests.core.membership_mutants import MUTANTS
from tests.core.storms import SCHEDULES, WIND, Storm
from tests.core.worlds import JOB, Worlds, pick

SETTINGS = settings(max_examples=60, stateful_step_count=50, deadline=None, derandomize=True)
INDEX = st.integers(0, 5)
KINDS = ("state copied", "sum missed", "master restarted", "damaged checkpoint")


def some(worlds: Worlds, index: int) -> str:
    """One of the newest processes; empty when there is none."""
    alive = [n for n, w in worlds.workers.items() if w.alive]
    return pick(alive[-6:], index) if alive else ""


class WorldsMachine(RuleBasedStateMachine):
    @initialize(
        workers=st.integers(1, 3), least=st.integers(1, 2), standby=st.integers(0, 1),
        schedule=st.sampled_from(SCHEDULES), calm=st.integers(0, 12),
    )  # fmt: skip
    def begin(self, workers: int, least: int, standby: int, schedule: Schedule, calm: int) -> None:
        self.worlds = Worlds(workers, min(least, workers), standby, schedule=schedule)
        for turn in range(calm):
            self.worlds.calm_turn(turn)

    @rule(index=INDEX, times=st.integers(1, 4))
    def act(self, index: int, times: int) -> None:
        for _ in range(times):
            if name := some(self.worlds, index):
                self.worlds.deliver(name)
                self.worlds.act(name)

    @rule()
    def everybody_acts(self) -> None:
        for name in list(self.worlds.workers):
            self.worlds.deliver(name)
            self.worlds.act(name)

    @rule()
    def calm(self) -> None:
        self.worlds.calm_turn(0)

    @rule(missed=st.integers(0, 9), said=st.booleans())
    def exchange(self, missed: int, said: bool) -> None:
        order = iter(range(100))
        self.worlds.exchange(lambda: next(order) != missed, lambda: said)

    @rule(index=INDEX)
    def commit_late(self, index: int) -> None:
        if name := some(self.worlds, index):
            self.worlds.commit_late(name)

    @rule(index=INDEX, cause=st.sampled_from([PREEMPTED, PREEMPTED, CRASHED]))
    def kill(self, index: int, cause: str) -> None:
        if name := some(self.worlds, index):
            self.worlds.kill(name, cause)

    @rule(index=INDEX)
    def terminate(self, index: int) -> None:
        if name := some(self.worlds, index):
            self.worlds.terminate(name)

    @rule(index=INDEX, noticed=st.booleans())
    def break_stream(self, index: int, noticed: bool) -> None:
        if name := some(self.worlds, index):
            self.worlds.break_stream(name)
            if noticed:
                self.worlds.notice(name)

    @rule(index=INDEX)
    def connect(self, index: int) -> None:
        if name := some(self.worlds, index):
            self.worlds.connect(name)

    @rule(index=INDEX, suspect=INDEX)
    def break_world(self, index: int, suspect: int) -> None:
        if name := some(self.worlds, index):
            self.worlds.break_world(name, (some(self.worlds, suspect),))

    @rule(index=INDEX)
    def hang(self, index: int) -> None:
        if name := some(self.worlds, index):
            self.worlds.hang(name)

    @rule()
    def find_hung(self) -> None:
        for name in [n for n, w in self.worlds.workers.items() if w.hung and w.alive]:
            self.worlds.find_hung(name)

    @rule(other=st.integers(0, 9))
    def launch(self, other: int) -> None:
        self.worlds.launch("cpu" if other else "gpu")

    @rule()
    def tell_news(self) -> None:
        self.worlds.tell_news()

    @rule()
    def reap(self) -> None:
        self.worlds.reap()

    @rule(trouble=st.integers(0, 3))
    def publish(self, trouble: int) -> None:
        self.worlds.publish("disk full" if trouble == 1 else "", damaged=trouble == 2)

    @rule(count=st.integers(1, 4))
    def scale(self, count: int) -> None:
        self.worlds.hear(e.ScaleRequested("worker", count))

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 12.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.worlds.wait(seconds)

    @rule()
    def restart_master(self) -> None:
        self.worlds.restart_master()

    @rule(index=INDEX)
    def master_dies_acting(self, index: int) -> None:
        name = some(self.worlds, index)
        if name and self.worlds.workers[name].outbox:
            self.worlds.deliver(name, dies=True)

    def teardown(self) -> None:
        if hasattr(self, "worlds"):
            finish(self.worlds)


def finish(worlds: Worlds) -> None:
    worlds.settle()
    assert worlds.replayed() == worlds.job
    assert JOB.validate_json(JOB.dump_json(worlds.job)) == worlds.job


class TestWorlds(WorldsMachine.TestCase):
    settings = SETTINGS


def test_storms_break_no_promise_and_calm_ends_every_job() -> None:
    met: Counter[str] = Counter()
    for seed in range(250):
        try:
            met.update(Storm(seed, faults=WIND if seed % 4 == 3 else None).run().met)
        except AssertionError as broken:
            raise AssertionError(f"storm {seed}: {broken}") from broken
    assert not [kind for kind in KINDS if not met[kind]], f"only {met} happened"


@pytest.mark.parametrize("name", MUTANTS)
def test_storms_catch_the_mutant(name: str) -> None:
    """The bug is found within its number of storms, and the code without it weathers the very storm that found it."""
    mutant = MUTANTS[name]
    for seed in range(mutant.first, mutant.first + mutant.storms):
        try:
            mutant.storm(seed, mutant.kind).run()
        except AssertionError:
            mutant.storm(seed, Membership).run()
            return
    pytest.fail(f"{mutant.storms} storms did not notice that {mutant.what}")
