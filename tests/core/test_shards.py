"""Leases: which worker trains which records, and what happens to them when one dies."""

from __future__ import annotations

import pytest

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.plan import Kind, Plan, Shard
from elasticdl.core.searches import STRIKES, Searches
from elasticdl.core.shards import REFUSALS, Shards, ShardsAdded, WorkerLost
from tests.core.invariants import check_shards


class Table:
    """Shards under test: every event is followed by the invariants, commands are kept by kind."""

    def __init__(
        self, records: int = 12, minibatch: int = 2, per_shard: int = 2, epochs: int = 1, bad: int = 0
    ) -> None:
        self.shards = Shards(Plan(records, minibatch, per_shard, epochs), Searches(bad), paused=False)
        self.now = 0.0

    def hear(self, event: e.Event) -> list[c.Command]:
        self.now += 1.0
        out = self.shards.handle(event, self.now)
        check_shards(self.shards)
        return out

    def join(self, worker: str, *holdings: e.Holding, capacity: int = 2) -> list[c.GrantLease]:
        return grants(self.hear(e.ReplicaJoined(worker, "1", "", holdings, capacity)))

    def commit(self, worker: str, shard: str, next_batch: int, attempt: int = 1) -> list[c.Command]:
        return self.hear(e.BatchesCommitted(worker, shard, attempt, next_batch))

    def lose(self, worker: str, blame: bool = False) -> list[c.Command]:
        return self.hear(WorkerLost(worker, "killed", blame))

    def fail(self, worker: str, shard: str) -> list[c.Command]:
        lease = self.shards.leased[shard]
        return self.hear(e.BatchFailed(worker, shard, lease.attempt, lease.next_batch, "ValueError: 7"))


def grants(commands: list[c.Command]) -> list[c.GrantLease]:
    return [x for x in commands if isinstance(x, c.GrantLease)]


def leases(commands: list[c.GrantLease]) -> list[tuple[str, str, int]]:
    return [(g.worker, g.shard, g.attempt) for g in commands]


def texts(commands: list[c.Command]) -> str:
    return "\n".join(x.text for x in commands if isinstance(x, c.Announce))


def test_a_worker_gets_as_many_leases_as_it_wants_in_the_order_of_the_epoch() -> None:
    table = Table()
    assert leases(table.join("a")) == [("a", "train/0/0", 1), ("a", "train/0/1", 1)]
    assert leases(table.join("b", capacity=1)) == [("b", "train/0/2", 1)]


def test_nothing_is_trained_until_every_server_is_there() -> None:
    table = Table()
    table.shards.paused = True
    assert table.join("a") == []
    table.shards.paused = False
    assert leases(grants(table.shards.resume(1.0))) == [("a", "train/0/0", 1), ("a", "train/0/1", 1)]


def test_a_lost_workers_lease_goes_back_at_its_committed_batch() -> None:
    table = Table(per_shard=3)
    table.join("a", capacity=1)
    table.commit("a", "train/0/0", 2)
    told = table.lose("a")
    assert "Returned shard train/0/0 at batch 2 of 3: killed" in texts(told)
    assert leases(table.join("b", capacity=1)) == [("b", "train/0/0", 2)]
    assert table.shards.leased["train/0/0"].next_batch == 2


def test_a_waiting_worker_gets_what_a_lost_one_held_at_once() -> None:
    table = Table(records=4)
    table.join("a", capacity=1)
    assert table.join("b") == [], "everything is leased"
    assert leases(grants(table.lose("a"))) == [("b", "train/0/0", 2)]


def test_a_shard_is_never_dropped_however_often_its_worker_is_lost() -> None:
    table = Table(records=4)
    for attempt in range(1, 30):
        assert leases(table.join(f"w{attempt}", capacity=1)) == [(f"w{attempt}", "train/0/0", attempt)]
        table.lose(f"w{attempt}")
    assert not table.shards.searches.open and table.shards.waiting[0].strikes == 0, "a loss blames no record"


def test_the_report_of_an_old_lease_is_refused_and_its_worker_told() -> None:
    table = Table(records=4)
    table.join("a", capacity=1)
    table.lose("a")
    table.join("b", capacity=1)
    assert table.commit("a", "train/0/0", 2) == [c.CloseLease("a", "train/0/0", 1)]
    assert table.commit("b", "train/0/0", 2, attempt=1) == [c.CloseLease("b", "train/0/0", 1)]
    assert table.shards.done_records == 0


