"""A thousand simulated jobs with seeded faults: every record exactly once, every job ends, every kind of fault occurs.

A failing seed is told as a story by `python -m tests.simulation SEED`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.simulation.mutants import MUTANTS, with_torn_cuts
from tests.simulation.network import Weather
from tests.simulation.scenario import Scenario, random_scenario
from tests.simulation.world import World, simulate

JOBS, CHUNK = 1000, 50
BUDGET_SECONDS, STARTED = 60, time.process_time()
KINDS = (
    "worker killed", "worker preempted", "worker stalled", "worker cut off", "out of memory", "master killed",
    "master killed while it acted", "stream broken", "message lost", "message repeated", "event missed",
    "bad record met", "bad record set aside", "job failed by a bad record", "stop asked for", "checkpoint",
    "cut found unequal", "torn cut repaired", "evaluation delayed", "server killed", "server preempted", "disk full",
    "damaged checkpoint met", "told that the timeline is over", "ps scaled", "worker scaled",
    "round", "gradient rejected as stale",
)  # fmt: skip


@pytest.fixture(scope="module")
def met() -> Iterator[Counter[str]]:
    """Faults counted over the whole module."""
    yield Counter()


def run(seed: int, scenario: Scenario) -> World:
    try:
        return simulate(scenario)
    except AssertionError as broken:
        raise AssertionError(f"seed {seed}: {broken} (its story: python -m tests.simulation {seed})") from broken


@pytest.mark.parametrize("first", range(0, JOBS, CHUNK))
def test_jobs_with_random_faults_train_every_record_exactly_once(first: int, met: Counter[str]) -> None:
    for seed in range(first, first + CHUNK):
        world = run(seed, random_scenario(seed))
        met += world.faults
        assert world.outcome is not None
        met[world.outcome[0]] += 1
    met["jobs"] += CHUNK


def test_cuts_survive_workers_that_die_between_two_servers(met: Counter[str]) -> None:
    for seed in range(30):
        met += run(seed, with_torn_cuts(random_scenario(seed))).faults


def test_every_kind_of_fault_really_happened(met: Counter[str]) -> None:
    if met["jobs"] < JOBS:
        pytest.skip("only a part of the jobs was run")
    missing = [kind for kind in (*KINDS, "succeeded", "stopped", "failed") if not met[kind]]
    assert not missing, f"none of {len(met)} kinds: {missing}"
    spent = time.process_time() - STARTED
    print(f"\n{JOBS} jobs, {spent:.0f} s of CPU (budget {BUDGET_SECONDS}): ", end="")
    print(", ".join(f"{kind}: {met[kind]}" for kind in sorted(met)))


def test_a_job_without_faults_is_not_disturbed_by_anything() -> None:
    world = simulate(Scenario(seed=1))
    assert world.outcome == ("succeeded", "all 80 records are trained")
    assert world.metrics[0] in (7, 8), "where it was due, or one later where two servers had different batches"
    assert world.metrics[-1] == 28, "the last of the last version"
    assert sorted(set(world.metrics)) == world.metrics
    disturbances = {kind for kind, n in world.faults.items() if n} - {"cut found unequal", "evaluation delayed"}
    assert not disturbances
    assert len(world.workers) == 2 and len(world.servers) == 2


def test_a_synchronous_job_is_evaluated_and_saved_exactly_where_it_should_be() -> None:
    scenario = Scenario(seed=1, round_batches=4, workers=3, evaluation_steps=4, checkpoint_steps=3)
    world = simulate(scenario)
    assert world.outcome == ("succeeded", "all 80 records are trained")
    assert world.metrics == [4, 8], "14 batches an epoch are four rounds, the last one of two batches"
    assert "version-3" in world.disk
    assert world.faults["round"] == 8 * scenario.servers and not world.faults["gradient rejected as stale"]


def test_the_same_seed_tells_the_same_story() -> None:
    stories: list[list[str]] = [[], []]
    for story in stories:
        World(random_scenario(3), tell=story.append).run()
    assert stories[0] == stories[1]


def test_a_job_whose_workers_never_live_long_still_ends() -> None:
    storm = Scenario(
        seed=5, records=200, kill_workers_every=0.8, preempt_workers_every=1.5, kill_master_every=4.0, miss_events=0.5,
        weather=Weather(0.05, loss=0.3, repeat=0.3, break_every=1.0),
    )  # fmt: skip
    world = simulate(storm)
    assert world.outcome is not None and world.outcome[0] == "succeeded"
    assert world.faults["worker killed"] + world.faults["worker preempted"] > 5


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_catches_the_mutant(name: str) -> None:
    """The bug is found within its number of seeds, and the code without it passes the very seed that found it."""
    mutant = MUTANTS[name]
    for seed in range(mutant.seeds):
        scenario = mutant.scenario(random_scenario(seed))
        try:
            simulate(scenario, mutant.parts)
        except AssertionError:
            simulate(scenario)
            return
    pytest.fail(f"{mutant.seeds} seeds did not notice that {mutant.what}")


def test_the_code_without_a_bug_passes_the_seeds_of_all_mutants() -> None:
    """Seeds of plain scenarios are among the thousand jobs above; these are the ones with a scenario of their own."""
    for mutant in MUTANTS.values():
        plain = replace(Scenario(0)) == mutant.scenario(Scenario(0))
        for seed in range(0 if plain else min(mutant.seeds, 15)):
            run(seed, mutant.scenario(random_scenario(seed)))
