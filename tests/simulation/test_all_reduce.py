"""Simulated all-reduce jobs with seeded faults: the real core, brain, relay and sessions keep every promise."""

from __future__ import annotations

from collections import Counter

from tests.core.storms import WIND, Storm
from tests.simulation.all_reduce import SessionWorlds

STORMS = 300


def test_jobs_in_storms_train_every_step_once_and_end() -> None:
    met: Counter[str] = Counter()
    for seed in range(STORMS):
        try:
            storm = Storm(seed, faults=WIND if seed % 3 == 2 else None, worlds=SessionWorlds)
            met.update(storm.run().met)
        except AssertionError as broken:
            raise AssertionError(f"storm {seed}: {broken}") from broken
    kinds = ("state copied", "sum missed", "master restarted", "damaged checkpoint")
    assert not [kind for kind in kinds if not met[kind]], f"only {met} happened"
