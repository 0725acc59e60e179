"""Worlds that form, change and break: what workers say in, proposals and starts out."""

from __future__ import annotations

from elasticdl.core import commands as c
from elasticdl.strategies.allreduce.core.membership import (
    LAST_CALL_SECONDS,
    NOTHING,
    PATIENCE,
    Phase,
)
from tests.core.membership_play import Play, proposal, start

# The first world.


def test_the_first_world_is_proposed_when_all_that_are_wanted_are_ready() -> None:
    play = Play()
    assert play.join("a") == []
    assert play.join("b") == [c.ProposeWorld(1, ("a", "b"), ("a", "b"), True, "2 workers are ready")]


def test_the_first_world_waits_a_little_for_the_rest_and_then_begins_without_them() -> None:
    play = Play()
    play.join("a")
    assert play.m.deadline(play.now) == play.now + LAST_CALL_SECONDS
    assert play.wait(LAST_CALL_SECONDS - 0.1) == []
    assert proposal(play.wait(0.1)).members == ("a",)


def test_a_world_starts_when_all_have_confirmed_and_all_take_the_model_of_the_first() -> None:
    play = Play()
    play.join("a", "b")
    assert play.confirm(b=NOTHING) == []
    assert play.confirm(a=NOTHING) == [c.StartWorld(1, ("a", "b"), ("a", "b"), NOTHING, {"b": "a"}, "")]
    assert not play.m.training
    play.form()
    assert play.m.training and play.m.holder() == "a"


def test_a_confirmation_of_an_older_proposal_does_not_count() -> None:
    play = Play(wanted=1)
    play.join("a")
    play.drop("a")
    play.join("a")
    assert play.m.confirm("a", 1, NOTHING, play.now) == [] and play.m.phase is Phase.PROPOSED
    assert play.confirm(a=NOTHING)


def test_no_world_is_smaller_than_the_least_that_must_be_there() -> None:
    play = Play(wanted=3, least=2)
    play.join("a")
    assert play.wait(60.0) == []
    assert proposal(play.join("b")).members == ("a", "b")
    out = play.gone("b")
    assert proposal(out).members == () and play.m.phase is Phase.NONE
    assert out[-1] == c.Announce("Training paused: b is gone; at least 2 workers are needed")


# Coming and going.


def test_a_newcomer_joins_at_the_end_of_a_step_and_copies_the_state() -> None:
    play = Play(wanted=3)
    play.join("a", "b")
    play.wait(LAST_CALL_SECONDS)
    play.confirm(a=NOTHING, b=NOTHING)
    play.form()
    assert play.join("c") == [c.ProposeWorld(2, ("a", "b", "c"), ("a", "b", "c"), False, "c is joining")]
    started = start(play.confirm(c=NOTHING, a=(1, 7), b=(1, 7)))
    assert started.state == (1, 7) and started.copies == {"c": "a"}


def test_copies_are_shared_among_those_that_hold_the_state() -> None:
    play = Play(wanted=5)
    play.join("a", "b")
    play.wait(LAST_CALL_SECONDS)
    play.confirm(a=NOTHING, b=NOTHING)
    play.form()
    play.join("c", "d", "e")
    started = start(play.confirm(a=(1, 7), b=(1, 7), c=NOTHING, d=NOTHING, e=NOTHING))
    assert started.copies == {"c": "a", "d": "b", "e": "a"}


def test_a_worker_that_gets_sigterm_leaves_at_the_end_of_a_step() -> None:
    play = Play()
    play.trains("a", "b")
    assert play.m.leave("a", play.now) == [c.ProposeWorld(2, ("b",), ("b", "a"), False, "a is leaving")]
    assert start(play.confirm(b=(1, 6))).copies == {}


def test_when_all_leave_none_is_held_back() -> None:
    play = Play()
    play.trains("a", "b")
    play.m.leave("a", play.now)
    out = play.m.leave("b", play.now)
    assert proposal(out).members == () and set(proposal(out).to) == {"a", "b"}
    assert play.m.phase is Phase.NONE


