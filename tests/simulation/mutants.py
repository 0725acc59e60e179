"""The system with one bug each: those of the old ElasticDL, and some that this design invites.

A suite that lets one of them pass proves nothing about the code that has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from elasticdl.core.checkpoints import Checkpoints
from elasticdl.core.commands import Command, CutServers, GrantLease
from elasticdl.core.evaluation import Evaluation
from elasticdl.core.events import Event, MasterStarted, ReplicaGone, ServerWrote
from elasticdl.core.plan import Kind, Position, Shard
from elasticdl.core.replicas import CRASHED, PREEMPTED, Replicas, State
from elasticdl.core.searches import Searches
from elasticdl.core.shards import Shards, WorkerLost
from elasticdl.ps.ledger import Entry, Ledger, Push, Ruling, Verdict
from elasticdl.ps.rounds import Rounds
from elasticdl.strategies.parameter_servers.core.cuts import Cuts, Phase
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
from elasticdl.strategies.parameter_servers.core.terms import ParameterServerTerms
from elasticdl.wire import control_pb2 as pb
from elasticdl.worker.session import Session, Work
from tests.simulation.processes import Server, Witness
from tests.simulation.scenario import Scenario
from tests.simulation.world import Parts


@dataclass
class Mutant:
    """A bug, what it looked like, and how many seeds the suite may take to find it."""

    what: str
    parts: Parts
    seeds: int = 100
    scenario: Callable[[Scenario], Scenario] = field(default=lambda s: s)


def with_shards(kind: type[Shards]) -> Parts:
    def new(terms: ParameterServerTerms) -> ParameterServerMachine:
        job = ParameterServerMachine.new(terms)
        job.shards = kind(terms.plan, Searches(terms.max_bad_records))
        return job

    return Parts(job=new)


def with_replicas(kind: type[Replicas]) -> Parts:
    def new(terms: ParameterServerTerms) -> ParameterServerMachine:
        job = ParameterServerMachine.new(terms)
        job.replicas = kind(job.replicas.job, job.replicas.budget, job.replicas.slots)
        return job

    return Parts(job=new)


def with_cuts(kind: type[Cuts]) -> Parts:
    def new(terms: ParameterServerTerms) -> ParameterServerMachine:
        job = ParameterServerMachine.new(terms)
        job.servers.cuts = kind(job.servers.cuts.servers)
        return job

    return Parts(job=new)


# The old system's.


@dataclass
class ThirdFailureDropsAShard(Shards):
    def _take_back(self, s: Shard, out: list[Command]) -> None:
        if s.attempt >= 3 and s.kind is Kind.TRAIN:
            del self.leased[s.id]
        else:
            super()._take_back(s, out)


@dataclass
class PreemptionCountsAsFailure(Replicas):
    def handle(self, event: Event, now: float) -> list[Command]:
        if isinstance(event, ReplicaGone) and event.cause == PREEMPTED:
            event = replace(event, cause=CRASHED)
        return super().handle(event, now)


@dataclass
class WaitingWorkerSwallowsARecoveredTask(Shards):
    """A worker that asked for more gets it; one that waits already is not told of what came back."""

    def handle(self, event: Event, now: float) -> list[Command]:
        if not isinstance(event, WorkerLost):
            return super().handle(event, now)
        out = super().handle(event, now)
        return [c for c in out if not isinstance(c, GrantLease)]


class NetworkErrorMeansNoMoreData(Session):
    def stream_broke(self) -> None:
        self.shutdown = "no more data"


# Our own.


@dataclass
class CommittedOffsetIgnored(Shards):
    """A shard that comes back starts again at its first batch."""

    def _take_back(self, s: Shard, out: list[Command]) -> None:
        super()._take_back(s, out)
        s.next_batch = 0


class AttemptNotChecked(Ledger):
    """An older lease may still push, and opens the shard for any worker."""

    def judge(self, push: Push) -> Ruling:
        entry = self.entries.get(push.shard)
        if entry is not None:
            push = replace(push, attempt=entry.attempt)
        return super().judge(push)


class UnknownShardStartsAtZero(Ledger):
    """A closed or unknown shard is opened by the first push that names it."""

    def judge(self, push: Push) -> Ruling:
        if push.shard not in self.entries:
            self.closed.get(push.epoch, set()).discard(push.index)
            self.first_epoch = min(self.first_epoch, push.epoch)
            self.opened(push.shard, push.attempt, 0, 1 << 30)
        return super().judge(push)


class RepeatIsApplied(Ledger):
    """A batch that came already is applied once more."""

    def judge(self, push: Push) -> Ruling:
        ruling = super().judge(push)
        return Ruling(Verdict.APPLY) if ruling.verdict is Verdict.REPEAT else ruling

    def applied(self, push: Push) -> None:
        if self.entries[push.shard].next_batch == push.batch:
            super().applied(push)


@dataclass
class CutWithoutComparing(Cuts):
    """Servers freeze as soon as all of them hold."""

    def _compare(self, unclosed: Any, moving: Any) -> list[Command]:
        cut = self.active
        assert cut is not None
        cut.phase = Phase.CUTTING
        cut.counters = {s: max(c.get(s, 0) for c in cut.held.values()) for h in cut.held.values() for s in h}
        return [CutServers(cut.number, cut.purpose)]


@dataclass
class CutWaitsForWhatIsQueued(Cuts):
    """What is leased counts as moving, though its worker stands before the barrier with another shard."""

    def held(self, server: str, number: int, counters: Any, unclosed: Any, moving: Any, *at: Any) -> list[Command]:
        return super().held(server, number, counters, unclosed, set(unclosed), *at)

    def check(self, unclosed: Any, moving: Any) -> list[Command]:
        return []

    def give_way(self) -> list[Command]:
        return []


class EvaluationReadsLiveValues(Server):
    def view(self, cut: int) -> tuple[int, Witness] | None:
        return self.ledger.version, self.witness.copy()


@dataclass
class LostWorkersAreLaunchedTwice(Replicas):
    """A master that comes back launches all replicas it knows of, whether they run or not."""

    def handle(self, event: Event, now: float) -> list[Command]:
        if isinstance(event, MasterStarted):
            for r in self.replicas.values():
                if r.role == "worker" and r.state not in (State.GONE, State.STOPPING):
                    self._enter(r, State.GONE, now, "the master restarted")
                    self.slots[r.slot].replica = ""
        return super().handle(event, now)


@dataclass
class CapacityIgnored(Shards):
    def _grant(self, now: float, out: list[Command]) -> None:
        for seat in self.seats.values():
            seat.capacity += 1
        super()._grant(now, out)
        for seat in self.seats.values():
            seat.capacity -= 1


@dataclass
class LeaseOfTheDeadIsKept(Shards):
    """The worker is forgotten, its leases are not."""

    def _lost(self, worker: str, reason: str, blame: bool, out: list[Command], hung: bool = False) -> None:
        self.seats.pop(worker, None)


class FinishedShardForgotten(Session):
    """What was finished while the stream was broken is not said again."""

    def hello(self) -> pb.FromReplica:
        hello = super().hello()
        kept = [h for h in hello.hello.holdings if h.shard in self.queue]
        del hello.hello.holdings[:]
        hello.hello.holdings.extend(kept)
        return hello


class ReportsBeforeItsServersAnswered(Session):
    """A batch counts as committed when it is begun."""

    def hello(self) -> pb.FromReplica:
        hello = super().hello()
        for h in hello.hello.holdings:
            h.next_batch += 1
        return hello


class FailureMeansDone(Session):
    """`except Exception: return`: a batch that raised is reported as trained."""

    def failed(self, work: Work, error: str) -> pb.FromReplica:
        return self.committed(work, work.next_batch + 1, 0.0)


@dataclass
class BadRecordForgotten(Shards):
    """A record is set aside, but the next lease is not told of it."""

    def handle(self, event: Event, now: float) -> list[Command]:
        out = super().handle(event, now)
        self.searches.bad_records.clear()
        return out


# Of synchronous training.


class StaleGradientAccepted(Rounds):
    """Whatever version a gradient was computed on, it is as good as any."""

    def judge(self, push: Push) -> Ruling:
        return super().judge(replace(push, computed_on=1 << 30))


class RoundWithoutABatch(Rounds):
    """The old system's: a late worker is left out."""

    def whole(self) -> bool:
        return super().whole() or len(self.kept.get(self.version, ())) >= max(1, self.size - 1)