def test_commits_only_move_forward_and_never_beyond_the_shard() -> None:
    table = Table(per_shard=3)
    table.join("a", capacity=1)
    table.commit("a", "train/0/0", 2)
    table.commit("a", "train/0/0", 1)
    assert table.shards.leased["train/0/0"].next_batch == 2
    table.commit("a", "train/0/0", 99)
    assert table.shards.done_records == 6


def test_a_finished_shard_closes_the_lease_and_on_the_servers_and_the_next_one_is_granted() -> None:
    table = Table()
    table.join("a", capacity=1)
    out = table.commit("a", "train/0/0", 2)
    assert out[:2] == [c.CloseLease("a", "train/0/0", 1), c.CloseShard("train/0/0")]
    assert leases(grants(out)) == [("a", "train/0/1", 1)]


def test_an_epoch_is_closed_by_its_last_batch_not_by_its_last_shard() -> None:
    table = Table(records=8, epochs=2)
    table.join("a")
    table.join("b")
    assert c.CloseEpoch(0) not in table.commit("a", "train/0/1", 2), "shard 0 of the epoch is still open"
    table.commit("b", "train/1/0", 2)
    assert c.CloseEpoch(0) in table.commit("a", "train/0/0", 2)


def test_the_next_epoch_starts_while_the_last_shard_of_this_one_is_still_trained() -> None:
    table = Table(records=4, epochs=2)
    assert leases(table.join("a")) == [("a", "train/0/0", 1), ("a", "train/1/0", 1)]


def test_a_worker_that_comes_back_with_its_leases_goes_on_where_it_was() -> None:
    table = Table()
    table.join("a")
    again = table.join("a", e.Holding("train/0/0", 1, 1), e.Holding("train/0/1", 1, 0))
    assert again == [], "it has both"
    assert table.shards.leased["train/0/0"].next_batch == 1, "Hello says what a broken stream swallowed"


def test_a_worker_that_never_heard_of_its_lease_is_told_again_with_the_same_attempt() -> None:
    table = Table()
    table.join("a")
    assert leases(table.join("a", e.Holding("train/0/0", 1, 0))) == [("a", "train/0/1", 1)]


def test_a_worker_that_holds_what_is_not_its_own_is_told_to_forget_it() -> None:
    table = Table()
    table.join("a")
    table.lose("a")
    table.join("b")
    out = table.hear(e.ReplicaJoined("a", "1", "", (e.Holding("train/0/0", 1, 1),), 2))
    assert c.CloseLease("a", "train/0/0", 1) in out
    assert table.shards.leased["train/0/0"].next_batch == 0


def test_what_was_finished_while_the_stream_was_broken_counts_when_it_is_back() -> None:
    table = Table(records=4)
    table.join("a")
    out = table.hear(e.ReplicaJoined("a", "1", "", (e.Holding("train/0/0", 1, 2),), 2))
    assert c.CloseShard("train/0/0") in out and table.shards.trained_out


def test_only_batches_finish_a_training_shard() -> None:
    table = Table(records=4)
    table.join("a")
    table.hear(e.ShardCompleted("a", "train/0/0", 1, "done, believe me"))
    assert "train/0/0" in table.shards.leased and not table.shards.results


def test_a_leaving_worker_keeps_what_it_works_on_and_gets_nothing_more() -> None:
    table = Table()
    table.join("a")
    table.hear(e.ReplicaLeaving("a"))
    table.hear(e.LeaseReturned("a", "train/0/1", 1, "the worker is leaving"))
    assert list(table.shards.leased) == ["train/0/0"]
    assert grants(table.commit("a", "train/0/0", 2)) == []
    assert leases(table.join("b"))[0] == ("b", "train/0/1", 2), "what was given back comes first"


def test_a_worker_whose_leaving_was_lost_with_the_stream_says_so_by_wanting_nothing() -> None:
    table = Table()
    table.join("a")
    table.join("a", e.Holding("train/0/0", 1, 0), e.Holding("train/0/1", 1, 0), capacity=0)
    assert table.shards.seats["a"].leaving
    assert grants(table.commit("a", "train/0/0", 2)) == []