def test_the_last_that_holds_the_state_stays_until_a_newcomer_has_copied_it() -> None:
    play = Play(wanted=1)
    play.trains("a")
    play.join("b")
    proposed = proposal(play.m.leave("a", play.now))
    assert set(proposed.members) == {"a", "b"} and not proposed.urgent
    assert start(play.confirm(b=NOTHING, a=(1, 6))).copies == {"b": "a"}
    assert play.form("a") == [], "it goes only when the other has formed"
    assert proposal(play.form("b")).members == ("b",)


def test_a_leaver_stays_while_the_only_other_member_is_out_of_touch() -> None:
    play = Play()
    play.trains("a", "b")
    play.drop("b")
    assert play.m.leave("a", play.now) == []
    assert proposal(play.join("b", generation=1)).members == ("b",)


def test_a_world_that_does_not_stand_is_left_at_once_by_a_worker_that_must_go() -> None:
    play = Play()
    play.join("a", "b")
    play.confirm(a=NOTHING, b=NOTHING)
    assert proposal(play.m.leave("b", play.now)).urgent, "there is no step to finish"


def test_one_change_follows_the_other_while_a_world_is_formed() -> None:
    play = Play()
    play.join("a")
    play.wait(LAST_CALL_SECONDS)
    play.confirm(a=NOTHING)
    assert play.join("b") == []
    assert proposal(play.form("a")).members == ("a", "b")


def test_more_are_taken_in_and_sent_away_as_the_number_that_is_wanted_changes() -> None:
    play = Play(wanted=1)
    play.trains("a")
    assert play.join("b", "c") == [], "they stand by"
    assert proposal(play.m.scaled(3, play.now)).members == ("a", "b", "c")
    play.confirm(a=(1, 6), b=NOTHING, c=NOTHING)
    play.form()
    assert play.m.scaled(2, play.now) == [c.ProposeWorld(3, ("a", "b"), ("a", "b", "c"), False, "c is leaving")]


# Losses.


def test_after_a_death_the_survivors_are_told_at_once_and_go_on_from_the_highest_step() -> None:
    play = Play(wanted=3)
    play.trains("a", "b", "c")
    assert play.gone("b") == [c.ProposeWorld(2, ("a", "c"), ("a", "c"), True, "b is gone")]
    started = start(play.confirm(a=(1, 6), c=(1, 7)))
    assert started.state == (1, 7) and started.copies == {"a": "c"}


def test_a_death_while_a_world_is_proposed_leads_to_the_next_proposal() -> None:
    play = Play(wanted=3)
    play.trains("a", "b", "c")
    play.gone("b")
    play.confirm(a=(1, 6))
    assert play.gone("c") == [c.ProposeWorld(3, ("a",), ("a",), True, "c is gone")]
    assert start(play.confirm(a=(1, 6))).members == ("a",)


def test_a_newcomer_that_dies_before_it_is_in_disturbs_no_step() -> None:
    play = Play(wanted=3)
    play.join("a", "b")
    play.wait(LAST_CALL_SECONDS)
    play.confirm(a=NOTHING, b=NOTHING)
    play.form()
    play.join("c")
    assert play.gone("c") == [c.ProposeWorld(3, ("a", "b"), ("a", "b"), False, "c is gone")]


def test_a_leaver_that_dies_before_the_step_ends_makes_it_urgent() -> None:
    play = Play()
    play.trains("a", "b")
    play.m.leave("a", play.now)
    assert play.gone("a") == [c.ProposeWorld(3, ("b",), ("b",), True, "a is gone")]


def test_a_standby_takes_the_place_of_a_lost_member() -> None:
    play = Play()
    play.trains("a", "b")
    play.join("c")
    assert proposal(play.gone("a")).members == ("b", "c")
    assert start(play.confirm(b=(1, 5), c=NOTHING)).copies == {"c": "b"}