class RoundThatIsWholeHere(Rounds):
    """A server goes on to the next version though another lacks a batch of this one."""

    def keep(self, push: Push) -> None:
        super().keep(push)
        self.confirm(push.epoch, push.index)


class TwoGradientsForOneBatch(Rounds):
    """A batch that was kept already is kept once more."""

    def judge(self, push: Push) -> Ruling:
        ruling = super().judge(push)
        again = ruling.verdict is Verdict.REPEAT and self.round_of(push.epoch, push.index) >= self.version
        return Ruling(Verdict.KEEP) if again and push.shard in self.entries else ruling


class CutInTheMiddleOfARound(Rounds):
    """A cut does not wait for the round that has begun."""

    def hold(self, cut: int, at: int) -> None:
        super().hold(cut, at)
        assert self.barrier is not None
        self.barrier.until = max(self.barrier.at, self.version)


class RepeatedRound(Rounds):
    """What was applied is forgotten with the shard's mark."""

    def judge(self, push: Push) -> Ruling:
        ruling = super().judge(push)
        return Ruling(Verdict.KEEP) if ruling.verdict is Verdict.REPEAT and push.shard in self.entries else ruling


@dataclass
class NoRoomForWhatAllWaitFor(Shards):
    """Leases of later rounds are kept, though what they wait for finds no worker."""

    def _make_room(self, needed: Any, workers: Any, out: list[Command]) -> bool:
        return False


