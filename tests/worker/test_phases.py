"""Time by phase, on a clock of our own."""

from __future__ import annotations

import pytest

from elasticdl.worker.phases import Phases


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_phase_inside_another_counts_once() -> None:
    clock = Clock()
    phases = Phases(clock)
    for _ in range(2):
        with phases("compute"):
            clock.now += 1
            with phases("pull rows"):
                clock.now += 3
            with phases("pull rows"):
                clock.now += 1
            clock.now += 0.5
        with phases("push"):
            clock.now += 2
    assert phases.seconds == {"pull rows": 8.0, "compute": 3.0, "push": 4.0}
    assert phases.line(2) == "Time per batch of 2: 4000.0 ms pull rows, 2000.0 ms push, 1500.0 ms compute"


def test_a_phase_that_fails_counts_too() -> None:
    clock = Clock()
    phases = Phases(clock)
    with pytest.raises(ValueError, match="no"), phases("push"):
        clock.now += 1
        raise ValueError("no")
    assert phases.seconds == {"push": 1.0}