def test_a_lost_rank_zero_is_like_any_other() -> None:
    play = Play()
    play.trains("a", "b")
    play.gone("a")
    assert start(play.confirm(b=(1, 5))).members == ("b",)
    assert proposal([*play.form(), *play.join("c")]).members == ("b", "c")


def test_another_process_under_the_same_name_holds_nothing_of_what_the_first_did() -> None:
    play = Play()
    play.trains("a", "b")
    out = play.m.joined("a", "another", 0, "cpu", False, play.now)
    assert next(x.reason for x in out if isinstance(x, c.ProposeWorld)) == "a is gone"
    assert "a" not in play.m.holders


def test_a_worker_that_is_put_down_counts_no_more_but_is_waited_for_where_it_was_alone() -> None:
    play = Play(wanted=1)
    play.trains("a")
    play.m.exclude("a", play.now)
    play.join("b")
    assert play.confirm(b=NOTHING) == [], "it may still be alive, and commit"
    assert start(play.gone("a")).members == ("b",)


# Worlds that break.


def test_a_broken_world_with_all_in_touch_is_formed_again_of_the_same() -> None:
    play = Play()
    play.trains("a", "b")
    assert play.broken("b", "a") == [c.ProposeWorld(2, ("a", "b"), ("a", "b"), True, "b reported that the world broke")]
    assert play.broken("a", "b") == [], "once is enough"
    assert not play.m.to_evict


def test_a_worker_that_is_suspected_most_goes_when_worlds_break_again_and_again() -> None:
    play = Play(wanted=3)
    play.trains("a", "b", "c")
    for _ in range(PATIENCE):
        play.broken("a", "b")
        play.confirm(a=(1, 5), b=(1, 5), c=(1, 5))
        play.form()
        assert not play.m.to_evict
    play.broken("c", "b", "a")
    assert play.m.to_evict == ["b"]


def test_a_step_in_between_forgives_everything() -> None:
    play = Play()
    play.trains("a", "b")
    for turn in range(3 * PATIENCE):
        play.broken("a", "b")
        play.confirm(a=play.at, b=play.at)
        play.form()
        play.step(6 + turn)
    assert not play.m.to_evict


def test_news_of_an_older_world_break_nothing() -> None:
    play = Play()
    play.trains("a", "b")
    play.broken("a")
    play.confirm(a=(1, 5), b=(1, 5))
    assert play.m.broken("a", 1, ("b",), play.now) == []


def test_a_world_that_breaks_while_it_waits_for_the_end_of_a_step_is_left_at_once() -> None:
    play = Play()
    play.trains("a", "b")
    play.m.leave("b", play.now)
    assert proposal(play.broken("a")).urgent


def test_a_worker_that_gets_sigterm_hears_which_world_goes_on_without_it_and_again_on_a_new_stream() -> None:
    play = Play(wanted=2)
    play.trains("a", "b")
    play.m.leave("a", play.now)
    play.broken("a", "b")
    started = start(play.confirm(b=play.at))
    assert (started.members, started.to) == (("b",), ("b", "a"))
    play.form()
    play.step(7)
    out = play.m.joined("a", "inc-a", 0, "cpu", True, play.now)
    assert (start(out).generation, start(out).to) == (started.generation, ("a",))


def test_a_leaver_whose_word_that_it_holds_the_state_was_lost_is_not_left_waiting() -> None:
    play = Play(wanted=1)
    play.join("a", "b")
    play.confirm(a=NOTHING)  # its group stands, and it trains: the master has not heard of it
    play.drop("a")
    assert not play.m.joined("a", "inc-a", 1, "cpu", True, play.now)
    assert proposal(play.form("a")).members == ("b", "a"), "it alone can tell what it has, and when its world is over"
    assert start(play.confirm(b=NOTHING, a=(1, 3))).copies == {"b": "a"}