class WaitsForItself(Session):
    """A worker goes on waiting for a round though it was given the batch that is missing."""

    def preceded(self, work: Work) -> bool:
        return False


def synchronous(s: Scenario) -> Scenario:
    return replace(
        s, round_batches=2 + s.seed % 4, tolerance=0, impatient=False, max_step=0, records=max(20, s.records)
    )


def impatient(s: Scenario) -> Scenario:
    return replace(synchronous(s), impatient=True)


def with_bad_rounds(s: Scenario) -> Scenario:
    """A suspect and one worker, which holds a batch of the next round as well."""
    return replace(with_bad_records(synchronous(s)), segfault=False, workers=1)


def with_few_seats(s: Scenario) -> Scenario:
    """Workers come and go, and what they give back is waited for by all others."""
    return replace(synchronous(s), kill_workers_every=2.0, preempt_workers_every=3.0, workers=max(2, s.workers))


# Servers that die.


class SurvivorsDoNotGoBack(Server):
    """Only the new server reads the checkpoint; the others keep what they have."""

    def restore(self, restore: pb.Restore) -> None:
        if not self.ledger.timeline or restore.timeline == self.ledger.timeline:
            return super().restore(restore)
        self.asked = self.ledger.timeline = restore.timeline
        self.ledger.barrier = None
        for o in restore.open:
            self.ledger.entries.setdefault(o.shard, Entry(o.attempt, o.next_batch, o.batches))
        self.world.say(self, pb.FromReplica(restored=pb.Restored(timeline=restore.timeline)))
        return None


class TimelineNotChecked(Ledger):
    def judge(self, push: Push) -> Ruling:
        return super().judge(replace(push, timeline=self.timeline))


@dataclass
class AttemptsStartAgain(Shards):
    def go_back(self, to: Position) -> None:
        super().go_back(to)
        self.highest_attempt = self.attempts_before = 0
        for s in self.waiting:
            s.attempt = min(s.attempt, 1)


class PositionOfPublishing(ParameterServerMachine):
    """Where the data stands is written down when the last part is on disk, not as it was at the cut."""

    def handle(self, event: Event, now: float) -> list[Command]:
        if isinstance(event, ServerWrote) and self.servers.checkpoints.writing is not None:
            self.servers.checkpoints.writing.position = self.shards.position({})
        return super().handle(event, now)


