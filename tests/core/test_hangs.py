"""Which workers are taken for hung, and which are not."""

from __future__ import annotations

import pytest

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.strategies.allreduce.core.hangs import AGAIN_SECONDS, Hangs
from elasticdl.strategies.allreduce.core.machine import STACK_SECONDS
from elasticdl.strategies.allreduce.core.proposals import Phase
from elasticdl.strategies.allreduce.core.pulses import FLOOR_SECONDS, STALL_SECONDS, Pulses
from tests.core.allreduce_play import Play, W, of


def watching(play: Play) -> Hangs:
    return Hangs(play.job.membership, Pulses(play.terms.budget.hang_seconds))


def training() -> Hangs:
    play = Play()
    play.trains(W[0], W[1])
    return watching(play)


def pulse(
    hangs: Hangs, worker: str, now: float, seconds: float = 0.0, phase: str = "compute", generation: int = 1
) -> None:
    hangs.heard(worker, 7, phase, seconds, 0.1, now, generation)


def hung_at(hangs: Hangs, first: float) -> list[e.Event]:
    """What is found at a deadline, looked at twice."""
    assert hangs.deadline() == first and hangs.hung(first - 0.01) == []
    assert hangs.hung(first) == [] and hangs.deadline() == first + AGAIN_SECONDS
    return hangs.hung(first + AGAIN_SECONDS)


def test_a_worker_that_stands_still_is_looked_at_twice() -> None:
    hangs = training()
    pulse(hangs, W[0], 10)
    assert hangs.deadline() == 10 + FLOOR_SECONDS
    first = 10 + FLOOR_SECONDS
    assert hangs.hung(first) == [] and hangs.deadline() == first + AGAIN_SECONDS
    pulse(hangs, W[0], first + 0.2, seconds=5.2)
    why = "compute of step 7 has taken 5.5 s"
    assert hangs.hung(first + AGAIN_SECONDS) == [e.WorkerHung(W[0], why, 10)]


def test_a_master_that_stood_still_itself_takes_none_for_hung() -> None:
    hangs = training()
    for worker in W[:2]:
        pulse(hangs, worker, 10)
    assert hangs.hung(30) == [], "the master itself may not have listened"
    for worker in W[:2]:
        pulse(hangs, worker, 30.1)
    assert hangs.hung(30 + AGAIN_SECONDS) == [] and hangs.deadline() == 30.1 + FLOOR_SECONDS


def test_a_worker_that_comes_back_after_it_was_out_of_touch_is_not_hung() -> None:
    hangs = training()
    pulse(hangs, W[0], 10)
    hangs.back(W[0], 30, 0)
    assert hangs.hung(30) == hangs.hung(30 + AGAIN_SECONDS) == []
    assert hangs.deadline() == 30 + FLOOR_SECONDS


@pytest.mark.parametrize("leaves", [False, True])
def test_a_worker_that_says_nothing_after_it_came_back_is_hung_whatever_a_master_before_has_heard_of_it(
    leaves: bool,
) -> None:
    play = Play()
    play.trains(W[0], W[1])
    hangs = watching(play)
    for worker in W[:2]:
        hangs.back(worker, 10, 1)
    pulse(hangs, W[0], 14, phase="exchange")
    if leaves:
        play.leave(W[1])
    (hung,) = hung_at(hangs, 10 + FLOOR_SECONDS)
    assert hung == e.WorkerHung(W[1], "silent for 5.5 s (last: wait of step 0)", 10)


def test_an_exchange_that_none_gets_out_of_breaks_the_world_and_none_is_taken_for_hung() -> None:
    hangs = training()
    for worker in W[:2]:
        pulse(hangs, worker, 39.9, seconds=29.9, phase="exchange")
    first = 10 + STALL_SECONDS
    assert hangs.deadline() == first and hangs.hung(first) == [] and hangs.deadline() == first + AGAIN_SECONDS
    why = "all workers have been in the exchange of step 7 for 30.5 s"
    assert hangs.hung(first + AGAIN_SECONDS) == [e.WorldBroken(W[0], 1, 7, why)]


def test_a_silent_network_while_the_state_is_copied_breaks_the_world_and_costs_no_worker_its_life() -> None:
    play = Play()
    play.join(W[0], W[1])
    for worker in W[:2]:
        play.hear(e.WorldConfirmed(worker, 1, (0, 0)))
    assert play.job.membership.phase is Phase.RUNNING and not play.job.membership.training
    hangs = watching(play)
    for worker in W[:2]:
        pulse(hangs, worker, 39.9, seconds=29.9, phase="copy")
    first = 10 + STALL_SECONDS
    assert hangs.deadline() == first and hangs.hung(first) == [] and hangs.deadline() == first + AGAIN_SECONDS
    why = "no part of the state was copied for 30.5 s"
    (broken,) = hangs.hung(first + AGAIN_SECONDS)
    assert broken == e.WorldBroken(W[0], 1, 7, why)
    out = play.hear(broken)
    assert [(p.members, p.urgent) for p in of(c.ProposeWorld, out)] == [((W[0], W[1]), True)]
    assert not of(c.StopReplica, out)


