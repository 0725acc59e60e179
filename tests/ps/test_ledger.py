"""What a server does with a push, and how cuts of several servers come out equal."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pydantic import TypeAdapter

from elasticdl.core import commands as c
from elasticdl.ps.ledger import Ledger, Push, Verdict
from elasticdl.strategies.parameter_servers.core.cuts import VIEW, Cuts, Phase
from elasticdl.wire import control_pb2 as pb

SHARD = "train/0/0"


def opened(attempt: int = 1, batches: int = 4) -> Ledger:
    ledger = Ledger()
    ledger.opened(SHARD, attempt, 0, batches)
    return ledger


def push(ledger: Ledger, batch: int, attempt: int = 1, index: int = 0, epoch: int = 0, timeline: int = 0) -> Verdict:
    """Judge a push, and apply it if that is the verdict."""
    asked = Push(timeline, epoch, index, attempt, batch)
    verdict = ledger.judge(asked).verdict
    if verdict is Verdict.APPLY:
        ledger.applied(asked)
    return verdict


def test_batches_are_applied_in_order_and_counted() -> None:
    ledger = opened()
    assert [push(ledger, b) for b in range(4)] == [Verdict.APPLY] * 4
    assert ledger.version == 4


def test_a_repeat_is_acknowledged_and_not_applied() -> None:
    ledger = opened()
    assert [push(ledger, b) for b in (0, 0, 1, 0)] == [Verdict.APPLY, Verdict.REPEAT, Verdict.APPLY, Verdict.REPEAT]
    assert ledger.version == 2


def test_a_batch_ahead_is_answered_with_where_to_start_again() -> None:
    ledger = opened()
    push(ledger, 0)
    ruling = ledger.judge(Push(0, 0, 0, 1, 3))
    assert (ruling.verdict, ruling.next_batch) == (Verdict.RESEND, 1)


def test_a_batch_replayed_by_another_worker_is_applied_once() -> None:
    ledger = opened()
    push(ledger, 0)
    ledger.opened(SHARD, 2, 0, 4)
    assert push(ledger, 0, attempt=2) is Verdict.REPEAT
    assert push(ledger, 1, attempt=2) is Verdict.APPLY


def test_a_push_of_a_revoked_lease_is_refused() -> None:
    ledger = opened()
    ledger.opened(SHARD, 2, 0, 4)
    assert push(ledger, 0, attempt=1) is Verdict.REFUSE
    assert "was revoked" in ledger.judge(Push(0, 0, 0, 1, 0)).reason


@pytest.mark.parametrize(("index", "attempt"), [(0, 2), (7, 1)])
def test_a_push_of_an_unknown_lease_waits_until_it_is_known(index: int, attempt: int) -> None:
    """The worker's grant may overtake the server's word of it."""
    ledger = opened()
    assert push(ledger, 0, attempt, index) is Verdict.WAIT
    ledger.opened(f"train/0/{index}", attempt, 0, 4)
    assert push(ledger, 0, attempt, index) is Verdict.APPLY


def test_a_finished_shard_is_refused_and_never_started_at_zero() -> None:
    ledger = opened()
    ledger.close(SHARD)
    assert push(ledger, 0) is Verdict.REFUSE
    ledger.opened(SHARD, 2, 0, 4)
    assert push(ledger, 0, attempt=2) is Verdict.REFUSE, "opening it again changes nothing"


def test_a_closed_epoch_is_refused_as_a_whole_and_kept_in_one_number() -> None:
    ledger = opened()
    ledger.opened("train/1/0", 1, 0, 4)
    ledger.close(SHARD)
    ledger.close_epoch(0)
    assert ledger.closed == {} and ledger.first_epoch == 1
    assert push(ledger, 0, index=99) is Verdict.REFUSE
    assert push(ledger, 0, epoch=1) is Verdict.APPLY


def test_an_epoch_with_an_open_shard_is_not_closed() -> None:
    ledger = opened()
    ledger.close_epoch(0)
    assert push(ledger, 0) is Verdict.APPLY


def restored(timeline: int, version: int = 0, **open_at: int) -> Ledger:
    """A ledger at a checkpoint, with these shards open; `a` is train/0/0."""
    shards = [pb.Opened(shard=f"train/0/{'abc'.index(k)}", next_batch=n, batches=4) for k, n in open_at.items()]
    return Ledger.restored(pb.Restore(timeline=timeline, version=version, open=shards))


def test_a_push_of_another_timeline_is_answered_that_it_is_over() -> None:
    ledger = restored(3, version=9, a=2)
    ledger.opened(SHARD, 5, 2, 4)
    for other in (0, 2, 4):
        ruling = ledger.judge(Push(other, 0, 0, 5, 2))
        assert (ruling.verdict, ruling.reason) == (Verdict.OVER, f"timeline {other} is over; the current one is 3")
    assert push(ledger, 2, attempt=5, timeline=3) is Verdict.APPLY and ledger.version == 10


def test_a_server_without_a_timeline_answers_that() -> None:
    assert Ledger().judge(Push(1, 0, 0, 1, 0)).reason == "this server has not begun a timeline yet"


def test_a_timeline_begins_where_its_checkpoint_stands() -> None:
    ledger = restored(2, version=7, a=2)
    assert push(ledger, 2, attempt=9, timeline=2) is Verdict.WAIT, "no worker has a lease on it yet"
    ledger.opened(SHARD, 9, 2, 4)
    assert push(ledger, 1, attempt=9, timeline=2) is Verdict.REPEAT
    assert push(ledger, 2, attempt=9, timeline=2) is Verdict.APPLY
    assert push(ledger, 0, attempt=9, timeline=2, index=1) is Verdict.WAIT, "fresh, or done: the master knows"
    ledger.opened("train/0/1", 9, 0, 4)
    assert push(ledger, 0, attempt=9, timeline=2, index=1) is Verdict.APPLY
    assert ledger.version == 9


def test_a_shard_that_was_closed_may_be_open_again_in_a_new_timeline() -> None:
    ledger = opened()
    for batch in range(4):
        push(ledger, batch)
    ledger.close(SHARD)
    ledger.close_epoch(0)
    again = restored(2, version=1, a=1)
    again.opened(SHARD, 2, 1, 4)
    assert push(again, 1, attempt=2, timeline=2) is Verdict.APPLY


def test_no_barrier_survives_the_timeline_it_was_made_in() -> None:
    ledger = opened()
    ledger.hold(1, at=0)
    assert push(ledger, 0) is Verdict.WAIT
    again = restored(2, a=0)
    again.opened(SHARD, 2, 0, 4)
    assert push(again, 0, attempt=2, timeline=2) is Verdict.APPLY


def test_a_batch_beyond_the_shard_is_refused() -> None:
    ledger = opened(batches=1)
    push(ledger, 0)
    assert push(ledger, 1) is Verdict.REFUSE


def test_what_the_master_does_not_list_is_closed_when_the_stream_is_back() -> None:
    ledger = opened()
    ledger.opened("train/0/1", 1, 0, 4)
    ledger.open_only({"train/0/1"})
    assert push(ledger, 0) is Verdict.REFUSE and push(ledger, 0, index=1) is Verdict.APPLY


def test_a_server_without_the_batches_that_the_master_expects_raises() -> None:
    with pytest.raises(ValueError, match="has none of its batches"):
        Ledger().opened(SHARD, 3, 2, 4)


def test_a_barrier_holds_pushes_from_its_version_on_and_reports_once() -> None:
    ledger = opened()
    ledger.hold(1, at=2)
    assert push(ledger, 0) is Verdict.APPLY and ledger.report() is None
    assert push(ledger, 1) is Verdict.APPLY
    assert ledger.report() == (1, {SHARD: 2})
    assert ledger.report() is None
    assert push(ledger, 2) is Verdict.WAIT
    assert push(ledger, 1) is Verdict.REPEAT, "a repeat is still answered"
    ledger.release(1)
    assert push(ledger, 2) is Verdict.APPLY


def test_an_advance_lets_through_what_others_have_and_reports_again() -> None:
    ledger = opened()
    ledger.hold(1, at=0)
    ledger.report()
    ledger.advance(1, {SHARD: 2})
    assert ledger.report() is None, "not there yet"
    assert [push(ledger, b) for b in range(3)] == [Verdict.APPLY, Verdict.APPLY, Verdict.WAIT]
    assert ledger.report() == (1, {SHARD: 2})


def test_a_repeated_hold_is_reported_again_and_an_old_release_changes_nothing() -> None:
    ledger = opened()
    ledger.hold(2, at=0)
    assert ledger.report() == (2, {SHARD: 0})
    ledger.hold(2, at=0)
    assert ledger.report() == (2, {SHARD: 0}), "the first report may have been lost with the stream"
    ledger.release(1)
    ledger.hold(1, at=0)
    assert ledger.holding and ledger.barrier is not None and ledger.barrier.cut == 2


# Several servers under one barrier.


@dataclass
class Server:
    """A ledger, what it really applied, and the master's words that are under way to it."""

    ledger: Ledger = field(default_factory=Ledger)
    applied: Counter[tuple[str, int]] = field(default_factory=Counter)
    inbox: deque[tuple[str, tuple[object, ...]]] = field(default_factory=deque)
    frozen: dict[int, Counter[tuple[str, int]]] = field(default_factory=dict)