@dataclass
class PublishedWithTheFirstPart(Checkpoints):
    def wrote(self, server: str, cut: int, part: str) -> list[Command]:
        w = self.writing
        if w is None or w.cut != cut or w.publishing:
            return []
        w.files[server], w.publishing = part, True
        return self.unanswered()


@dataclass
class ServerLaunchedBeforeItIsGone(Replicas):
    def replace(self, name: str, cause: str, reason: str, now: float, out: list[Command]) -> None:
        super().replace(name, cause, reason, now, out)
        r = self.replicas[name]
        if r.role == "ps":
            self._enter(r, State.GONE, now, reason)
            self._vacate(r, cause, reason, (), now, out)


@dataclass
class MetricsOfOldTimelinesKept(Evaluation):
    def go_back(self, version: int) -> None:
        done = self.done
        super().go_back(version)
        self.done = done


def with_checkpoints(kind: type[Checkpoints]) -> Parts:
    def new(terms: ParameterServerTerms) -> ParameterServerMachine:
        job = ParameterServerMachine.new(terms)
        job.servers.checkpoints = kind(job.servers.checkpoints.servers, terms.schedule)
        return job

    return Parts(job=new)


def with_evaluation(kind: type[Evaluation]) -> Parts:
    def new(terms: ParameterServerTerms) -> ParameterServerMachine:
        job = ParameterServerMachine.new(terms)
        e = job.evaluation
        job.evaluation = kind(e.records, e.every, e.minibatch, e.shard_records, next_at=e.every)
        return job

    return Parts(job=new)


def with_dying_servers(s: Scenario) -> Scenario:
    """Servers are lost again and again, checkpoints are frequent, and there is enough to train for both."""
    return replace(
        s, servers=max(2, s.servers), workers=max(2, s.workers), records=60, minibatch=1, epochs=3, validation=5,
        evaluation_steps=3, kill_servers_every=3.0, preempt_servers_every=8.0, checkpoint_seconds=1.0,
        checkpoint_steps=9, bad_records=(), max_step=0, stop_at=0.0, damage=0.0, full_disk=0.0,
        weather=replace(s.weather, delay=0.05),
    )  # fmt: skip


def with_workers_that_miss_a_rollback(s: Scenario) -> Scenario:
    """Cut off from the master for as long as a server takes to come back: they hold leases of the timeline before."""
    dying = with_dying_servers(s)
    return replace(
        dying, cut_off_workers_every=1.0, kill_servers_every=5.0, preempt_servers_every=0.0, kill_workers_every=0.0,
        preempt_workers_every=0.0, stall_workers_every=0.0, miss_events=0.0, workers=2, checkpoint_steps=0,
        weather=replace(dying.weather, delay=0.01, loss=0.0, break_every=0.0),
    )  # fmt: skip


