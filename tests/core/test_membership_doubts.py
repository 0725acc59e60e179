"""Worlds in doubt: streams that break, a master that was away, which state wins, whose arithmetic counts."""

from __future__ import annotations

import pytest

from elasticdl.collective.control import PULSE_SECONDS
from elasticdl.core import commands as c
from elasticdl.master.master import CUT_SECONDS
from elasticdl.strategies.allreduce.core.machine import STACK_SECONDS
from elasticdl.strategies.allreduce.core.membership import (
    LAST_CALL_SECONDS,
    MARGIN_SECONDS,
    NOTHING,
    NOTICE_SECONDS,
    RETURN_SECONDS,
    Phase,
    State,
)
from elasticdl.wire.link import OPTIONS
from tests.core.membership_play import GRACE, Play, proposal, start

# Streams.


def test_a_broken_stream_changes_nothing_in_a_world_that_trains() -> None:
    play = Play()
    play.trains("a", "b")
    play.join("c")
    assert play.drop("b") == [] and play.m.training
    assert play.wait(60.0) == []
    assert play.join("b", generation=1) == []


def test_a_worker_that_is_out_of_touch_while_a_world_is_proposed_is_left_out_and_comes_back_later() -> None:
    play = Play()
    play.trains("a", "b")
    play.broken("a")
    assert play.drop("b") == [c.ProposeWorld(3, ("a",), ("a", "b"), True, "b is disconnected")]
    play.confirm(a=(1, 5))
    play.join("b")
    assert proposal(play.form()).members == ("a", "b")


def test_a_worker_that_did_not_hear_the_start_is_told_again_and_the_same() -> None:
    play = Play()
    play.trains("a", "b")
    play.broken("a")
    started = start(play.confirm(a=(1, 5), b=(1, 4)))
    play.drop("b")
    play.m.checkpoint = ("step-9", 9)  # it came meanwhile, from a worker that is gone
    again = start(play.join("b"))
    assert (again.state, again.copies, again.directory) == (started.state, started.copies, "")
    assert again.to == ("b",)


def test_a_worker_that_left_the_world_unheard_has_broken_it() -> None:
    play = Play()
    play.trains("a", "b")
    play.drop("a")
    assert proposal(play.join("a")).urgent


def test_a_step_tells_that_all_have_formed_though_word_of_it_was_lost() -> None:
    play = Play()
    play.join("a", "b")
    play.confirm(a=NOTHING, b=NOTHING)
    play.form("a")
    assert not play.m.training
    play.join("c")
    play.m.wanted = 3
    assert proposal(play.step(1)).members == ("a", "b", "c")


def test_a_worker_that_returns_from_a_world_that_is_over_is_called_out_of_it_at_once() -> None:
    play = Play()
    play.trains("a", "b")
    play.drop("b")
    play.broken("a")
    play.confirm(a=(1, 5))
    play.form()
    out = play.join("b", generation=1)
    assert c.ProposeWorld(3, ("a", "b"), ("b",), True, "its world has ended") in out


def test_a_worker_that_was_to_be_in_a_world_that_is_given_up_is_told() -> None:
    play = Play(least=2)
    play.join("a", "b")
    assert proposal(play.gone("a")).to == ("b",)


# The master dies and comes back.


def test_a_world_that_trains_goes_on_while_the_master_is_away() -> None:
    play = Play()
    play.trains("a", "b")
    play.restart()
    assert play.join("a", "b", generation=1) == []
    assert play.m.training and play.m.generation == 1


def test_a_proposal_is_said_again_after_the_master_was_away() -> None:
    play = Play()
    play.trains("a", "b")
    play.broken("a")
    play.restart()
    assert play.join("a") == [c.ProposeWorld(2, ("a", "b"), ("a",), True, "it reconnected")]
    play.confirm(a=(1, 5))
    play.join("b", generation=1)
    assert start(play.confirm(b=(1, 5))).members == ("a", "b")


def test_a_worker_that_does_not_find_the_new_master_is_left_out_of_a_world_to_come() -> None:
    play = Play()
    play.trains("a", "b")
    play.broken("a")
    play.restart()
    play.join("a")
    play.confirm(a=(1, 5))
    assert play.m.deadline(play.now) == play.now + RETURN_SECONDS
    assert proposal(play.wait(RETURN_SECONDS)).members == ("a",)


