"""The barrier on the servers: equal, unequal, torn."""

from __future__ import annotations

from elasticdl.core import commands as c
from elasticdl.strategies.parameter_servers.core.cuts import SAVE, VIEW, Cuts, Phase

X, Y = "train/0/0", "train/0/1"


def cuts(*servers: str) -> Cuts:
    return Cuts(servers or ("s0", "s1"))


def test_servers_that_hold_the_same_batches_freeze_at_once() -> None:
    barrier = cuts()
    assert barrier.start(VIEW, at=50) == [c.HoldServers(1, 50)]
    assert barrier.held("s0", 1, {X: 3}, {X}, {X}) == [], "one is missing"
    assert barrier.held("s1", 1, {X: 3}, {X}, {X}) == [c.CutServers(1, VIEW)]
    assert barrier.frozen("s0", 1) is None
    done = barrier.frozen("s1", 1)
    assert done is not None and (done.counters, done.frozen) == ({X: 3}, {"s0", "s1"})
    assert barrier.active is None


def test_a_server_that_is_behind_is_let_through_to_where_the_others_are() -> None:
    barrier = cuts()
    barrier.start(VIEW, 0)
    barrier.held("s0", 1, {X: 3, Y: 1}, {X, Y}, {X, Y})
    out = barrier.held("s1", 1, {X: 2, Y: 2}, {X, Y}, {X, Y})
    assert out == [c.AdvanceServers(1, ((X, 3), (Y, 2)))]
    assert barrier.held("s1", 1, {X: 3, Y: 2}, {X, Y}, {X, Y}) == [], "s0 is still behind; it was told already"
    assert barrier.held("s0", 1, {X: 3, Y: 2}, {X, Y}, {X, Y}) == [c.CutServers(1, VIEW)]


def test_a_batch_whose_worker_died_is_trained_again_before_the_cut_is_tried_again() -> None:
    barrier = cuts()
    barrier.start(VIEW, 50)
    barrier.held("s0", 1, {X: 3}, {X}, set())
    out = barrier.held("s1", 1, {X: 2}, {X}, set())
    assert out[0] == c.ReleaseServers(1)
    assert "a batch of train/0/0 reached only some servers and is trained again" in out[1].text  # type: ignore[attr-defined]
    assert barrier.repaired({X: 2}) == [], "not yet committed"
    assert barrier.repaired({X: 3}) == [c.HoldServers(2, 0)], "at once: the version it was wanted at is past"


def test_a_shard_that_was_finished_meanwhile_needs_no_repair() -> None:
    barrier = cuts()
    barrier.start(VIEW, 0)
    barrier.held("s0", 1, {X: 3}, {X}, set())
    barrier.held("s1", 1, {X: 2}, {X}, set())
    assert barrier.repaired({}) == [c.HoldServers(2, 0)]


def test_a_batch_queued_behind_another_at_the_barrier_is_not_waited_for() -> None:
    """Its worker cannot get there: it waits with the shard in front of it."""
    barrier = cuts()
    barrier.start(VIEW, 0)
    barrier.held("s0", 1, {X: 3, Y: 1}, {X, Y}, {Y})
    out = barrier.held("s1", 1, {X: 2, Y: 1}, {X, Y}, {Y})
    assert isinstance(out[0], c.ReleaseServers)


def test_a_worker_lost_while_servers_advance_turns_waiting_into_repair() -> None:
    barrier = cuts()
    barrier.start(VIEW, 0)
    barrier.held("s0", 1, {X: 3}, {X}, {X})
    barrier.held("s1", 1, {X: 2}, {X}, {X})
    assert barrier.check({X}, {X}) == []
    assert isinstance(barrier.check({X}, set())[0], c.ReleaseServers)
    assert barrier.active is not None and barrier.active.phase is Phase.REPAIRING


def test_a_shard_that_closes_between_two_reports_is_not_torn() -> None:
    barrier = cuts()
    barrier.start(VIEW, 0)
    barrier.held("s0", 1, {X: 4}, {X}, {X})
    assert barrier.held("s1", 1, {}, set(), set()) == [c.CutServers(1, VIEW)]


def test_a_barrier_under_which_nothing_moves_is_lifted() -> None:
    barrier = cuts()
    barrier.start(VIEW, 0)
    assert barrier.give_way() == [], "no server holds yet"
    barrier.held("s0", 1, {X: 3}, {X}, {X})
    assert barrier.give_way()[0] == c.ReleaseServers(1)
    assert barrier.repaired({X: 2}) == []
    assert barrier.repaired({X: 3}) == [c.HoldServers(2, 0)]


def test_reports_about_an_older_cut_only_release_their_server() -> None:
    barrier = cuts()
    barrier.start(VIEW, 0)
    barrier.cancel()
    assert barrier.held("s0", 1, {X: 1}, {X}, {X}) == [c.ReleaseServers(1, "s0")]
    assert barrier.frozen("s0", 1) is None


def test_a_server_that_comes_back_is_told_where_the_cut_stands() -> None:
    barrier = cuts()
    assert barrier.joined("s0") == [c.ReleaseServers(0, "s0")]
    barrier.start(SAVE, 7)
    assert barrier.joined("s0") == [c.HoldServers(1, 7, "s0")]
    barrier.held("s0", 1, {X: 3}, {X}, {X})
    barrier.held("s1", 1, {X: 2}, {X}, {X})
    assert barrier.joined("s1") == [c.AdvanceServers(1, ((X, 3),), "s1")]
    barrier.held("s1", 1, {X: 3}, {X}, {X})
    assert barrier.joined("s0") == [c.CutServers(1, SAVE, "s0")]
    barrier.frozen("s0", 1)
    assert barrier.joined("s0") == [], "its part is done"


def test_a_cut_that_has_yet_to_begin_gives_way_to_an_earlier_one() -> None:
    barrier = cuts()
    assert not barrier.gives_way_to(5, 3), "there is none"
    barrier.start(VIEW, 7)
    assert barrier.gives_way_to(5, 3)
    assert not barrier.gives_way_to(7, 3), "not an earlier one"
    assert not barrier.gives_way_to(0, 7), "its time has come"
    barrier.held("s0", 1, {X: 3}, {X}, {X})
    assert not barrier.gives_way_to(5, 3), "a server holds already"


def test_a_saved_cut_that_is_tried_again_is_still_one_that_lasts() -> None:
    barrier = cuts()
    barrier.start(SAVE, 7, lasting=True)
    barrier.held("s0", 1, {X: 3}, {X}, set())
    barrier.held("s1", 1, {X: 2}, {X}, set())
    barrier.repaired({X: 3})
    assert barrier.active is not None and barrier.active.lasting and barrier.active.purpose == SAVE
