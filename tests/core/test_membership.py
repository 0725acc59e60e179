"""Worlds: what workers say in, proposals and starts out."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.core import commands as c
from elasticdl.core.membership import (
    LAST_CALL_SECONDS,
    MARGIN_SECONDS,
    NOTHING,
    PATIENCE,
    RETURN_SECONDS,
    Membership,
    Phase,
    State,
)

GRACE = 30.0 + MARGIN_SECONDS


class Play:
    """A machine under test; time stands still unless it is moved."""

    def __init__(self, wanted: int = 2, **what: Any) -> None:
        self.m = Membership(wanted, **what)
        self.now = 100.0

    def join(self, *names: str, generation: int = 0, fingerprint: str = "cpu") -> list[c.Command]:
        out: list[c.Command] = []
        for name in names:
            out += self.m.joined(name, f"inc-{name}", generation, fingerprint, False, self.now)
        return out

    def drop(self, *names: str) -> list[c.Command]:
        return [x for name in names for x in self.m.dropped(name, self.now)]

    def gone(self, name: str) -> list[c.Command]:
        return self.m.gone(name, self.now)

    def confirm(self, **states: State) -> list[c.Command]:
        return [x for n, state in states.items() for x in self.m.confirm(n, self.m.generation, state, self.now)]

    def form(self, *names: str) -> list[c.Command]:
        return [x for n in names or self.m.members for x in self.m.form(n, self.m.generation, self.now)]

    def step(self, step: int) -> list[c.Command]:
        return self.m.stepped(self.m.running_generation, step, self.now)

    def broken(self, name: str, *suspects: str) -> list[c.Command]:
        return self.m.broken(name, self.m.running_generation, suspects, self.now)

    def wait(self, seconds: float) -> list[c.Command]:
        self.now += seconds
        return self.m.time_passed(self.now)

    def trains(self, *names: str, step: int = 5) -> None:
        """A world of these trains, and stands at a step."""
        self.join(*names)
        self.wait(LAST_CALL_SECONDS)
        self.confirm(**dict.fromkeys(names, NOTHING))
        self.form()
        assert self.m.training and self.m.members == names
        self.step(step)

    @property
    def at(self) -> State:
        """The name of what the world that runs holds."""
        return self.m.running_generation, self.m.committed[1]

    def restart(self) -> None:
        self.now += 3.0
        self.m.master_started(self.now)


def proposal(out: list[c.Command]) -> c.ProposeWorld:
    (found,) = [x for x in out if isinstance(x, c.ProposeWorld)]
    return found


def start(out: list[c.Command]) -> c.StartWorld:
    (found,) = [x for x in out if isinstance(x, c.StartWorld)]
    return found


# The first world.


def test_the_first_world_is_proposed_when_all_who_are_wanted_are_ready() -> None:
    play = Play()
    assert play.join("a") == []
    assert play.join("b") == [c.ProposeWorld(1, ("a", "b"), ("a", "b"), True, "2 workers are ready")]


def test_the_first_world_waits_a_little_for_the_rest_and_then_begins_without_them() -> None:
    play = Play()
    play.join("a")
    assert play.m.deadline(play.now) == play.now + LAST_CALL_SECONDS
    assert play.wait(LAST_CALL_SECONDS - 0.1) == []
    assert proposal(play.wait(0.1)).members == ("a",)


def test_a_world_starts_when_all_have_confirmed_and_everybody_takes_the_model_of_the_first() -> None:
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
    assert out[-1] == c.Announce("nobody trains: b is gone, and at least 2 must be there")


# Coming and going.


def test_a_newcomer_joins_at_the_end_of_a_step_and_copies_the_state() -> None:
    play = Play(wanted=3)
    play.join("a", "b")
    play.wait(LAST_CALL_SECONDS)
    play.confirm(a=NOTHING, b=NOTHING)
    play.form()
    assert play.join("c") == [c.ProposeWorld(2, ("a", "b", "c"), ("a", "b", "c"), False, "c joins")]
    started = start(play.confirm(c=NOTHING, a=(1, 7), b=(1, 7)))
    assert started.state == (1, 7) and started.copies == {"c": "a"}


def test_copies_are_shared_among_those_who_hold_the_state() -> None:
    play = Play(wanted=5)
    play.join("a", "b")
    play.wait(LAST_CALL_SECONDS)
    play.confirm(a=NOTHING, b=NOTHING)
    play.form()
    play.join("c", "d", "e")
    started = start(play.confirm(a=(1, 7), b=(1, 7), c=NOTHING, d=NOTHING, e=NOTHING))
    assert started.copies == {"c": "a", "d": "b", "e": "a"}


def test_whoever_is_told_to_go_leaves_at_the_end_of_a_step() -> None:
    play = Play()
    play.trains("a", "b")
    assert play.m.leave("a", play.now) == [c.ProposeWorld(2, ("b",), ("b", "a"), False, "a leaves")]
    assert start(play.confirm(b=(1, 6))).copies == {}


def test_when_everybody_leaves_nobody_is_held_back() -> None:
    play = Play()
    play.trains("a", "b")
    play.m.leave("a", play.now)
    out = play.m.leave("b", play.now)
    assert proposal(out).members == () and set(proposal(out).to) == {"a", "b"}
    assert play.m.phase is Phase.NONE


def test_the_last_who_holds_the_state_stays_until_a_newcomer_has_copied_it() -> None:
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


def test_a_world_that_does_not_stand_is_left_at_once_by_who_must_go() -> None:
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
    assert play.m.scaled(2, play.now) == [c.ProposeWorld(3, ("a", "b"), ("a", "b", "c"), False, "c leaves")]


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


def test_who_is_put_down_counts_no_more_but_is_waited_for_where_it_was_alone() -> None:
    play = Play(wanted=1)
    play.trains("a")
    play.m.exclude("a", play.now)
    play.join("b")
    assert play.confirm(b=NOTHING) == [], "it may still be alive, and commit"
    assert start(play.gone("a")).members == ("b",)


# Worlds that break.


def test_a_broken_world_with_everybody_in_touch_is_formed_again_of_the_same() -> None:
    play = Play()
    play.trains("a", "b")
    assert play.broken("b", "a") == [c.ProposeWorld(2, ("a", "b"), ("a", "b"), True, "b reports that the world broke")]
    assert play.broken("a", "b") == [], "once is enough"
    assert not play.m.to_evict


def test_who_is_suspected_most_goes_when_worlds_break_again_and_again() -> None:
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


# Streams.


def test_a_broken_stream_changes_nothing_in_a_world_that_trains() -> None:
    play = Play()
    play.trains("a", "b")
    play.join("c")
    assert play.drop("b") == [] and play.m.training
    assert play.wait(60.0) == []
    assert play.join("b", generation=1) == []


def test_who_is_out_of_touch_while_a_world_is_proposed_is_left_out_and_comes_back_later() -> None:
    play = Play()
    play.trains("a", "b")
    play.broken("a")
    assert play.drop("b") == [c.ProposeWorld(3, ("a",), ("a", "b"), True, "b is out of touch")]
    play.confirm(a=(1, 5))
    play.join("b")
    assert proposal(play.form()).members == ("a", "b")


def test_who_did_not_hear_the_start_is_told_again_and_the_same() -> None:
    play = Play()
    play.trains("a", "b")
    play.broken("a")
    started = start(play.confirm(a=(1, 5), b=(1, 4)))
    play.drop("b")
    play.m.checkpoint = ("step-9", 9)  # it came meanwhile, from somebody who is gone
    again = start(play.join("b"))
    assert (again.state, again.copies, again.directory) == (started.state, started.copies, "")
    assert again.to == ("b",)


def test_who_left_the_world_unheard_has_broken_it() -> None:
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


def test_who_returns_from_a_world_that_is_over_is_called_out_of_it_at_once() -> None:
    play = Play()
    play.trains("a", "b")
    play.drop("b")
    play.broken("a")
    play.confirm(a=(1, 5))
    play.form()
    out = play.join("b", generation=1)
    assert c.ProposeWorld(3, ("a", "b"), ("b",), True, "its world is over") in out


def test_who_was_to_be_in_a_world_that_is_given_up_is_told() -> None:
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
    assert play.join("a") == [c.ProposeWorld(2, ("a", "b"), ("a",), True, "it is back")]
    play.confirm(a=(1, 5))
    play.join("b", generation=1)
    assert start(play.confirm(b=(1, 5))).members == ("a", "b")


def test_who_does_not_find_the_new_master_is_left_out_of_a_world_to_come() -> None:
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


def test_who_waits_as_a_standby_is_not_disturbed_by_a_new_master() -> None:
    play = Play(wanted=1)
    play.trains("a")
    play.join("b")
    play.restart()
    assert proposal(play.join("b")).members == ("a",), "it hears which world there is"
    assert play.join("a", generation=1) == []


# Rule 7: no two worlds commit side by side.


def test_a_world_without_anybody_of_the_last_one_waits_until_that_one_must_have_stopped() -> None:
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


def test_who_comes_back_with_the_state_is_taken_in_by_a_world_that_waits_for_it() -> None:
    play = Play(wanted=2)
    play.trains("a", "b")
    play.drop("b")
    play.gone("a")
    play.join("c", "d")
    play.confirm(c=NOTHING, d=NOTHING)
    assert play.m.phase is Phase.PROPOSED, "b holds what they lack"
    proposed = proposal([x for x in play.join("b", generation=1) if x.reason != "its world is over"])
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


def test_when_everybody_is_lost_the_newest_checkpoint_is_where_newcomers_begin() -> None:
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
    assert told.startswith("b is not taken: its arithmetic differs from the first world's (avx2; cpu)")
    assert play.m.phase is Phase.RUNNING
    assert not [x for x in play.join("b", fingerprint="avx2") if isinstance(x, c.Announce)], "once is enough"


def test_the_first_world_is_of_one_arithmetic() -> None:
    play = Play(wanted=3)
    play.join("a", fingerprint="avx2")
    play.join("b", "c")
    play.wait(LAST_CALL_SECONDS)
    assert play.m.members == ("b", "c"), "the one that most have"
    out = play.confirm(b=NOTHING, c=NOTHING)
    assert any(isinstance(x, c.Announce) and x.text.startswith("a is not taken") for x in out)


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


def test_who_comes_back_from_the_last_world_is_taken_in_by_one_that_waits_for_its_end() -> None:
    play = Play(wanted=3)
    play.join("a", "b")
    play.wait(LAST_CALL_SECONDS)
    play.confirm(a=NOTHING, b=NOTHING)  # nobody holds anything yet, but they may begin any moment
    play.drop("a")
    play.gone("b")
    play.join("c")
    assert play.confirm(c=NOTHING) == []
    assert "a" in proposal(play.join("a")).members
