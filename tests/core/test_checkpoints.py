"""When servers are saved, what is kept of it, and what a rollback goes back to."""

from __future__ import annotations

from elasticdl.core import commands as c
from elasticdl.core.checkpoints import Checkpoint, Checkpoints, Schedule
from elasticdl.core.plan import Position

SERVERS = ("s0", "s1")


def checkpoints(**schedule: object) -> Checkpoints:
    made = Checkpoints(SERVERS, Schedule(**schedule))  # type: ignore[arg-type]
    made.restored = set(SERVERS)
    made.started(0.0)
    return made


def save(made: Checkpoints, cut: int, version: int, lasting: bool = False, now: float = 0.0) -> list[c.Command]:
    """A cut, from its beginning to its manifest."""
    made.begin(cut, Position(version), lasting, held=False, now=now)
    for server in SERVERS:
        made.wrote(server, cut, "[]")
    return made.published(f"/c/version-{version}")[1]


# When.


def test_by_steps_the_next_multiple_is_announced_ahead_so_that_servers_stop_exactly_there() -> None:
    made = checkpoints(steps=10)
    assert made.wanted(version=3, total=100, now=5.0) == (10, True)
    made.begin(1, Position(10), True, held=False, now=5.0)
    assert made.wanted(12, 100, 6.0) is None, "one at a time"
    made.give_up()
    assert made.wanted(12, 100, 6.0) == (20, True)


def test_no_checkpoint_is_wanted_past_the_end_of_the_job() -> None:
    made = checkpoints(steps=10)
    assert made.wanted(3, total=10, now=0.0) == (10, True), "the last version is one to keep"
    assert made.wanted(3, total=9, now=0.0) is None


def test_by_the_clock_one_is_due_when_something_was_trained_since() -> None:
    made = checkpoints(seconds=60.0)
    assert made.wanted(5, 100, 59.0) is None and made.deadline(5) == 60.0
    assert made.wanted(0, 100, 60.0) is None and made.deadline(0) is None, "nothing to save"
    assert made.wanted(5, 100, 60.0) == (0, False)
    save(made, 1, 5, now=61.0)
    assert made.deadline(6) == 121.0, "counted from the cut, not from its manifest"


def test_none_is_wanted_while_servers_go_back() -> None:
    made = checkpoints(steps=1, seconds=1.0)
    made.roll_back()
    assert made.wanted(5, 100, 1000.0) is None and made.deadline(5) is None


def test_one_that_the_clock_asks_for_lasts_when_a_multiple_was_passed() -> None:
    made = checkpoints(steps=10, seconds=60.0)
    assert made.wanted(9, 100, 60.0) == (0, False)
    made.begin(1, Position(9), False, held=False, now=60.0)
    assert made.writing is not None and not made.writing.lasting
    made.give_up()
    assert made.wanted(9, 100, 61.0) == (10, True)
    made.begin(2, Position(11), False, held=False, now=121.0)  # two more were applied before the servers held
    assert made.writing is not None and made.writing.lasting, "or version 10 would never be saved"


def test_without_a_schedule_there_is_none() -> None:
    made = checkpoints()
    assert made.wanted(50, 100, 1e9) is None and made.deadline(50) is None


# Writing.


def test_a_checkpoint_is_published_when_the_last_server_has_written_and_not_before() -> None:
    made = checkpoints()
    at = Position(7)
    made.begin(3, at, True, held=False, now=0.0)
    assert made.wrote("s0", 3, "a") == []
    assert made.wrote("s0", 2, "old") == [] and made.wrote("s9", 3, "stranger") == []
    assert made.unanswered() == []
    asked = made.wrote("s1", 3, "b")
    assert asked == [c.PublishCheckpoint(3, at, (("s0", "a"), ("s1", "b")), True)]
    assert made.wrote("s1", 3, "b") == [], "said twice"
    assert made.unanswered() == asked, "a master that comes back asks again"


def test_servers_hear_where_it_is_so_that_the_next_one_builds_on_it() -> None:
    made = checkpoints()
    assert save(made, 3, 7) == [c.SettleSave(3, "/c/version-7")]
    assert made.newest == Checkpoint("/c/version-7", Position(7))
    assert made.joined("s0", 1) == [c.SettleSave(3, "/c/version-7", "s0")], "its stream was broken: once more"


def test_servers_hear_that_what_they_wrote_came_to_nothing() -> None:
    made = checkpoints()
    assert made.give_up() == [], "there is nothing to give up"
    made.begin(3, Position(7), False, held=False, now=0.0)
    assert made.give_up() == [c.SettleSave(3, "")]
    assert made.newest.position.version == 0
    assert made.wrote("s0", 3, "late") == []
    assert made.joined("s0", 1) == [c.SettleSave(3, "", "s0")]