class CutsMachine(RuleBasedStateMachine):
    """Real ledgers and the real barrier; workers that die between two servers, messages that take their time."""

    SHARDS = ("train/0/0", "train/0/1", "train/0/2")
    BATCHES = 4

    @initialize(servers=st.integers(1, 3))
    def begin(self, servers: int) -> None:
        self.servers = {f"s{i}": Server() for i in range(servers)}
        self.cuts = Cuts(tuple(self.servers))
        self.attempt = dict.fromkeys(self.SHARDS, 0)
        self.committed = dict.fromkeys(self.SHARDS, 0)
        self.owner: dict[str, bool] = {}  # shards with a worker
        self.acks: dict[str, set[str]] = {}
        self.done_cuts = 0

    # The master's side.

    def obey(self, commands: list[c.Command]) -> None:
        for x in commands:
            match x:
                case c.HoldServers(cut, at, server):
                    self.tell("hold", (cut, at), server)
                case c.AdvanceServers(cut, counters, server):
                    self.tell("advance", (cut, dict(counters)), server)
                case c.ReleaseServers(cut, server):
                    self.tell("release", (cut,), server)
                case c.CutServers(cut, _, server):
                    self.tell("freeze", (cut,), server)

    def tell(self, what: str, arguments: tuple[object, ...], server: str = "") -> None:
        for name in [server] if server else self.servers:
            self.servers[name].inbox.append((what, arguments))

    def unclosed(self) -> set[str]:
        return {s for s in self.SHARDS if self.attempt[s] and self.committed[s] < self.BATCHES}

    def follow(self) -> None:
        self.obey(self.cuts.check(self.unclosed(), set(self.owner)))
        self.obey(self.cuts.repaired({s: self.committed[s] for s in self.unclosed()}))

    @rule(shard=st.sampled_from(SHARDS))
    def lease(self, shard: str) -> None:
        if shard in self.owner or self.committed[shard] >= self.BATCHES:
            return
        self.attempt[shard] += 1
        self.owner[shard] = True
        self.acks[shard] = set()
        self.tell("opened", (shard, self.attempt[shard], self.committed[shard], self.BATCHES))
        self.follow()

    @rule(shard=st.sampled_from(SHARDS))
    def die(self, shard: str) -> None:
        if self.owner.pop(shard, None):
            self.follow()

    @precondition(lambda self: self.cuts.active is None)
    @rule(at=st.integers(0, 12))
    def cut(self, at: int) -> None:
        self.obey(self.cuts.start(VIEW, at))

    @rule(name=st.sampled_from(["s0", "s1", "s2"]))
    def stream_breaks(self, name: str) -> None:
        """Messages on their way are lost; the server sends Hello and receives the present state."""
        if name in self.servers:
            server = self.servers[name]
            server.inbox.clear()
            for shard in sorted(self.unclosed()):
                self.tell("opened", (shard, self.attempt[shard], self.committed[shard], self.BATCHES), name)
            self.tell("open_only", (self.unclosed(),), name)
            self.obey(self.cuts.joined(name))

    # Workers and servers.

    @rule(shard=st.sampled_from(SHARDS), name=st.sampled_from(["s0", "s1", "s2"]))
    def push(self, shard: str, name: str) -> None:
        if shard not in self.owner or name not in self.servers:
            return
        server, batch = self.servers[name], self.committed[shard]
        asked = Push(0, 0, int(shard[-1]), self.attempt[shard], batch)
        ruling = server.ledger.judge(asked)
        assert ruling.verdict in (Verdict.APPLY, Verdict.REPEAT, Verdict.WAIT), ruling
        if ruling.verdict is Verdict.APPLY:
            server.ledger.applied(asked)
            server.applied[(shard, batch)] += 1
        if ruling.verdict is not Verdict.WAIT:
            self.acks[shard].add(name)
        if self.acks[shard] == set(self.servers):
            self.acks[shard] = set()
            self.committed[shard] += 1
            if self.committed[shard] == self.BATCHES:
                del self.owner[shard]
                self.tell("close", (shard,))
            self.follow()

    @rule(name=st.sampled_from(["s0", "s1", "s2"]))
    def deliver(self, name: str) -> None:
        server = self.servers.get(name)
        if server is not None and server.inbox:
            what, arguments = server.inbox.popleft()
            if what == "freeze":
                (cut,) = arguments
                assert isinstance(cut, int)
                server.frozen.setdefault(cut, server.applied.copy())
                if (done := self.cuts.frozen(name, cut)) is not None:
                    self.done_cuts += 1
                    pictures = [s.frozen[done.number] for s in self.servers.values()]
                    assert all(p == pictures[0] for p in pictures), "the cut is torn"
                    assert Counter({s: n for s, n in done.counters.items() if n}) == Counter(
                        shard for shard, _ in pictures[0] if shard in done.counters
                    )
                    self.obey([c.ReleaseServers(done.number)])
            else:
                getattr(server.ledger, what)(*arguments)

    @rule(name=st.sampled_from(["s0", "s1", "s2"]), lost=st.integers(0, 4))
    def report(self, name: str, lost: int) -> None:
        server = self.servers.get(name)
        if server is None or (told := server.ledger.report()) is None:
            return
        if lost:
            self.obey(self.cuts.held(name, told[0], told[1], self.unclosed(), set(self.owner)))
        else:
            self.stream_breaks(name)
        self.follow()

    @invariant()
    def no_batch_is_applied_twice(self) -> None:
        for server in getattr(self, "servers", {}).values():
            assert not [b for b, n in server.applied.items() if n > 1]
            for shard in self.SHARDS:
                mine = sorted(b for s, b in server.applied if s == shard)
                assert mine == list(range(len(mine))) and len(mine) >= self.committed[shard]

    def teardown(self) -> None:
        if not hasattr(self, "servers"):
            return
        assert STATE.validate_json(STATE.dump_json(self.cuts)) == self.cuts
        for _ in range(200):  # calm: all work, every message arrives
            for shard in self.SHARDS:
                self.lease(shard)
            for name in self.servers:
                while self.servers[name].inbox:
                    self.deliver(name)
                for shard in self.SHARDS:
                    self.push(shard, name)
                self.report(name, 1)
                self.follow()
            finished = all(n == self.BATCHES for n in self.committed.values())
            if finished and (self.cuts.active is None or self.cuts.active.at > 3 * self.BATCHES):
                return
        phase = self.cuts.active.phase if self.cuts.active is not None else Phase.CUTTING
        raise AssertionError(f"churn stopped, and the servers stand still ({phase})")


STATE: TypeAdapter[Cuts] = TypeAdapter(Cuts)


class TestCuts(CutsMachine.TestCase):
    settings = settings(max_examples=150, stateful_step_count=60, deadline=None, derandomize=True)
