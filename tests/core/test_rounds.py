"""Synchronous training in core: rounds and versions, hung workers, room for late batches, cuts between rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.plan import Plan
from elasticdl.core.searches import Searches
from elasticdl.core.shards import Shards
from elasticdl.strategies.parameter_servers.core.cuts import SAVE, VIEW, Cuts
from tests.core.invariants import check_shards
from tests.core.playing import PS0, PS1, W0, Play, of


def plan(records: int = 10, rounds: int = 2, epochs: int = 1, max_step: int = 0, tolerance: int = 0) -> Plan:
    return Plan(records, 1, 1, epochs, max_step, rounds, tolerance)


class Table:
    """Shards of one record each, in rounds; every event is followed by the invariants."""

    def __init__(self, records: int = 10, rounds: int = 2, bad: int = 0) -> None:
        self.shards = Shards(plan(records, rounds), Searches(bad), paused=False)
        self.now = 0.0

    def hear(self, event: e.Event) -> list[c.Command]:
        self.now += 1.0
        out = self.shards.handle(event, self.now)
        check_shards(self.shards)
        return out

    def join(self, *workers: str) -> None:
        for worker in workers:
            self.hear(e.ReplicaJoined(worker, "1", "", (), 2))

    def train(self, *indices: int) -> list[c.Command]:
        out: list[c.Command] = []
        for index in indices:
            lease = self.shards.leased[f"train/0/{index}"]
            out += self.hear(e.BatchesCommitted(lease.worker, lease.id, lease.attempt, 1))
        return out

    def held(self, worker: str) -> list[int]:
        return sorted(s.index for s in self.shards.leased.values() if s.worker == worker)


def test_a_round_is_a_version_and_an_epochs_last_round_may_be_short() -> None:
    job = Plan(records=20, minibatch=3, batches_per_shard=1, epochs=2, round_batches=3)
    assert (job.batches_per_epoch, job.versions_per_epoch, job.total_versions, job.total_batches) == (7, 3, 6, 14)
    assert [job.version_before(1, i) for i in range(7)] == [3, 3, 3, 4, 4, 4, 5]
    assert job.version_before(2, 0) == 6, "past the end it is the last"


def test_max_step_counts_versions() -> None:
    job = Plan(records=20, minibatch=3, batches_per_shard=1, epochs=2, max_step=4, round_batches=3)
    assert (job.total_versions, job.total_batches, job.total_records) == (4, 10, 29)


def test_a_shard_of_several_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="every shard is one batch"):
        Plan(10, 2, 2, 1, round_batches=2)


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 3), st.integers(0, 20))
def test_every_batch_belongs_to_one_round_and_every_round_is_whole(
    records: int, rounds: int, epochs: int, max_step: int
) -> None:
    job = plan(records, rounds, epochs, max_step)
    batches = [(s, i) for s in range(epochs) for i in range(records) if job.shard(s, i) is not None]
    of_round: dict[int, list[int]] = {}
    for epoch, index in batches:
        of_round.setdefault(job.version_before(epoch, index), []).append(index)
    assert sorted(of_round) == list(range(job.total_versions)) and len(batches) == job.total_batches
    for indices in of_round.values():
        assert len(indices) == rounds or indices[-1] == records - 1


def test_the_version_is_the_first_round_that_is_not_whole() -> None:
    table = Table()
    table.join("a", "b")
    table.train(0)
    assert table.shards.version == 0
    table.train(2)
    assert table.shards.version == 0, "a report may overtake another"
    table.train(1)
    assert table.shards.version == 1
    table.train(3)
    assert table.shards.version == 2


def test_only_a_worker_that_holds_a_batch_of_the_present_round_can_be_hung() -> None:
    table = Table()
    table.join("a", "b")  # a: 0 and 1, b: 2 and 3
    assert table.held("b") == [2, 3]
    assert table.shards.idle_since("a") == 1.0
    assert table.shards.idle_since("b") is None
    table.now = 500.0
    table.train(0, 1)
    assert table.shards.idle_since("b") == 502.0, "its time counts from when the round could begin"


def test_what_all_wait_for_takes_the_place_of_a_later_round() -> None:
    table = Table()
    table.join("a", "b")
    table.train(0)
    table.train(1)  # a holds 4 and 5 now, which wait for b's 2 and 3
    out = table.hear(e.ReplicaLeaving("b")) + table.hear(e.LeaseReturned("b", "train/0/2", 1, "leaving"))
    assert c.RevokeLease("a", "train/0/5", 1, "train/0/2 comes first") in out
    assert c.GrantLease("a", "train/0/2", 2, "returned") in out
    assert table.held("a") == [2, 4]


def test_a_suspect_gets_a_worker_that_only_holds_later_rounds_to_itself() -> None:
    table = Table(bad=1)
    table.join("a")
    table.train(0)
    out = table.hear(e.BatchFailed("a", "train/0/1", 1, 0, "ValueError: 7"))
    assert c.RevokeLease("a", "train/0/2", 1, "train/0/1 comes first") in out
    assert table.held("a") == [1]


def test_a_batch_of_the_same_round_is_left_where_it_is() -> None:
    table = Table(rounds=5)
    table.join("a", "b")
    table.hear(e.ReplicaLeaving("b"))
    out = table.hear(e.LeaseReturned("b", "train/0/2", 1, "leaving"))
    assert not of(c.RevokeLease, out) and table.held("a") == [0, 1]


def test_while_draining_a_round_that_has_begun_is_finished() -> None:
    table = Table(rounds=4)
    table.join("a")
    table.shards.draining = True
    table.train(0, 1)
    assert table.held("a") == [2, 3], "servers cut between two rounds only"
    table.train(2, 3)
    assert table.held("a") == []


def test_batches_that_moved_nothing_are_counted_once() -> None:
    table = Table()
    table.join("a")
    out = table.hear(e.BatchesCommitted("a", "train/0/0", 1, 1, float("nan"), skipped=1))
    assert table.shards.skipped == 1
    assert of(c.Announce, out)[0].text == "Skipped a batch of shard train/0/0: non-finite gradients"
    table.hear(e.ReplicaJoined("a", "1", "", (e.Holding("train/0/0", 1, 1, skipped=1),), 2))
    assert table.shards.skipped == 1, "said again after the stream broke"
    table.hear(e.ReplicaJoined("a", "1", "", (e.Holding("train/0/1", 1, 1, skipped=1),), 2))
    assert table.shards.skipped == 2, "heard of only now"


# Cuts.


def test_servers_go_to_the_end_of_the_furthest_round_that_has_begun() -> None:
    barrier = Cuts(("s0", "s1"))
    barrier.start(VIEW, 3)
    assert barrier.held("s0", 1, {}, set(), set(), at=4, coming=True) == [c.HoldServers(1, 4)]
    assert barrier.held("s1", 1, {"x": 0}, {"x"}, set(), at=3) == [], "it goes on to 4"
    assert barrier.held("s1", 1, {}, set(), set(), at=4, coming=True) == [], "it is not there yet"
    assert barrier.held("s1", 1, {"x": 1}, {"x"}, set(), at=4) == []
    assert barrier.held("s0", 1, {"x": 1}, {"x"}, set(), at=4) == [c.CutServers(1, VIEW)]


def test_a_cut_that_goes_to_the_end_of_a_round_does_not_begin_again() -> None:
    barrier = Cuts(("s0",))
    barrier.start(SAVE, 0)
    barrier.held("s0", 1, {}, set(), set(), at=6, coming=True)
    assert not barrier.gives_way_to(0, version=5)


def test_a_checkpoint_holds_whole_rounds_and_a_rollback_trains_the_rest_again() -> None:
    play = Play(records=12, minibatch=1, per_shard=1, servers=2, rounds=2)
    play.join_all()
    for index in range(5):
        play.commit(f"train/0/{index}", 1)
    assert play.job.shards.version == 2, "batch 4 is committed, its round is not whole"
    at = play.job.shards.position({"train/0/4": 1, "train/0/5": 1, "train/0/6": 0})
    assert (at.version, at.done[0].batches, at.open) == (3, 6, {"train/0/6": (0, 1)})
    play.end(PS0, "preempted")
    assert play.job.shards.version == 0
    play.join(PS0)
    for server in (PS0, PS1):
        play.hear(e.ServerRestored(server, play.job.servers.checkpoints.timeline))
    assert sorted(play.job.shards.leased) == ["train/0/0", "train/0/1"]
    assert {s.worker for s in play.job.shards.leased.values()} == {W0}