def test_a_start_that_the_old_master_did_not_send_is_sent_by_the_new_one() -> None:
    play = Play()
    play.join("a", "b")
    play.confirm(a=NOTHING, b=NOTHING)
    play.restart()
    assert start(play.join("a")).to == ("a",)
    assert start(play.join("b")).copies == {"b": "a"}


def test_a_worker_that_waits_as_a_standby_is_not_disturbed_by_a_new_master() -> None:
    play = Play(wanted=1)
    play.trains("a")
    play.join("b")
    play.restart()
    assert proposal(play.join("b")).members == ("a",), "it hears which world there is"
    assert play.join("a", generation=1) == []


# Rule 7: no two worlds commit side by side.


def test_a_world_without_a_member_of_the_last_one_waits_until_that_one_must_have_stopped() -> None:
    play = Play(wanted=1)
    play.trains("a")
    play.drop("a")
    play.join("b")
    assert play.m.phase is Phase.RUNNING, "a may well train on"
    play.m.exclude("a", play.now + 10)
    assert play.m.phase is Phase.PROPOSED
    assert play.confirm(b=NOTHING) == []
    assert play.m.deadline(play.now) == play.now + GRACE, "counted from when it was last heard"
    assert play.wait(GRACE - 0.1) == []
    assert start(play.wait(0.1)).members == ("b",)


def test_the_wait_is_longer_than_a_worker_takes_to_notice_a_silent_network() -> None:
    """It sends a ping when it has read nothing for a while, and waits for the answer; the master may know at once."""
    options = dict(OPTIONS)
    ping = max(options["grpc.keepalive_timeout_ms"], options["grpc.http2.ping_timeout_ms"])
    assert (options["grpc.keepalive_time_ms"] + ping) / 1000 == NOTICE_SECONDS
    # One that is put down is spoken to for a moment longer, and looks at its stream a few times a second.
    assert MARGIN_SECONDS >= NOTICE_SECONDS + STACK_SECONDS + CUT_SECONDS + 2 * PULSE_SECONDS


def test_a_death_that_is_known_ends_the_wait() -> None:
    play = Play(wanted=1)
    play.trains("a")
    play.drop("a")
    play.m.exclude("a", play.now)
    play.join("b")
    play.confirm(b=NOTHING)
    assert start(play.gone("a")).members == ("b",)


def test_one_member_that_has_left_is_enough() -> None:
    play = Play(wanted=3)
    play.trains("a", "b", "c")
    play.drop("b", "c")
    play.broken("a")
    assert start(play.confirm(a=(1, 5))).members == ("a",), "without it the others can finish no exchange"


def test_a_worker_that_comes_back_with_the_state_is_taken_in_by_a_world_that_waits_for_it() -> None:
    play = Play(wanted=2)
    play.trains("a", "b")
    play.drop("b")
    play.gone("a")
    play.join("c", "d")
    play.confirm(c=NOTHING, d=NOTHING)
    assert play.m.phase is Phase.PROPOSED, "b holds what they lack"
    proposed = proposal([x for x in play.join("b", generation=1) if x.reason != "its world has ended"])
    assert "b" in proposed.members and len(proposed.members) == 2
    started = start(play.confirm(**{n: (1, 5) if n == "b" else NOTHING for n in proposed.members}))
    assert started.state == (1, 5)


def test_a_newcomer_that_had_not_copied_yet_does_not_start_anew_while_the_holder_is_silent() -> None:
    play = Play(wanted=2)
    play.join("a")
    play.wait(LAST_CALL_SECONDS)
    play.confirm(a=NOTHING)
    play.form()
    play.step(5)
    play.join("b")
    play.confirm(a=(1, 5), b=NOTHING)
    play.drop("a")
    play.broken("b", "a")
    assert play.m.members == ("b",)
    assert play.confirm(b=NOTHING) == [], "a will be back"
    assert "a" in proposal(play.join("a", generation=2)).members


# Which state wins.