def with_bad_records(s: Scenario) -> Scenario:
    return replace(s, bad_records=(s.records // 2,), max_bad_records=10, stop_at=0.0, max_step=0)


def with_torn_cuts(s: Scenario) -> Scenario:
    """Many cuts, many deaths and a network that loses a third: batches reach only some servers."""
    return replace(
        s, servers=max(2, s.servers), workers=max(2, s.workers), records=60, epochs=3, validation=5, evaluation_steps=2,
        kill_workers_every=1.5, stop_at=0.0, bad_records=(), max_step=0, round_batches=0,
        weather=replace(s.weather, loss=0.3, delay=0.02),
    )  # fmt: skip


MUTANTS: dict[str, Mutant] = {
    "third-failure": Mutant("a shard is dropped after its third failure", with_shards(ThirdFailureDropsAShard)),
    "preemption-counts": Mutant("preemption counts as a failure", with_replicas(PreemptionCountsAsFailure)),
    "swallowed-task": Mutant(
        "a waiting worker swallows a recovered task", with_shards(WaitingWorkerSwallowsARecoveredTask)
    ),
    "no-more-data": Mutant('a network error means "no more data"', Parts(session=NetworkErrorMeansNoMoreData)),
    "offset-ignored": Mutant("the committed offset is ignored", with_shards(CommittedOffsetIgnored)),
    "attempt-ignored": Mutant("servers do not check the attempt", Parts(ledger=AttemptNotChecked), seeds=400),
    "unknown-starts": Mutant("an unknown shard starts at 0", Parts(ledger=UnknownShardStartsAtZero)),
    "repeat-applied": Mutant("a repeated push is applied", Parts(ledger=RepeatIsApplied)),
    "cut-uncompared": Mutant("a cut is taken without comparing the counters", with_cuts(CutWithoutComparing)),
    "cut-waits": Mutant(
        "a cut waits for a batch that is queued behind it", with_cuts(CutWaitsForWhatIsQueued), 100, with_torn_cuts
    ),
    "live-evaluation": Mutant("evaluation reads the live values", Parts(server=EvaluationReadsLiveValues)),
    "replay-acts": Mutant("the replay of the journal is acted upon", Parts(replay_acts=True)),
    "launched-twice": Mutant(
        "a master that comes back launches all replicas again", with_replicas(LostWorkersAreLaunchedTwice)
    ),
    "capacity-ignored": Mutant("a worker gets more leases than it wants", with_shards(CapacityIgnored)),
    "dead-lease": Mutant("the leases of a dead worker are kept", with_shards(LeaseOfTheDeadIsKept)),
    "finish-forgotten": Mutant(
        "what finished while the stream was broken is not said again", Parts(session=FinishedShardForgotten)
    ),
    "early-report": Mutant(
        "a batch is reported before the servers have it", Parts(session=ReportsBeforeItsServersAnswered)
    ),
    "failure-is-done": Mutant(
        "a batch that raised is reported as trained", Parts(session=FailureMeansDone), 100, with_bad_records
    ),
    "bad-record-forgotten": Mutant(
        "a record that was set aside is met again", with_shards(BadRecordForgotten), 100, with_bad_records
    ),
    "stale-accepted": Mutant("a stale gradient is accepted", Parts(rounds=StaleGradientAccepted), 20, impatient),
    "torn-round": Mutant(
        "a server applies a round that another lacks", Parts(rounds=RoundThatIsWholeHere), 60, synchronous
    ),
    "short-round": Mutant("a round is applied without a batch", Parts(rounds=RoundWithoutABatch), 20, synchronous),
    "kept-twice": Mutant("two gradients of one batch are kept", Parts(rounds=TwoGradientsForOneBatch), 50, synchronous),
    "cut-in-a-round": Mutant(
        "a cut is made in the middle of a round", Parts(rounds=CutInTheMiddleOfARound), 50, synchronous
    ),
    "round-repeated": Mutant("a batch of an applied round is kept again", Parts(rounds=RepeatedRound), 50, synchronous),
    "no-room": Mutant("what all wait for finds no worker", with_shards(NoRoomForWhatAllWaitFor), 100, with_bad_rounds),
    "waits-for-itself": Mutant(
        "a worker waits for a batch that it was given", Parts(session=WaitsForItself), 100, with_few_seats
    ),
    "survivors-stay": Mutant(
        "only the new server goes back", Parts(server=SurvivorsDoNotGoBack), scenario=with_dying_servers
    ),
    "timeline-ignored": Mutant(
        "servers do not check the timeline", Parts(ledger=TimelineNotChecked), scenario=with_dying_servers
    ),
    "attempts-again": Mutant(
        "attempts start again after a rollback", with_shards(AttemptsStartAgain),
        scenario=with_workers_that_miss_a_rollback
    ),
    "late-position": Mutant(
        "a checkpoint's place in the data is taken when it is published", Parts(job=PositionOfPublishing.new),
        scenario=with_dying_servers,
    ),
    "first-part": Mutant(
        "a checkpoint is published with its first part", with_checkpoints(PublishedWithTheFirstPart),
        scenario=with_dying_servers,
    ),
    "two-of-one-name": Mutant(
        "a server is launched before the one of its name is gone", with_replicas(ServerLaunchedBeforeItIsGone),
        scenario=with_dying_servers,
    ),
    "metrics-kept": Mutant(
        "metrics of an older timeline are kept", with_evaluation(MetricsOfOldTimelinesKept),
        scenario=with_dying_servers,
    ),
}  # fmt: skip