def test_the_newest_is_the_one_with_the_most_steps_in_whatever_order_they_were_written() -> None:
    made = checkpoints(keep=1)
    for cut, version in ((1, 5), (3, 12), (2, 8)):
        save(made, cut, version)
    assert made.newest == Checkpoint("/c/version-12", Position(12))
    assert [k.position.version for k in made.known] == [0, 8, 12], "the oldest is the one that goes"
    before = made.damaged()
    assert before is not None and before.position.version == 8


# Keeping.


def test_of_those_taken_for_the_servers_sake_the_newest_two_are_kept() -> None:
    made = checkpoints()
    for cut, version in enumerate((5, 10, 15), start=1):
        out = save(made, cut, version)
    assert c.DeleteCheckpoints(("/c/version-5",)) in out
    assert [k.position.version for k in made.known] == [0, 10, 15]


def test_of_those_the_user_asked_for_so_many_are_kept_as_the_user_said() -> None:
    made = checkpoints(steps=5, keep=3)
    deleted = [d for n in range(1, 8) for x in save(made, n, 5 * n, lasting=True) if isinstance(x, c.DeleteCheckpoints)
               for d in x.directories]  # fmt: skip
    assert deleted == [f"/c/version-{v}" for v in (5, 10, 15, 20)]
    assert [k.position.version for k in made.known if k.lasting] == [25, 30, 35]


def test_all_that_the_user_asked_for_are_kept_where_no_number_was_given() -> None:
    made = checkpoints(steps=5, keep=0)
    for n in range(1, 8):
        assert not [x for x in save(made, n, 5 * n, lasting=True) if isinstance(x, c.DeleteCheckpoints)]


def test_what_the_clock_takes_does_not_push_out_what_the_user_asked_for() -> None:
    made = checkpoints(steps=100, seconds=1.0, keep=1)
    save(made, 1, 100, lasting=True)
    for n in range(2, 6):
        save(made, n, 100 + n)
    assert [(k.position.version, k.lasting) for k in made.known[1:]] == [(100, True), (104, False), (105, False)]


def test_the_checkpoint_a_job_began_with_belongs_to_another_job_and_is_never_deleted() -> None:
    made = checkpoints(steps=5, keep=1)
    made.known = [Checkpoint("/other/version-50", Position(50), lasting=True)]
    gone = [x for n in range(11, 16) for x in save(made, n, 5 * n, lasting=True) if isinstance(x, c.DeleteCheckpoints)]
    assert "/other/version-50" not in {d for x in gone for d in x.directories}
    assert made.known[0].directory == "/other/version-50"
    assert "/other/version-50" not in {d for x in made.superfluous() for d in getattr(x, "directories", ())}


def test_after_success_only_what_the_user_asked_for_stays_unless_the_place_is_the_users() -> None:
    made = checkpoints()
    save(made, 1, 5, lasting=True)
    save(made, 2, 6)
    assert made.superfluous() == [c.DeleteCheckpoints(("/c/version-6",))]
    kept = checkpoints(keep_transient=True)
    save(kept, 1, 5)
    assert kept.superfluous() == []


# Going back.


def test_a_rollback_begins_a_new_timeline_at_the_newest_checkpoint() -> None:
    made = checkpoints(seconds=60.0)
    save(made, 1, 5)
    made.begin(2, Position(9), False, held=False, now=1.0)
    to = made.roll_back()
    assert (to.position.version, made.timeline) == (5, 2)
    assert made.writing is None, "what was being written is not complete, and never will be"
    assert not made.ready
    assert made.restore(["s0"]) == [c.RestoreServer("s0", 2, "/c/version-5", Position(5), 2)]


def test_without_a_checkpoint_it_goes_back_to_the_beginning() -> None:
    made = checkpoints()
    assert made.roll_back() == Checkpoint("", Position())
    assert str(made.newest) == "version 0 (the beginning)"


def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_the_last_one_to_none() -> None:
    made = checkpoints()
    save(made, 1, 5)
    save(made, 2, 9)
    before = made.damaged()
    assert before is not None and before.position.version == 5
    before = made.damaged()
    assert before is not None and before.directory == "", "the beginning needs no file"
    assert made.damaged() is None
    assert made.newest.directory == "", "and is still there to go back to"


def test_a_server_that_stands_on_another_timeline_is_told_where_to_begin() -> None:
    made = checkpoints()
    save(made, 1, 5)
    made.roll_back()
    assert made.joined("s0", 0) == [c.RestoreServer("s0", 2, "/c/version-5", Position(5), 2)]
    assert made.joined("s1", 1) == [c.RestoreServer("s1", 2, "/c/version-5", Position(5), 2)], "survivors too"
    assert not made.ready
    made.joined("s0", 2)
    made.joined("s1", 2)
    assert made.ready


def test_a_checkpoint_of_a_version_that_was_reached_again_takes_the_place_of_the_old_one() -> None:
    made = checkpoints()
    save(made, 1, 5)
    made.known.append(Checkpoint("/c/version-9", Position(9)))
    save(made, 3, 9, lasting=True)
    assert [(k.directory, k.lasting) for k in made.known[1:]] == [("/c/version-5", False), ("/c/version-9", True)]