def test_a_world_whose_exchange_ended_while_the_master_stood_still_is_not_broken() -> None:
    hangs = training()
    for worker in W[:2]:
        pulse(hangs, worker, 10, phase="exchange")
    assert hangs.hung(10 + STALL_SECONDS) == []
    for worker in W[:2]:
        pulse(hangs, worker, 40.1, phase="exchange")
    assert hangs.hung(40 + AGAIN_SECONDS) == [] and hangs.hung(41) == []


def test_a_worker_that_lost_its_stream_is_hung_when_all_others_wait_for_it_and_not_while_they_go_on() -> None:
    """A process that stands still answers no ping: whether its stream breaks before it is missed is chance."""
    play = Play()
    play.trains(W[0], W[1])
    hangs = watching(play)
    pulse(hangs, W[1], 10)
    play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    for now in (10, 20, 30):
        pulse(hangs, W[0], now, seconds=0.1, phase="compute")
        assert hangs.hung(now) == [], "it may be cut off from the master only"
    pulse(hangs, W[0], 31, phase="exchange")
    first = 31 + FLOOR_SECONDS
    assert hangs.hung(first - 0.1) == []
    pulse(hangs, W[0], first - 0.1, seconds=FLOOR_SECONDS - 0.1, phase="exchange")
    assert hangs.deadline() == first and hangs.hung(first) == [] and hangs.deadline() == first + AGAIN_SECONDS
    (hung,) = hangs.hung(first + AGAIN_SECONDS)
    why = "silent for 26.5 s while the others wait for it in the exchange of step 7"
    assert hung == e.WorkerHung(W[1], why, 10)
    out = play.hear(hung)
    assert [p.members for p in of(c.ProposeWorld, out)] == [(W[0],)]
    assert [(s.name, s.grace_seconds) for s in of(c.StopReplica, out)] == [(W[1], STACK_SECONDS)]


def test_a_worker_that_was_busy_with_what_may_take_long_when_its_stream_broke_is_given_the_time() -> None:
    play = Play()
    play.trains(W[0], W[1])
    hangs = watching(play)
    pulse(hangs, W[1], 10, phase="evaluate")
    play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    pulse(hangs, W[0], 60, seconds=50, phase="exchange")
    assert hangs.hung(60) == hangs.hung(60 + AGAIN_SECONDS) == []


@pytest.mark.parametrize("least", [1, 2])
def test_a_worker_that_hangs_is_found_also_when_it_is_told_to_go(least: int) -> None:
    """With a least of two there is no world without it: the other waits in the exchange all the same."""
    play = Play(least=least)
    play.trains(W[0], W[1])
    hangs = watching(play)
    pulse(hangs, W[0], 14, seconds=4, phase="exchange")
    pulse(hangs, W[1], 14, seconds=4)
    out = play.leave(W[1])
    assert [p.urgent for p in of(c.ProposeWorld, out)] == [False], "it may yet finish the step"
    (hung,) = hung_at(hangs, 10 + FLOOR_SECONDS)
    assert hung == e.WorkerHung(W[1], "compute of step 7 has taken 5.5 s", 10)
    out = play.hear(hung)
    members = (W[0],) if least == 1 else ()
    assert [(p.members, p.urgent) for p in of(c.ProposeWorld, out)] == [(members, True)]
    assert [s.name for s in of(c.StopReplica, out)] == [W[1]]


def test_a_worker_that_got_sigterm_and_has_left_its_world_may_take_its_time() -> None:
    """It may still write a checkpoint; no worker waits for it."""
    play = Play()
    play.trains(W[0], W[1])
    hangs = watching(play)
    play.leave(W[1])
    for now in (10, 1000):
        pulse(hangs, W[1], now, seconds=now - 10, phase="save", generation=0)
        assert hangs.deadline() == now + hangs.pulses.hang_seconds, "a program that pickles is silent for long"
        assert hangs.hung(now) == hangs.hung(now + AGAIN_SECONDS) == []
    assert [hung.worker for hung in hung_at(hangs, 1000 + hangs.pulses.hang_seconds)] == [W[1]]


def test_a_worker_that_hangs_in_a_world_that_went_on_without_it_is_found_as_well() -> None:
    """No worker waits for it, but it would never be replaced."""
    play = Play()
    play.trains(W[0], W[1])
    hangs = watching(play)
    play.leave(W[1])
    play.hear(e.WorldBroken(W[0], 1, 7, "connection reset"))
    play.enter((1, 7))
    assert play.job.membership.training and play.job.membership.members == (W[0],)
    pulse(hangs, W[1], 10)
    assert [hung.worker for hung in hung_at(hangs, 10 + FLOOR_SECONDS)] == [W[1]]


