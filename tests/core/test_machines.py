"""Random events in any order, repeated and stale ones too: the invariants hold after each, and calm ends every job."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pydantic import TypeAdapter

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.checkpoints import Schedule
from elasticdl.core.plan import Kind, Plan, Shard
from elasticdl.core.replicas import CAUSES, Budget, Replicas, State
from elasticdl.core.searches import Searches
from elasticdl.core.shards import Shards, ShardsAdded, WorkerLost
from elasticdl.strategies.parameter_servers.core.cuts import Phase
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
from tests.core.invariants import check_clock, check_replicas, check_shards
from tests.core.playing import Play, of

SETTINGS = settings(max_examples=200, stateful_step_count=40, deadline=None, derandomize=True)
WORKERS = ["a", "b", "c"]
SMALL = st.integers(0, 3)
SHARDS: TypeAdapter[Shards] = TypeAdapter(Shards)
REPLICAS: TypeAdapter[Replicas] = TypeAdapter(Replicas)
JOB: TypeAdapter[ParameterServerMachine] = TypeAdapter(ParameterServerMachine)


class ShardsMachine(RuleBasedStateMachine):
    """Leases with workers that come, go, repeat themselves and tell old stories."""

    @initialize(
        records=st.integers(1, 20), minibatch=st.integers(1, 3), per=st.integers(1, 3), epochs=st.integers(1, 2)
    )
    def begin(self, records: int, minibatch: int, per: int, epochs: int) -> None:
        self.new = lambda: Shards(Plan(records, minibatch, per, epochs), Searches(1000), paused=False)
        self.shards = self.new()
        self.said: list[tuple[e.Event, float]] = []
        self.now, self.version, self.rounds = 0.0, 0, 0
        self.failed = False

    def hear(self, event: e.Event) -> None:
        self.now += 1.0
        self.said.append((event, self.now))
        owners = {i: (s.worker, s.attempt) for i, s in self.shards.leased.items()}
        out = self.shards.handle(event, self.now)
        for grant in of(c.GrantLease, out):
            lease = self.shards.leased.get(grant.shard)
            assert lease is None or lease.attempt >= grant.attempt
            old = owners.get(grant.shard)
            assert old is None or old == (grant.worker, grant.attempt) or grant.attempt > old[1], (
                "an attempt was reused"
            )
        self.failed |= bool(of(c.FinishJob, out))
        for question in of(c.IdentifyRecord, out):
            self.said.append((e.RecordIdentified(question.shard, question.position, question.position, "r"), self.now))
            self.failed |= bool(of(c.FinishJob, self.shards.handle(self.said[-1][0], self.now)))

    def lease(self, data: st.DataObject) -> Shard | None:
        found = list(self.shards.leased.values())
        return data.draw(st.sampled_from(found)) if found else None

    @rule(worker=st.sampled_from(WORKERS), data=st.data(), honest=st.booleans())
    def join(self, worker: str, data: st.DataObject, honest: bool) -> None:
        mine = [s for s in self.shards.leased.values() if s.worker == worker or not honest]
        kept = data.draw(st.lists(st.sampled_from(mine), unique_by=lambda s: s.id)) if mine else []
        holdings = tuple(
            e.Holding(s.id, s.attempt - data.draw(st.integers(0, 1)), s.next_batch + data.draw(st.integers(0, 1)),
                      s.kind is not Kind.TRAIN and data.draw(st.booleans()), "r")
            for s in kept
        )  # fmt: skip
        self.hear(e.ReplicaJoined(worker, "1", "", holdings, 2))

    @rule(worker=st.sampled_from(WORKERS), blame=st.booleans())
    def lose(self, worker: str, blame: bool) -> None:
        self.hear(WorkerLost(worker, "killed", blame and self.version > 0))

    @rule(worker=st.sampled_from(WORKERS))
    def leave(self, worker: str) -> None:
        self.hear(e.ReplicaLeaving(worker))

    @rule(data=st.data(), by=SMALL, stale=SMALL, worker=st.sampled_from([*WORKERS, ""]))
    def commit(self, data: st.DataObject, by: int, stale: int, worker: str) -> None:
        if (s := self.lease(data)) is not None:
            owner = s.worker if stale else worker
            self.hear(e.BatchesCommitted(owner, s.id, s.attempt - (stale == 1), max(0, s.next_batch + by - 1)))

    @rule(data=st.data(), what=st.sampled_from(["complete", "fail", "return"]), stale=st.integers(0, 5))
    def answer(self, data: st.DataObject, what: str, stale: int) -> None:
        if (s := self.lease(data)) is None:
            return
        attempt = s.attempt - (stale == 0)
        if what == "complete":
            self.hear(e.ShardCompleted(s.worker, s.id, attempt, "r"))
        elif what == "return":
            self.hear(e.LeaseReturned(s.worker, s.id, attempt, "why"))
        elif self.version and s.kind in (Kind.TRAIN, Kind.PROBE):
            self.hear(e.BatchFailed(s.worker, s.id, attempt, s.next_batch, "error"))

    @rule(data=st.data(), position=st.integers(0, 20))
    def identify(self, data: st.DataObject, position: int) -> None:
        ids = [*self.shards.searches.open, "train/0/0"]
        self.hear(e.RecordIdentified(data.draw(st.sampled_from(ids)), position, position, "r"))

    @rule(kind=st.sampled_from([Kind.EVALUATE, Kind.EXPORT]))
    def add(self, kind: Kind) -> None:
        self.rounds += 1
        self.hear(ShardsAdded((Shard(kind, self.rounds, 0, 0, 2, 1),)))

    @precondition(lambda self: bool(self.said))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(self.said))[0]
        if not isinstance(event, ShardsAdded):
            self.hear(event)

    @invariant()
    def every_record_is_somewhere_exactly_once(self) -> None:
        if not self.failed:
            check_shards(self.shards)
        assert self.shards.version >= self.version, "a commit was taken back"
        self.version = self.shards.version

    def teardown(self) -> None:
        if not hasattr(self, "shards"):
            return
        assert SHARDS.validate_json(SHARDS.dump_json(self.shards)) == self.shards
        replayed = self.new()
        for event, at in self.said:
            replayed.handle(_copy(event), at)
        assert replayed == self.shards
        for worker in WORKERS:
            self.hear(WorkerLost(worker, "calm"))
        self.hear(e.ReplicaJoined("calm", "1", "", (), 2))
        for _ in range(600):
            if not self.shards.leased or self.failed:
                break
            s = min(self.shards.leased.values(), key=lambda s: s.turn)
            if s.kind is Kind.TRAIN:
                self.hear(e.BatchesCommitted("calm", s.id, s.attempt, s.next_batch + 1))
            else:
                self.hear(e.ShardCompleted("calm", s.id, s.attempt))
        assert self.failed or self.shards.trained_out, "churn stopped and training does not end"


def _copy(event: e.Event) -> e.Event:
    """Shards are mutable: an event that was heard once must not carry their later state."""
    if isinstance(event, ShardsAdded):
        fresh = (Shard(s.kind, s.round, s.index, s.start, s.stop, s.batches, payload=s.payload) for s in event.shards)
        return ShardsAdded(tuple(fresh))
    return event


class ReplicasMachine(RuleBasedStateMachine):
    """Replicas of any fate, with the cluster's and the streams' words in any order."""

    @initialize(workers=st.integers(1, 3), servers=st.integers(0, 2), crashes=st.integers(0, 2))
    def begin(self, workers: int, servers: int, crashes: int) -> None:
        budget = Budget(crashes=crashes, server_crashes=crashes, start_seconds=20, reconnect_seconds=10)
        self.wanted = {"ps": servers, "worker": workers}
        self.new = lambda: Replicas.wanting("j", self.wanted, budget)
        self.replicas = self.new()
        self.said: list[tuple[e.Event, float]] = []
        self.now, self.over = 0.0, False
        self.launched: set[tuple[str, int]] = set()
        self.hear(e.MasterStarted())

    def hear(self, event: e.Event, after: float = 0.5) -> None:
        if self.over:
            return
        self.now += after
        self.said.append((event, self.now))
        ended = self.ends(event)
        self.servers_before = {
            r.index: State.GONE if r.name in ended else r.state
            for r in self.replicas.replicas.values() if r.role == "ps"
        }  # fmt: skip
        out = self.replicas.handle(event, self.now)
        for launch in of(c.LaunchReplica, out):
            again = launch.role == "worker" and (launch.role, launch.index) in self.launched
            assert not again or isinstance(event, e.MasterStarted), f"{launch} under a name that was used"
            if launch.role == "ps" and not isinstance(event, e.MasterStarted):
                before = self.servers_before.get(launch.index)
                assert before in (None, State.GONE), f"{launch} while its predecessor is {before}"
            self.launched.add((launch.role, launch.index))
        self.over = bool(of(c.FinishJob, out))

    def ends(self, event: e.Event) -> set[str]:
        """The replica that an event declares dead, as far as it is about the process that bears the name now."""
        gone = isinstance(event, e.ReplicaGone) and self.replicas.concerns(event.name, event.uid)
        return {event.name} if gone and isinstance(event, e.ReplicaGone) else set()

    def some(self, data: st.DataObject) -> Any:
        return data.draw(st.sampled_from(list(self.replicas.replicas.values())))

    @rule(data=st.data(), uid=st.sampled_from(["u1", "u2"]))
    def start(self, data: st.DataObject, uid: str) -> None:
        r = self.some(data)
        self.hear(e.ReplicaStarted(r.name, r.uid or uid))

    @rule(data=st.data(), incarnation=st.sampled_from(["i1", "i2"]))
    def join(self, data: st.DataObject, incarnation: str) -> None:
        self.hear(e.ReplicaJoined(self.some(data).name, incarnation, "at"))

    @rule(data=st.data(), incarnation=st.sampled_from(["i1", "i2"]))
    def drop(self, data: st.DataObject, incarnation: str) -> None:
        self.hear(e.ReplicaDropped(self.some(data).name, incarnation))

    @rule(data=st.data(), cause=st.sampled_from(CAUSES), uid=st.sampled_from(["", "u1", "u2"]))
    def end(self, data: st.DataObject, cause: str, uid: str) -> None:
        r = self.some(data)
        self.hear(e.ReplicaGone(r.name, uid or r.uid, cause, "why"))

    @rule(after=st.floats(0, 30))
    def wait(self, after: float) -> None:
        self.hear(e.TimePassed(), after)
        deadline = self.replicas.deadline()
        assert self.over or deadline is None or deadline > self.now, "due and not done"

    @rule(data=st.data())
    def master_returns(self, data: st.DataObject) -> None:
        living = [r for r in self.replicas.replicas.values() if r.state is not State.GONE]
        there = data.draw(st.lists(st.sampled_from(living), unique_by=lambda r: r.name)) if living else []
        self.hear(e.MasterStarted(tuple((r.name, r.uid or "u1") for r in there)))

    @invariant()
    def every_place_is_filled_once(self) -> None:
        if hasattr(self, "replicas") and not self.over:
            check_replicas(self.replicas)

    def teardown(self) -> None:
        if not hasattr(self, "replicas"):
            return
        assert REPLICAS.validate_json(REPLICAS.dump_json(self.replicas)) == self.replicas
        replayed = self.new()
        for event, at in self.said:
            replayed.handle(event, at)
        assert replayed == self.replicas
        for _ in range(4):  # deadlines, then the pauses after crashes
            self.hear(e.TimePassed(), after=31.0)
            for r in list(self.replicas.replicas.values()):
                if r.state is State.STOPPING:
                    self.hear(e.ReplicaGone(r.name, r.uid, CAUSES[0], "stopped"))
        for r in list(self.replicas.replicas.values()):
            if r.state in (State.LAUNCHED, State.RUNNING, State.LOST_TOUCH):
                self.hear(e.ReplicaStarted(r.name, r.uid or "calm"))
                self.hear(e.ReplicaJoined(r.name, r.incarnation or "calm", "at"))
        if not self.over:
            for role, count in self.wanted.items():
                assert len(self.replicas.joined(role)) == count, "churn stopped, a replica is missing"
                numbers = sorted(self.replicas.slots[r.slot].number for r in self.replicas.joined(role))
                assert numbers == list(range(count)), "a number is missing, or two have the same"


class JobMachine(RuleBasedStateMachine):
    """The whole job: replicas, leases, cuts and evaluation at once, told in any order."""

    @initialize(
        records=st.integers(1, 16), per=st.integers(1, 3), workers=st.integers(1, 2), servers=st.integers(1, 2),
        validation=st.sampled_from([0, 4]), every=st.sampled_from([0, 2]), export=st.booleans(),
        steps=st.sampled_from([0, 1, 3]), seconds=st.sampled_from([0.0, 5.0]), keep=st.integers(0, 2),
    )  # fmt: skip
    def begin(
        self, records: int, per: int, workers: int, servers: int, validation: int, every: int, export: bool,
        steps: int, seconds: float, keep: int,
    ) -> None:  # fmt: skip
        budget = Budget(crashes=5, server_crashes=50, start_seconds=20, reconnect_seconds=10, hang_seconds=60)
        schedule = Schedule(steps, seconds, keep)
        self.saved = {""}  # checkpoints that are on disk
        self.play = Play(
            records, 2, per, 1, workers, servers, budget=budget, validation_records=validation, evaluation_steps=every,
            export=export, max_bad_records=1000, schedule=schedule,
        )  # fmt: skip

    @property
    def job(self) -> ParameterServerMachine:
        return self.play.job

    def hear(self, event: e.Event, after: float = 0.1) -> None:
        before = self.job.servers.checkpoints.timeline, self.job.shards.highest_attempt
        out = self.play.hear(event, after)
        for grant in of(c.GrantLease, out):
            if self.job.servers.checkpoints.timeline > before[0]:
                assert grant.attempt > before[1], "a lease that servers may take for one of the timeline before"
        for restore in of(c.RestoreServer, out):
            assert restore.directory in self.saved, f"{restore} was never published, or is deleted"
        for delete in of(c.DeleteCheckpoints, out):
            self.saved -= set(delete.directories)
        known = {k.directory for k in self.job.servers.checkpoints.known}
        assert self.job.outcome or known <= self.saved, "a checkpoint that may be needed is deleted"
        for question in list(of(c.IdentifyRecord, out)):
            self.play.hear(e.RecordIdentified(question.shard, question.position, question.position, "r"), 0.0)

    def some(self, data: st.DataObject, role: str = "") -> Any:
        found = [r for r in self.job.replicas.replicas.values() if role in ("", r.role)]
        return data.draw(st.sampled_from(found))

    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        r = self.some(data)
        self.hear(e.ReplicaStarted(r.name, r.uid or f"u{len(self.play.journal)}"))
        held = [s for s in self.job.shards.leased.values() if s.worker == r.name]
        holdings = tuple(e.Holding(s.id, s.attempt, s.next_batch) for s in held if data.draw(st.booleans()))
        timeline = data.draw(st.integers(0, self.job.servers.checkpoints.timeline)) if r.role == "ps" else 0
        capacity = 2 if r.role == "worker" else 0
        incarnation = r.incarnation or f"i{len(self.play.journal)}"
        self.hear(e.ReplicaJoined(r.name, incarnation, "at", holdings, capacity, timeline))

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        r = self.some(data)
        self.hear(e.ReplicaDropped(r.name, r.incarnation))

    @rule(data=st.data(), cause=st.sampled_from(CAUSES[:3]))
    def end(self, data: st.DataObject, cause: str) -> None:
        r = self.some(data)
        if self.job.shards.version or cause == CAUSES[0]:
            self.hear(e.ReplicaGone(r.name, r.uid, cause, "why"))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.hear(e.ReplicaLeaving(self.some(data).name))

    @rule(data=st.data(), stale=st.integers(0, 4), what=st.sampled_from(["commit"] * 4 + ["complete"] * 3 + ["return"]))
    def work(self, data: st.DataObject, stale: int, what: str) -> None:
        if not self.job.shards.leased:
            return
        s = data.draw(st.sampled_from(list(self.job.shards.leased.values())))
        attempt = s.attempt - (stale == 0)
        if what == "commit":
            self.hear(e.BatchesCommitted(s.worker, s.id, attempt, s.next_batch + 1, 0.5))
        elif what == "complete":
            self.hear(e.ShardCompleted(s.worker, s.id, attempt, '"r"'))
        else:
            self.hear(e.LeaseReturned(s.worker, s.id, attempt, "why"))

    @rule(data=st.data(), old=st.integers(0, 5))
    def server_answers(self, data: st.DataObject, old: int) -> None:
        cut = self.job.servers.cuts.active
        number = (cut.number if cut is not None else self.job.servers.cuts.numbers) - (old == 0)
        server = self.some(data, "ps").name
        if cut is not None and cut.phase is Phase.CUTTING:
            self.hear(e.ServerCut(server, number))
        else:
            ahead = ((s.id, s.next_batch + data.draw(st.integers(0, 1))) for s in self.job.shards.open_training())
            self.hear(e.ServerHeld(server, number, tuple(ahead)))

    @rule(data=st.data(), old=st.integers(0, 5), trouble=st.integers(0, 5))
    def server_wrote(self, data: st.DataObject, old: int, trouble: int) -> None:
        writing = self.job.servers.checkpoints.writing
        if writing is not None:
            error = "" if trouble else "No space left on device"
            self.hear(e.ServerWrote(self.some(data, "ps").name, writing.cut - (old == 0), "part", error))

    @rule(data=st.data(), old=st.integers(0, 5), trouble=st.integers(0, 5))
    def server_restored(self, data: st.DataObject, old: int, trouble: int) -> None:
        r, now = self.some(data, "ps"), self.job.servers.checkpoints
        if r.state is State.JOINED:
            damaged = not trouble and now.newest.directory and r.name not in now.restored
            self.hear(e.ServerRestored(r.name, now.timeline - (old == 0), "damaged" if damaged else ""))

    @rule(trouble=st.integers(0, 5))
    def publish(self, trouble: int) -> None:
        for asked in of(c.PublishCheckpoint, self.job.servers.checkpoints.unanswered()):
            directory = f"version-{asked.position.version}"
            if trouble:
                self.saved.add(directory)
            self.hear(e.CheckpointPublished(asked.cut, directory if trouble else "", "" if trouble else "disk full"))

    @rule(after=st.floats(0, 70))
    def wait(self, after: float) -> None:
        self.hear(e.TimePassed(), after)
        check_clock(self.job, self.play.now)

    @rule(data=st.data())
    def master_returns(self, data: st.DataObject) -> None:
        there = [
            r for r in self.job.replicas.replicas.values()
            if r.state not in (State.GONE, State.LAUNCHED) and data.draw(st.booleans())
        ]  # fmt: skip
        self.hear(e.MasterStarted(tuple((r.name, r.uid or "u") for r in there)))

    @precondition(lambda self: self.job.shards.version > 2)
    @rule()
    def stop(self) -> None:
        self.hear(e.StopRequested("enough"))

    @precondition(lambda self: len(self.play.journal) > 3)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        kind, body, _ = data.draw(st.sampled_from(self.play.journal))
        if kind not in ("StopRequested", "CheckpointPublished"):  # those are said once
            self.hear(e.decode(kind, body))

    def teardown(self) -> None:
        if not hasattr(self, "play"):
            return
        assert self.play.replayed() == self.job
        assert JOB.validate_json(JOB.dump_json(self.job)) == self.job
        settle(self)


def settle(machine: JobMachine) -> None:
    """All come back and do what core asks for: the job must end."""
    job = machine.job
    for _ in range(400):
        if job.outcome:
            return
        before = len(machine.play.journal)
        for r in list(job.replicas.replicas.values()):
            if r.state is State.STOPPING:
                machine.hear(e.ReplicaGone(r.name, r.uid, CAUSES[0], "stopped"))
            elif r.state in (State.LAUNCHED, State.RUNNING, State.LOST_TOUCH):
                machine.hear(e.ReplicaStarted(r.name, r.uid or f"calm{len(machine.play.journal)}"))
                held = [s for s in job.shards.leased.values() if s.worker == r.name]
                holdings = tuple(e.Holding(s.id, s.attempt, s.next_batch) for s in held)
                capacity = 2 if r.role == "worker" else 0
                incarnation = r.incarnation or f"calm{len(machine.play.journal)}"  # each process has its own
                machine.hear(e.ReplicaJoined(r.name, incarnation, "at", holdings, capacity))
            if r.role == "ps" and r.state is State.JOINED and r.name not in job.servers.checkpoints.restored:
                machine.hear(e.ServerRestored(r.name, job.servers.checkpoints.timeline))
        leaving = [w for w, seat in job.shards.seats.items() if seat.leaving]
        for worker in leaving:
            machine.hear(e.ReplicaGone(worker, "", CAUSES[0], "left"))
        for question in job.shards.searches.unanswered():
            assert isinstance(question, c.IdentifyRecord)
            machine.hear(e.RecordIdentified(question.shard, question.position, question.position, "r"))
        for s in list(job.shards.leased.values()):
            if s.kind is Kind.TRAIN:
                machine.hear(e.BatchesCommitted(s.worker, s.id, s.attempt, s.next_batch + 1, 0.5))
            else:
                machine.hear(e.ShardCompleted(s.worker, s.id, s.attempt, '"r"'))
        cut = job.servers.cuts.active
        for server in job.servers.cuts.servers if cut is not None else ():
            if cut is not None and cut.phase is Phase.CUTTING:
                machine.hear(e.ServerCut(server, cut.number))
            elif cut is not None:
                counters = {s.id: max(s.next_batch, cut.limits.get(s.id, 0)) for s in job.shards.open_training()}
                machine.hear(e.ServerHeld(server, cut.number, tuple(counters.items())))
        writing = job.servers.checkpoints.writing
        for server in job.servers.checkpoints.servers if writing is not None else ():
            machine.hear(e.ServerWrote(server, writing.cut if writing is not None else 0, "part"))
        machine.publish(1)
        machine.hear(e.TimePassed(), after=1.0)
        assert job.outcome or before < len(machine.play.journal)
    raise AssertionError("churn stopped and the job does not end")


class TestShards(ShardsMachine.TestCase):
    settings = SETTINGS


class TestReplicas(ReplicasMachine.TestCase):
    settings = SETTINGS


class TestJob(JobMachine.TestCase):
    settings = SETTINGS