def test_what_is_urgent_goes_before_training_and_what_came_back_before_what_is_fresh() -> None:
    table = Table()
    table.join("a", capacity=1)
    table.lose("a")
    evaluation = Shard(Kind.EVALUATE, 1, 0, 0, 4, 2, payload="1")
    export = Shard(Kind.EXPORT, 0, 0, 0, 0, 1)
    table.hear(ShardsAdded((evaluation, export)))
    order = [g.shard for g in table.join("b", capacity=4)]
    assert order == ["export/0/0", "evaluate/1/0", "train/0/0", "train/0/1"]


def test_while_draining_only_what_was_begun_is_trained() -> None:
    table = Table()
    table.join("a", capacity=1)
    table.shards.draining = True
    assert grants(table.commit("a", "train/0/0", 1)) == []
    table.lose("a")
    assert leases(table.join("b")) == [("b", "train/0/0", 2)], "its first batch may stand on some servers only"


# A batch that crashes its worker.


def search(table: Table, worker: str, shard: str, guilty: set[int], rounds: int = 40) -> list[c.Command]:
    """Play a worker that raises in every batch or probe with a guilty position, until nothing is left to do."""
    told: list[c.Command] = []
    for _ in range(rounds):
        mine = sorted((s for s in table.shards.leased.values() if s.worker == worker), key=lambda s: s.turn)
        if not mine or any(isinstance(x, c.FinishJob) for x in told):
            return told
        s = mine[0]
        aside = {b.record for b in table.shards.searches.bad_records}
        start = s.start + s.next_batch * 2 if s.kind is Kind.TRAIN else s.start
        stop = min(start + 2, s.stop) if s.kind is Kind.TRAIN else s.stop
        if (guilty - aside) & set(range(start, stop)):
            out = table.fail(worker, s.id)
        elif s.kind is Kind.TRAIN:
            out = table.commit(worker, s.id, s.next_batch + 1, s.attempt)
        else:
            out = table.hear(e.ShardCompleted(worker, s.id, s.attempt))
        for question in [x for x in out if isinstance(x, c.IdentifyRecord)]:
            name = f"record {question.position} of a.rec"
            out += table.hear(e.RecordIdentified(question.shard, question.position, question.position, name))
        told += out
    raise AssertionError("the search does not end")


def test_a_bad_record_is_found_by_halves_and_set_aside() -> None:
    table = Table(records=12, per_shard=3, bad=1)
    table.join("a", capacity=1)
    told = search(table, "a", "train/0/0", {3})
    assert [b.record for b in table.shards.searches.bad_records] == [3]
    assert "Skipping record 3 of a.rec: it cannot be trained (1 so far)" in texts(told)
    assert table.shards.trained_out and table.shards.done_records == 12, "its batch counts as trained without it"


def test_a_bad_record_fails_the_job_by_name_unless_skipping_is_allowed() -> None:
    table = Table(records=12, per_shard=3)
    table.join("a", capacity=1)
    table.commit("a", "train/0/0", 1)
    (end,) = [x for x in search(table, "a", "train/0/0", {3}) if isinstance(x, c.FinishJob)]
    assert end.outcome == "failed"
    assert "record 3 of a.rec cannot be trained, and --max_bad_records=0 allows no more" in end.reason
    assert "ValueError: 7" in end.reason


def test_two_bad_records_in_one_batch_are_both_found() -> None:
    table = Table(records=12, bad=5)
    table.join("a", capacity=1)
    search(table, "a", "train/0/1", {4, 5})
    assert sorted(b.record for b in table.shards.searches.bad_records) == [4, 5] and table.shards.trained_out


def test_the_first_batch_failing_ends_the_job_with_the_users_traceback() -> None:
    table = Table()
    table.join("a")
    (end,) = [x for x in table.fail("a", "train/0/0") if isinstance(x, c.FinishJob)]
    assert end == c.FinishJob("failed", "the first batch failed:\nValueError: 7")


def test_a_dead_worker_is_blamed_on_the_lease_it_worked_on_not_on_the_one_behind_it() -> None:
    table = Table(bad=1)
    table.join("a")
    table.lose("a", blame=True)
    assert [(s.id, s.strikes) for s in table.shards.waiting] == [("train/0/0", 1), ("train/0/1", 0)]


def test_a_suspect_has_a_worker_to_itself() -> None:
    table = Table(bad=1)
    table.join("a")
    table.lose("a", blame=True)
    assert leases(table.join("b")) == [("b", "train/0/0", 2)], "nothing else, though it wants two"
    assert grants(table.commit("b", "train/0/0", 1, attempt=2)) == []
    out = table.commit("b", "train/0/0", 2, attempt=2)
    assert leases(grants(out)) == [("b", "train/0/1", 2)], "the other one that the dead worker held, alone too"
    assert leases(grants(table.commit("b", "train/0/1", 2, attempt=2))) == [("b", "train/0/2", 1)], "all is well again"