@pytest.mark.parametrize(
    ("mine", "zombie", "wins", "copies"),
    [
        ((3, 9), (1, 7), (3, 9), {"z": "a"}),  # behind
        ((3, 9), (1, 9), (3, 9), {"z": "a"}),  # the same step of an older world: another model, perhaps
        ((3, 9), (1, 12), (1, 12), {"a": "z"}),  # ahead: what it trained is not trained again
        ((3, 9), (3, 9), (3, 9), {}),
    ],
)
def test_the_most_steps_win_and_of_one_step_the_newest_world(
    mine: State, zombie: State, wins: State, copies: dict[str, str]
) -> None:
    play = Play()
    play.trains("a")
    play.m.generation = 4
    play.join("z")
    started = start(play.confirm(a=mine, z=zombie))
    assert started.state == wins and started.copies == copies


def test_a_checkpoint_that_is_newer_than_any_live_state_is_read_by_the_first_and_copied() -> None:
    play = Play()
    play.trains("a", "b")
    play.m.checkpoint = ("step-8", 8)
    play.broken("a")
    started = start(play.confirm(a=(1, 5), b=(1, 7)))
    assert started.state == (0, 8) and started.directory == "step-8" and started.copies == {"b": "a"}


def test_a_live_state_is_preferred_to_a_checkpoint_of_the_same_step() -> None:
    play = Play()
    play.trains("a", "b")
    play.m.checkpoint = ("step-7", 7)
    play.broken("a")
    assert start(play.confirm(a=(1, 5), b=(1, 7))).directory == ""


def test_when_all_are_lost_the_newest_checkpoint_is_where_newcomers_begin() -> None:
    play = Play()
    play.trains("a", "b", step=12)
    play.m.checkpoint = ("step-10", 10)
    play.gone("a")
    play.gone("b")
    play.join("c")
    started = start(play.confirm(c=NOTHING))
    assert started.state == (0, 10) and started.directory == "step-10"


# Arithmetic.


def test_a_worker_of_another_arithmetic_is_not_taken_and_people_are_told_why() -> None:
    play = Play()
    play.trains("a")
    out = play.join("b", fingerprint="avx2")
    (told,) = [x.text for x in out if isinstance(x, c.Announce)]
    assert told.startswith("Rejected b: different library versions or CPU type (avx2; the first workers have cpu)")
    assert play.m.phase is Phase.RUNNING
    assert not [x for x in play.join("b", fingerprint="avx2") if isinstance(x, c.Announce)], "once is enough"


def test_the_first_world_is_of_one_arithmetic() -> None:
    play = Play(wanted=3)
    play.join("a", fingerprint="avx2")
    play.join("b", "c")
    play.wait(LAST_CALL_SECONDS)
    assert play.m.members == ("b", "c"), "the one that most have"
    out = play.confirm(b=NOTHING, c=NOTHING)
    assert any(isinstance(x, c.Announce) and x.text.startswith("Rejected a: ") for x in out)


def test_any_arithmetic_will_do_where_weights_may_differ() -> None:
    play = Play(same_arithmetic=False)
    play.join("a")
    assert proposal(play.join("b", fingerprint="avx2")).members == ("a", "b")


def test_when_nothing_is_left_of_what_was_trained_any_arithmetic_may_begin_anew() -> None:
    play = Play(wanted=1)
    play.trains("a")
    play.join("b", fingerprint="avx2")
    assert proposal(play.gone("a")).members == ("b",)


def test_what_is_on_disk_is_not_taken_up_with_another_arithmetic() -> None:
    play = Play(wanted=1)
    play.trains("a")
    play.m.checkpoint = ("step-4", 4)
    play.join("b", fingerprint="avx2")
    assert proposal(play.gone("a")).members == ()


def test_a_worker_that_comes_back_from_the_last_world_is_taken_in_by_one_that_waits_for_its_end() -> None:
    play = Play(wanted=3)
    play.join("a", "b")
    play.wait(LAST_CALL_SECONDS)
    play.confirm(a=NOTHING, b=NOTHING)  # none holds anything yet, but they may begin any moment
    play.drop("a")
    play.gone("b")
    play.join("c")
    assert play.confirm(c=NOTHING) == []
    assert "a" in proposal(play.join("a")).members