@pytest.mark.parametrize("change", ["join", "leave"])
def test_a_silent_network_breaks_a_world_that_was_to_end_with_the_step(change: str) -> None:
    play = Play(workers=3)
    play.trains(W[0], W[1])
    hangs = watching(play)
    out = play.join(W[2]) if change == "join" else play.leave(W[1])
    members = (W[0], W[1], W[2]) if change == "join" else (W[0],)
    assert [(p.members, p.urgent) for p in of(c.ProposeWorld, out)] == [(members, False)]
    for worker in W[:2]:
        pulse(hangs, worker, 39.9, seconds=29.9, phase="exchange")
    (broken,) = hung_at(hangs, 10 + STALL_SECONDS)
    why = "all workers have been in the exchange of step 7 for 30.5 s"
    assert broken == e.WorldBroken(W[0], 1, 7, why)
    out = play.hear(broken)
    assert [(p.members, p.urgent) for p in of(c.ProposeWorld, out)] == [(members, True)]
    for worker in W[:2]:
        pulse(hangs, worker, 41, phase="wait", generation=0)
    assert hangs.hung(41) == hangs.hung(41 + AGAIN_SECONDS) == [], "it is being dealt with"


def test_a_worker_that_does_not_get_out_of_the_last_step_of_a_world_that_the_others_have_left_breaks_it() -> None:
    play = Play(workers=3)
    play.trains(W[0], W[1])
    hangs = watching(play)
    play.join(W[2])
    pulse(hangs, W[0], 39.9, phase="wait", generation=0)
    pulse(hangs, W[1], 39.9, seconds=29.9, phase="exchange")
    (broken,) = hung_at(hangs, 10 + STALL_SECONDS)
    assert isinstance(broken, e.WorldBroken) and broken.worker == W[1]
    out = play.hear(broken)
    assert [p.urgent for p in of(c.ProposeWorld, out)] == [True]


def test_a_worker_that_lost_its_stream_and_is_waited_for_is_hung_also_when_the_world_is_to_change() -> None:
    play = Play(workers=3)
    play.trains(W[0], W[1])
    hangs = watching(play)
    play.join(W[2])
    pulse(hangs, W[1], 10)
    play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    pulse(hangs, W[0], 15.9, seconds=4.9, phase="exchange")
    (hung,) = hung_at(hangs, 11 + FLOOR_SECONDS)
    assert isinstance(hung, e.WorkerHung) and hung.worker == W[1]
    assert [p.urgent for p in of(c.ProposeWorld, play.hear(hung))] == [True]


@pytest.mark.parametrize("left", [False, True])
def test_a_worker_that_cannot_be_called_out_of_an_exchange_is_hung_a_while_after_that_was_given_up(left: bool) -> None:
    """A driver that does not answer: neither the exchange ends, nor what is to end it. The heartbeat goes on."""
    play = Play(workers=3)
    play.trains(*W[:3])
    hangs = watching(play)
    for worker in W[:2]:
        pulse(hangs, worker, 10, phase="exchange")
    out = play.end(W[2])
    assert [(p.members, p.urgent) for p in of(c.ProposeWorld, out)] == [((W[0], W[1]), True)]
    wedged = 0 if left else 1  # it has said that it left, and closes the group
    for now in (20, 49.9):
        pulse(hangs, W[0], now, phase="wait", generation=0)
        pulse(hangs, W[1], now, seconds=now - 10, phase="exchange", generation=wedged)
        assert hangs.hung(now) == []
    play.hear(e.WorldConfirmed(W[0], play.job.membership.generation, (1, 7)))
    (hung,) = hung_at(hangs, 20 + STALL_SECONDS)
    why = "still in the exchange of step 7, which was aborted 30.5 s ago"
    assert hung == e.WorkerHung(W[1], why, 20)
    out = play.hear(hung)
    assert [(p.members, p.urgent) for p in of(c.ProposeWorld, out)] == [((W[0],), True)]
    assert [(s.name, s.grace_seconds) for s in of(c.StopReplica, out)] == [(W[1], STACK_SECONDS)]


def test_an_exchange_that_goes_on_in_the_next_world_is_not_one_that_was_given_up() -> None:
    play = Play(workers=3)
    play.trains(*W[:3])
    hangs = watching(play)
    play.end(W[2])
    for worker in W[:2]:
        pulse(hangs, worker, 10, phase="exchange")
    assert hangs.deadline() == 10 + FLOOR_SECONDS
    play.enter((1, 7))
    generation = play.job.membership.generation
    pulse(hangs, W[0], 41, phase="exchange", generation=generation)
    pulse(hangs, W[1], 41, phase="data", generation=generation)
    assert hangs.hung(41) == hangs.hung(41 + AGAIN_SECONDS) == []