def test_a_probe_waits_for_a_worker_that_has_nothing_else() -> None:
    table = Table(bad=1)
    table.join("a", capacity=1)
    table.join("b")
    for _ in range(STRIKES):
        table.fail("a", "train/0/0")
    probes = [s for s in table.shards.leased.values() if s.kind is Kind.PROBE]
    assert [(p.worker, p.start, p.stop) for p in probes] == [("a", 0, 1)]
    assert grants(table.commit("b", "train/0/1", 1)) == []


def test_the_answer_to_an_older_search_changes_nothing() -> None:
    table = Table(bad=5)
    table.join("a", capacity=1)
    for _ in range(STRIKES):
        table.fail("a", "train/0/0")
    assert table.hear(e.RecordIdentified("train/0/0", 0, 0, "record 0")) == []
    assert "train/0/0" in table.shards.searches.open and not table.shards.searches.bad_records


def test_a_batch_that_crashes_though_no_record_does_is_tried_again_and_then_fails_the_job() -> None:
    table = Table(records=12, per_shard=3)
    table.join("a", capacity=1)
    table.commit("a", "train/0/0", 1)
    ends: list[c.FinishJob] = []
    for _ in range(60):
        (s,) = table.shards.leased.values()
        out = table.hear(e.ShardCompleted("a", s.id, s.attempt)) if s.kind is Kind.PROBE else table.fail("a", s.id)
        ends += [x for x in out if isinstance(x, c.FinishJob)]
        if ends:
            break
    assert "none of its records fails alone" in ends[0].reason


def test_a_search_in_vain_looks_at_the_next_batch_too() -> None:
    """The report of batch 1 can die with the worker that crashes in batch 2."""
    table = Table(records=12, per_shard=3, bad=1)
    table.join("a", capacity=1)
    table.commit("a", "train/0/0", 1)
    covered: set[int] = set()
    for _ in range(20):
        (s,) = table.shards.leased.values()
        if s.kind is Kind.PROBE:
            covered |= set(range(s.start, s.stop))
            table.hear(e.ShardCompleted("a", s.id, s.attempt))
        else:
            table.fail("a", s.id)
        if len(covered) == 4:
            break
    assert covered == {2, 3, 4, 5}


@pytest.mark.parametrize("kind", [Kind.EVALUATE, Kind.SUMMARIZE, Kind.EXPORT])
def test_what_is_not_training_fails_the_job_after_a_few_tries(kind: Kind) -> None:
    table = Table(records=2)
    table.join("a", capacity=1)
    table.commit("a", "train/0/0", 1)
    table.hear(ShardsAdded((Shard(kind, 1, 0, 0, 2, 1),)))
    ends = [x for _ in range(STRIKES + 1) for x in table.fail("a", f"{kind}/1/0") if isinstance(x, c.FinishJob)]
    assert [x.reason for x in ends] == [f"{kind} failed 3 times:\nValueError: 7"]


def test_a_question_that_a_restart_may_have_lost_is_asked_again() -> None:
    table = Table(bad=1)
    table.join("a", capacity=1)
    for _ in range(STRIKES):
        table.fail("a", "train/0/0")
    assert table.shards.searches.unanswered() == []
    table.fail("a", "probe/0/1")
    assert table.shards.searches.unanswered() == [c.IdentifyRecord("train/0/0", 0, 0)]


def test_a_lease_that_servers_refuse_again_and_again_fails_the_job_with_their_reason() -> None:
    table = Table()
    table.join("a")
    for attempt in range(1, REFUSALS + 2):
        out = table.shards.handle(e.LeaseReturned("a", "train/0/0", attempt, "ps-0 refused: no memory"), 1.0)
    (end,) = [x for x in out if isinstance(x, c.FinishJob)]
    assert "no memory" in end.reason
    check_shards(table.shards)


def test_leases_that_a_leaving_worker_gives_back_are_no_refusals() -> None:
    table = Table()
    table.join("a")
    table.shards.handle(e.ReplicaLeaving("a"), 1.0)
    table.shards.handle(e.LeaseReturned("a", "train/0/0", 1, "the worker is leaving"), 1.0)
    assert [s.refusals for s in table.shards.waiting] == [0]
