"""Which worker stands still while others wait for it: what pulses say, and when that is enough."""

from __future__ import annotations

import pytest

from elasticdl.strategies.allreduce.core.pulses import FLOOR_SECONDS, STALL_SECONDS, STEPS, Pulses


def heard(pulses: Pulses, worker: str, phase: str, seconds: float, now: float, step_seconds: float = 0.1) -> None:
    pulses.heard(worker, 7, phase, seconds, step_seconds, now)


def test_a_worker_that_waits_in_the_exchange_is_never_the_one_that_is_hung() -> None:
    pulses = Pulses(hang_seconds=300)
    heard(pulses, "a", "exchange", 100, now=100)
    heard(pulses, "b", "compute", 100, now=100)
    assert pulses.hung(["a", "b"], 100) == [("b", "compute of step 7 has taken 100.0 s", 0)]


def test_a_worker_that_says_nothing_any_more_is_hung_wherever_it_was() -> None:
    pulses = Pulses(hang_seconds=300)
    heard(pulses, "a", "exchange", 0, now=10)
    assert pulses.hung(["a"], 10 + FLOOR_SECONDS - 0.1) == []
    assert pulses.hung(["a"], 10 + FLOOR_SECONDS) == [("a", "silent for 5.0 s (last: exchange of step 7)", 10)]
    assert pulses.hung([], 1000) == [], "only members of the world are waited for"
    heard(pulses, "b", "compute", 1, now=20)
    assert pulses.hung(["b"], 24) == [("b", "silent for 4.0 s (last: compute of step 7)", 20)], (
        "it may be at another step"
    )


@pytest.mark.parametrize("step_seconds", [0.01, 2.0, 100.0])
def test_the_limit_follows_the_step_time_between_a_floor_and_the_flag(step_seconds: float) -> None:
    pulses = Pulses(hang_seconds=300)
    assert pulses.limit_seconds == 300, "nothing is learnt yet"
    heard(pulses, "a", "compute", 0, now=0, step_seconds=step_seconds)
    heard(pulses, "b", "compute", 0, now=0, step_seconds=step_seconds / 2)
    assert pulses.limit_seconds == min(300, max(FLOOR_SECONDS, STEPS * step_seconds)), "of the slowest"


@pytest.mark.parametrize("phase", ["compile", "evaluate", "build", "load", "data", "program"])
def test_what_the_step_time_says_nothing_about_may_take_as_long_as_the_flag_allows(phase: str) -> None:
    pulses = Pulses(hang_seconds=300)
    heard(pulses, "a", phase, 299, now=299)
    assert pulses.hung(["a"], 299) == []
    heard(pulses, "a", phase, 300, now=300)
    assert [name for name, *_ in pulses.hung(["a"], 300)] == ["a"]


def exchanging(pulses: Pulses, worker: str, since: float, now: float, step: int = 7, generation: int = 3) -> None:
    pulses.heard(worker, step, "exchange", now - since, 0.1, now, generation)


def test_an_exchange_that_all_are_in_has_an_end_and_one_that_a_member_is_late_for_has_none() -> None:
    pulses = Pulses(hang_seconds=300)
    exchanging(pulses, "a", since=0, now=200)
    heard(pulses, "b", "data", 1, now=200)
    assert pulses.stuck_at(["a", "b"], 3, True) is None, "b may be slow: that is for its own limit to say"
    exchanging(pulses, "b", since=190, now=200)
    assert pulses.stuck_at(["a", "b"], 3, True) == 190 + STALL_SECONDS, "counted from the last one's coming"
    assert pulses.stuck_at(["a", "b"], 3, False) == 190 + 300, "a third one, out of touch, may be at work"
    assert pulses.stuck_at(["a", "b"], 4, True) is None, "what they said of the world before"
    assert pulses.stuck_at(["a", "b", "c"], 3, True) is None and pulses.stuck_at([], 3, False) is None
    exchanging(pulses, "b", since=190, now=200, step=8)
    assert pulses.stuck_at(["a", "b"], 3, True) == 190 + STALL_SECONDS, "a should have got out of it as b did"


def copying(pulses: Pulses, worker: str, since: float, now: float, step: int = 7, generation: int = 3) -> None:
    pulses.heard(worker, step, "copy", now - since, 0.0, now, generation)


def test_a_copy_of_which_nothing_comes_any_more_breaks_the_world_and_none_of_it_is_hung() -> None:
    """Sender, receiver and those that wait for both look alike."""
    pulses = Pulses(hang_seconds=300)
    copying(pulses, "a", since=100, now=400, step=7)
    copying(pulses, "b", since=95, now=400, step=0)
    copying(pulses, "c", since=0, now=400, step=0)
    members = ["a", "b", "c"]
    assert pulses.stuck_at(members, 3, True) == 100 + STALL_SECONDS, "since something came last, to whomever"
    assert pulses.hung(members, 400) == [], "they hold the only copies of the state"
    assert pulses.stuck_at(members, 3, False) == 100 + 300 and pulses.stuck_at(members, 4, True) is None
    exchanging(pulses, "a", since=110, now=400)
    assert pulses.stuck_at(members, 3, True) == 110 + STALL_SECONDS, "one has gone on to a step that needs them all"
    pulses.heard("a", 7, "load", 299, 0.0, 400, 3)
    assert pulses.stuck_at(members, 3, True) is None, "they wait for one that reads a checkpoint"
    pulses.heard("a", 7, "load", 300, 0.0, 401, 3)
    assert [name for name, *_ in pulses.hung(members, 401)] == ["a"], "and only that one can be hung"


def test_a_short_limit_for_hung_workers_is_one_for_copies_as_well() -> None:
    pulses = Pulses(hang_seconds=12)
    for name in "ab":
        copying(pulses, name, since=10, now=20)
    assert pulses.stuck_at(["a", "b"], 3, True) == 10 + 12


def test_the_clock_is_asked_for_when_a_worker_may_turn_out_to_be_hung() -> None:
    pulses = Pulses(hang_seconds=300)
    assert pulses.deadline(["a"]) is None
    heard(pulses, "a", "compute", 2, now=10)
    assert pulses.deadline(["a"]) == 8 + FLOOR_SECONDS, "the phase began two seconds ago"
    pulses.forget("a")
    assert pulses.deadline(["a"]) is None and pulses.limit_seconds == 300


def test_a_worker_that_was_out_of_touch_is_not_hung_when_it_comes_back() -> None:
    pulses = Pulses(hang_seconds=300)
    heard(pulses, "a", "compute", 0, now=0)
    pulses.back("a", 20)
    assert pulses.hung(["a"], 20) == []
    assert pulses.hung(["a"], 20 + FLOOR_SECONDS) == [("a", "silent for 5.0 s (last: wait of step 7)", 20)]
