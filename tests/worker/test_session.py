"""A worker's side of the stream: nothing is lost with it, nothing is done twice."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.plan import Kind, Plan, Shard, ShardId
from elasticdl.core.shards import Shards, ShardsAdded
from elasticdl.master.messages import event_of
from elasticdl.wire import control_pb2 as pb
from elasticdl.worker.session import Session, Work
from tests.core.invariants import check_shards


def grant(shard: str = "train/0/0", attempt: int = 1, batches: int = 2, next_batch: int = 0) -> pb.ToReplica:
    of = ShardId.parse(shard)
    return pb.ToReplica(
        grant=pb.Grant(
            shard=shard, attempt=attempt, kind=of.kind, round=of.round, start=0, stop=4, batches=batches,
            next_batch=next_batch, bad_records=[7],
        )
    )  # fmt: skip


def close(shard: str = "train/0/0", attempt: int = 1) -> pb.ToReplica:
    return pb.ToReplica(close=pb.Close(shard=shard, attempt=attempt))


def session(*messages: pb.ToReplica) -> Session:
    it = Session("w", "i", 2)
    for message in messages:
        it.receive(message)
    return it


def current(it: Session) -> Work:
    work = it.current()
    assert work is not None
    return work


def told(it: Session) -> list[tuple[str, int, int, bool]]:
    """What Hello says of leases."""
    return [(h.shard, h.attempt, h.next_batch, h.completed) for h in it.hello().hello.holdings]


def test_leases_are_worked_on_in_the_order_granted() -> None:
    it = session(grant("train/0/1"), grant("train/0/0"))
    assert current(it).shard == "train/0/1"
    assert current(it).bad_records == (7,)


def test_in_synchronous_training_the_earliest_batch_comes_first_and_calls_off_a_later_one() -> None:
    it = session(grant("train/1/0"), grant("train/0/7"))
    it.in_order = True
    later = it.queue["train/1/0"]
    assert current(it).shard == "train/0/7" and it.preceded(later) and not it.preceded(current(it))
    it.receive(grant("evaluate/1/0"))
    assert current(it).shard == "evaluate/1/0", "what is not training goes first"
    assert not it.preceded(it.queue["train/0/7"]), "but it calls nothing off: no round waits for it"
    it.in_order = False
    assert not it.preceded(later)


def test_batches_that_moved_nothing_are_told_with_progress_and_again_in_hello() -> None:
    it = session(grant(batches=3))
    work = current(it)
    assert it.committed(work, 1, 0.5, skipped=True).progress.skipped == 1
    assert it.committed(work, 2, 0.5).progress.skipped == 1
    assert it.hello().hello.holdings[0].skipped == 1
    it.committed(work, 3, 0.5, skipped=True)
    assert it.hello().hello.holdings[0].skipped == 2, "finished, and not answered yet"


def test_a_hello_names_the_worker_what_it_wants_and_what_it_holds() -> None:
    it = session(grant())
    it.committed(current(it), 1, 0.5)
    hello = it.hello().hello
    assert (hello.replica, hello.incarnation, hello.capacity) == ("w", "i", 2)
    assert told(it) == [("train/0/0", 1, 1, False)]


def test_a_grant_said_twice_does_not_start_the_shard_again() -> None:
    it = session(grant())
    it.committed(current(it), 1, 0.5)
    it.receive(grant())
    assert current(it).next_batch == 1


def test_a_finished_shard_is_told_until_the_master_closes_it() -> None:
    it = session(grant())
    it.committed(current(it), 2, 0.5)
    assert it.current() is None
    assert told(it) == [("train/0/0", 1, 2, False)]
    it.receive(grant())
    assert it.current() is None, "the grant crossed the report"
    it.receive(close())
    assert told(it) == []


def test_a_finished_evaluation_keeps_its_result_until_it_is_closed() -> None:
    it = session(grant("evaluate/1/0"))
    it.committed(current(it), 2, 0.0)
    assert current(it).kind == "evaluate", "its batches do not finish it, its result does"
    it.completed(current(it), "result")
    assert [(h.completed, h.result) for h in it.hello().hello.holdings] == [(True, "result")]


def test_a_lease_that_was_closed_or_revoked_is_dropped_unless_a_newer_one_came() -> None:
    it = session(grant(attempt=3), close(attempt=2))
    assert current(it).attempt == 3
    it.receive(pb.ToReplica(revoke=pb.Revoke(shard="train/0/0", attempt=3)))
    assert it.current() is None


def test_a_newer_lease_of_the_same_shard_takes_the_place_of_the_old_one() -> None:
    it = session(grant(attempt=1))
    old = current(it)
    it.receive(grant(attempt=2, next_batch=1))
    assert not it.holds(old) and current(it).next_batch == 1
    it.committed(old, 2, 0.5)
    assert current(it).next_batch == 1, "what the old lease did is not the new one's"


def test_a_failed_batch_gives_the_lease_back() -> None:
    it = session(grant())
    message = it.failed(current(it), "Traceback")
    assert (message.failed.batch, message.failed.error) == (0, "Traceback")
    assert it.current() is None and told(it) == []


def test_a_leaving_worker_keeps_only_what_it_works_on_and_wants_nothing_more() -> None:
    it = session(grant("train/0/0"), grant("train/0/1"))
    first, *rest = it.leave()
    assert first.WhichOneof("body") == "leaving"
    assert [m.returned.shard for m in rest] == ["train/0/1"]
    assert [w.shard for w in it.queue.values()] == ["train/0/0"]
    assert it.hello().hello.capacity == 0


def test_the_master_says_where_the_servers_are_and_when_it_is_over() -> None:
    it = session(
        pb.ToReplica(welcome=pb.Welcome(master_epoch=3)),
        pb.ToReplica(members=pb.Members(timeline=2, servers=["a", "b"])),
        pb.ToReplica(shutdown=pb.Shutdown()),
    )
    assert (it.master_epoch, it.timeline, it.servers) == (3, 2, ("a", "b"))
    assert it.shutdown == "the job is over"


class SessionMachine(RuleBasedStateMachine):
    """A session and the real leases behind it, with a stream that loses whatever is under way when it breaks."""

    @initialize(records=st.integers(1, 20), per=st.integers(1, 3), evaluations=st.integers(0, 3))
    def begin(self, records: int, per: int, evaluations: int) -> None:
        self.shards = Shards(Plan(records, 2, per, 1), paused=False)
        self.session = Session("w", "i", 2)
        self.up: deque[pb.FromReplica] = deque()
        self.down: deque[pb.ToReplica] = deque()
        self.now = 0.0
        self.trained: Counter[tuple[str, int]] = Counter()  # as servers with exact counters would see it
        self.evaluations = evaluations
        added = tuple(Shard(Kind.EVALUATE, 1, i, 0, 2, 1) for i in range(evaluations))
        self.shards.handle(ShardsAdded(added), 0.0)
        self.connect()

    def connect(self) -> None:
        self.up.clear()
        self.down.clear()
        self.up.append(self.session.hello())

    @rule()
    def stream_breaks(self) -> None:
        self.connect()

    @rule()
    def master_hears(self) -> None:
        if not self.up:
            return
        self.now += 1
        for command in self.shards.handle(event_of("w", self.up.popleft()), self.now):
            match command:
                case c.GrantLease(_, shard, attempt):
                    s = self.shards.leased.get(shard)
                    if s is not None and s.attempt == attempt:
                        self.down.append(grant(shard, attempt, s.batches, s.next_batch))
                case c.CloseLease(_, shard, attempt):
                    self.down.append(close(shard, attempt))
        check_shards(self.shards)

    @rule()
    def worker_hears(self) -> None:
        if self.down:
            self.session.receive(self.down.popleft())

    @rule()
    def worker_works(self) -> None:
        work = self.session.current()
        if work is None:
            return
        if work.kind == "train":
            batch = work.next_batch
            self.trained[(work.shard, batch)] += 1
            self.up.append(self.session.committed(work, batch + 1, 0.5))
        else:
            self.up.append(self.session.completed(work, "r"))

    @rule()
    def worker_returns(self) -> None:
        if (work := self.session.current()) is not None:
            self.up.append(self.session.returned(work, "refused"))

    @invariant()
    def nothing_is_reported_that_was_not_trained(self) -> None:
        if not hasattr(self, "shards"):
            return
        trained = {batch for batch, n in self.trained.items() if n}
        assert self.shards.version <= len(trained)

    def teardown(self) -> None:
        if not hasattr(self, "shards"):
            return
        for _ in range(300):
            self.worker_works()
            while self.up:
                self.master_hears()
            while self.down:
                self.worker_hears()
        assert self.shards.trained_out, "the stream is whole again and training does not end"
        assert len({s.id for s, _ in self.shards.results}) == len(self.shards.results) == self.evaluations
        assert not self.session.queue and not self.session.finished, "both agree that nothing is left"


class TestSession(SessionMachine.TestCase):
    settings = settings(max_examples=150, stateful_step_count=50, deadline=None, derandomize=True)


def test_messages_of_a_worker_become_events_of_core() -> None:
    it = session(grant(), grant("evaluate/1/0"))
    train, evaluate = it.queue.values()
    assert event_of("w", it.committed(train, 1, 0.25)) == e.BatchesCommitted("w", "train/0/0", 1, 1, 0.25)
    assert event_of("w", it.completed(evaluate, "r")) == e.ShardCompleted("w", "evaluate/1/0", 1, "r")
    assert event_of("w", it.failed(train, "no")) == e.BatchFailed("w", "train/0/0", 1, 1, "no")
    holding = e.Holding("evaluate/1/0", 1, 2, True, "r")
    assert event_of("w", it.hello()) == e.ReplicaJoined("w", "i", "", (holding,), 2)
