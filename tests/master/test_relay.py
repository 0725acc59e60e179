"""What workers say through the master: who is taken for hung, and who is not."""

from __future__ import annotations

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.allreduce_job import STACK_SECONDS
from elasticdl.core.membership import Phase
from elasticdl.core.pulses import FLOOR_SECONDS, STALL_SECONDS
from elasticdl.master.relay import AGAIN_SECONDS, Relay
from elasticdl.wire import control_pb2 as pb
from tests.core.allreduce_play import Play, W, of


def training() -> Relay:
    play = Play()
    play.trains(W[0], W[1])
    return Relay(play.job, lambda name, message: None)


def pulse(relay: Relay, worker: str, now: float, seconds: float = 0.0, phase: str = "compute") -> None:
    told = pb.Pulse(generation=1, step=7, phase=phase, seconds=seconds, step_seconds=0.1)
    relay.pulse(worker, told, now)


def test_who_stands_still_is_looked_at_twice() -> None:
    relay = training()
    pulse(relay, W[0], 10)
    assert relay.deadline() == 10 + FLOOR_SECONDS
    first = 10 + FLOOR_SECONDS
    assert relay.hung(first) == [] and relay.deadline() == first + AGAIN_SECONDS
    pulse(relay, W[0], first + 0.2, seconds=5.2)
    why = "compute of step 7 lasts 5.5 s already"
    assert relay.hung(first + AGAIN_SECONDS) == [e.WorkerHung(W[0], why, 10)]


def test_a_master_that_stood_still_itself_takes_nobody_for_hung() -> None:
    relay = training()
    for worker in W[:2]:
        pulse(relay, worker, 10)
    assert relay.hung(30) == [], "it may be that nobody listened"
    for worker in W[:2]:
        pulse(relay, worker, 30.1)
    assert relay.hung(30 + AGAIN_SECONDS) == [] and relay.deadline() == 30.1 + FLOOR_SECONDS


def test_who_comes_back_after_it_was_out_of_touch_is_not_hung() -> None:
    relay = training()
    pulse(relay, W[0], 10)
    relay.again(W[0], 30)
    assert relay.hung(30) == relay.hung(30 + AGAIN_SECONDS) == []
    assert relay.deadline() == 30 + FLOOR_SECONDS


def test_an_exchange_that_nobody_gets_out_of_breaks_the_world_and_nobody_is_taken_for_hung() -> None:
    relay = training()
    for worker in W[:2]:
        pulse(relay, worker, 39.9, seconds=29.9, phase="exchange")
    first = 10 + STALL_SECONDS
    assert relay.deadline() == first and relay.hung(first) == [] and relay.deadline() == first + AGAIN_SECONDS
    why = "everybody is in the exchange of step 7, which does not end in 30.5 s"
    assert relay.hung(first + AGAIN_SECONDS) == [e.WorldBroken(W[0], 1, 7, why)]


def test_a_silent_network_while_the_state_is_copied_breaks_the_world_and_costs_nobody_its_life() -> None:
    play = Play()
    play.join(W[0], W[1])
    for worker in W[:2]:
        play.hear(e.WorldConfirmed(worker, 1, (0, 0)))
    assert play.job.membership.phase is Phase.RUNNING and not play.job.membership.training
    relay = Relay(play.job, lambda name, message: None)
    for worker in W[:2]:
        pulse(relay, worker, 39.9, seconds=29.9, phase="copy")
    first = 10 + STALL_SECONDS
    assert relay.deadline() == first and relay.hung(first) == [] and relay.deadline() == first + AGAIN_SECONDS
    why = "everybody waits for the state to be copied, of which nothing came for 30.5 s"
    (broken,) = relay.hung(first + AGAIN_SECONDS)
    assert broken == e.WorldBroken(W[0], 1, 7, why)
    out = play.hear(broken)
    assert [(p.members, p.urgent) for p in of(c.ProposeWorld, out)] == [((W[0], W[1]), True)]
    assert not of(c.StopReplica, out)


def test_a_world_whose_exchange_ended_while_the_master_stood_still_is_not_broken() -> None:
    relay = training()
    for worker in W[:2]:
        pulse(relay, worker, 10, phase="exchange")
    assert relay.hung(10 + STALL_SECONDS) == []
    for worker in W[:2]:
        pulse(relay, worker, 40.1, phase="exchange")
    assert relay.hung(40 + AGAIN_SECONDS) == [] and relay.hung(41) == []


def test_who_lost_its_stream_is_hung_when_everybody_else_waits_for_it_and_not_while_they_go_on() -> None:
    """A process that stands still answers no ping: whether its stream breaks before it is missed is chance."""
    play = Play()
    play.trains(W[0], W[1])
    relay = Relay(play.job, lambda name, message: None)
    pulse(relay, W[1], 10)
    play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    for now in (10, 20, 30):
        pulse(relay, W[0], now, seconds=0.1, phase="compute")
        assert relay.hung(now) == [], "it may be cut off from the master only"
    pulse(relay, W[0], 31, phase="exchange")
    first = 31 + FLOOR_SECONDS
    assert relay.hung(first - 0.1) == []
    pulse(relay, W[0], first - 0.1, seconds=FLOOR_SECONDS - 0.1, phase="exchange")
    assert relay.deadline() == first and relay.hung(first) == [] and relay.deadline() == first + AGAIN_SECONDS
    (hung,) = relay.hung(first + AGAIN_SECONDS)
    why = "silent for 26.5 s, and the others wait for it in the exchange of step 7"
    assert hung == e.WorkerHung(W[1], why, 10)
    out = play.hear(hung)
    assert [p.members for p in of(c.ProposeWorld, out)] == [(W[0],)]
    assert [(s.name, s.grace_seconds) for s in of(c.StopReplica, out)] == [(W[1], STACK_SECONDS)]


def test_who_was_busy_with_what_may_take_long_when_its_stream_broke_is_given_the_time() -> None:
    play = Play()
    play.trains(W[0], W[1])
    relay = Relay(play.job, lambda name, message: None)
    pulse(relay, W[1], 10, phase="evaluate")
    play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    pulse(relay, W[0], 60, seconds=50, phase="exchange")
    assert relay.hung(60) == relay.hung(60 + AGAIN_SECONDS) == []
