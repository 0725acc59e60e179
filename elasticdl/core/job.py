"""The whole job: routes each event to the machines it concerns and decides what follows from all of them together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from elasticdl.core.commands import (
    Announce,
    Command,
    DropView,
    FinishJob,
    PublishCheckpoint,
    ReleaseServers,
    ReportMetrics,
    RevokeLease,
    StopReplica,
    TellMembers,
)
from elasticdl.core.cuts import SAVE, VIEW, Cut, Cuts, Phase
from elasticdl.core.evaluation import Evaluation
from elasticdl.core.events import (
    BatchesCommitted,
    CheckpointPublished,
    Event,
    MasterStarted,
    ReplicaDropped,
    ReplicaGone,
    ReplicaJoined,
    ReplicaStarted,
    ServerCut,
    ServerHeld,
    StopRequested,
    TimePassed,
    WorkerUnfit,
)
from elasticdl.core.plan import Kind, Plan, Shard
from elasticdl.core.replicas import BLAMED, CAUSES, CRASHED, FINISHED, OUT_OF_MEMORY, PREEMPTED, Budget, Replicas, State
from elasticdl.core.shards import Shards, ShardsAdded, WorkerLost
from elasticdl.job.names import replica_name

SUCCEEDED, STOPPED, FAILED = "succeeded", "stopped", "failed"
IN_TOUCH_SECONDS = 5.0


@dataclass(frozen=True)
class Terms:
    """What the job is about, fixed at submission."""

    job: str
    workers: int
    servers: int
    plan: Plan
    validation_records: int = 0
    evaluation_steps: int = 0
    max_bad_records: int = 0
    export: bool = False
    budget: Budget = field(default_factory=Budget)
    audit: bool = False


@dataclass
class Recovery:
    """A loss and how long it took until the lost shard moved again."""

    replica: str
    at: float
    shards: list[str]
    seconds: float | None = None


@dataclass
class Job:
    terms: Terms
    replicas: Replicas
    shards: Shards
    cuts: Cuts
    evaluation: Evaluation
    exported: str = ""  # where the model was written
    exporting: bool = False
    audited: str = ""  # what the audit found
    auditing: bool = False
    stopping: str = ""  # why a stop was asked for
    outcome: str = ""
    reason: str = ""
    publishing: PublishCheckpoint | None = None  # a saved cut whose manifest is being written
    checkpoint: str = ""
    loss: float | None = None
    recoveries: list[Recovery] = field(default_factory=list)

    @classmethod
    def new(cls, terms: Terms) -> Job:
        wanted = {"ps": terms.servers, "worker": terms.workers}
        servers = tuple(replica_name(terms.job, "ps", i) for i in range(terms.servers))
        evaluation = Evaluation.planned(
            terms.validation_records, terms.evaluation_steps, terms.plan.minibatch, terms.workers
        )
        return cls(
            terms,
            Replicas.wanting(terms.job, wanted, terms.budget),
            Shards(terms.plan, terms.max_bad_records),
            Cuts(servers),
            evaluation,
        )

    def handle(self, event: Event, now: float) -> list[Command]:
        if self.outcome:
            return []
        out = self._route(event, now)
        if not any(isinstance(c, FinishJob) for c in out):
            out += self._follow(now)
        for place, command in enumerate(out):
            if isinstance(command, FinishJob):
                self.outcome, self.reason = command.outcome, command.reason
                self.replicas.finished = True
                return out[: place + 1]  # what was decided after the end has no meaning
        return out

    # Questions.

    def deadline(self) -> float | None:
        """When `TimePassed` should come next."""
        times = [t for t in [self.replicas.deadline()] if t is not None]
        if not self._standing_still:
            idle = [self.shards.idle_since(r.name) for r in self.replicas.joined("worker")]
            times += [t + self.terms.budget.hang_seconds for t in idle if t is not None]
        return min(times, default=None)

    def lease(self, shard_id: str) -> Shard | None:
        return self.shards.leased.get(shard_id)

    @property
    def _standing_still(self) -> bool:
        """The servers write: nobody can move, and nobody is hung."""
        cut = self.cuts.active
        return self.publishing is not None or (cut is not None and cut.phase is Phase.CUTTING)

    @property
    def servers_ready(self) -> bool:
        return len(self.replicas.joined("ps")) == self.terms.servers

    # Routing.

    def _route(self, event: Event, now: float) -> list[Command]:
        match event:
            case ReplicaJoined():
                return self._joined(event, now)
            case ReplicaGone():
                return self._gone(event, now)
            case MasterStarted() | TimePassed():
                out = self._of_replicas(event, now)
                if isinstance(event, MasterStarted):
                    out += self.shards.unanswered()
                    out += [self.publishing] if self.publishing is not None else []
                else:
                    out += self._hung(now)
                return out
            case ReplicaStarted() | ReplicaDropped():
                return self._of_replicas(event, now)
            case ServerHeld(server, number, counters):
                return self.cuts.held(server, number, dict(counters), self._unclosed(), self.shards.worked_on())
            case ServerCut(server, number, detail, error):
                cut = self.cuts.frozen(server, number, detail, error)
                return self._cut_done(cut, now) if cut is not None else []
            case CheckpointPublished(directory, error):
                return self._published(directory, error)
            case WorkerUnfit(_, error):
                return [FinishJob(FAILED, error)]
            case StopRequested(reason):
                return self._stop(reason)
            case BatchesCommitted(loss=loss):
                if event.shard.startswith(Kind.TRAIN):
                    self.loss = loss
                out = self.shards.handle(event, now)
                self._recovered(event.shard, now)
                return out
            case _:
                return self.shards.handle(event, now)

    def _of_replicas(self, event: Event, now: float) -> list[Command]:
        out = self.replicas.handle(event, now)
        for command in list(out):
            if isinstance(command, StopReplica):
                out += self._worker_lost(command.name, command.reason, False, now)
        if isinstance(event, MasterStarted):
            for r in self.replicas.replicas.values():
                if r.state is State.GONE and r.name in self.shards.seats:
                    out += self._worker_lost(r.name, r.detail, False, now)
        return out

    def _joined(self, event: ReplicaJoined, now: float) -> list[Command]:
        if not self.replicas.admits(event.name, event.incarnation):
            return []
        out = self.replicas.handle(event, now)
        if self.replicas.replicas[event.name].role == "ps":
            out.append(TellMembers(event.name))
            if self.publishing is None:  # else it keeps holding: the manifest is about this moment
                out += self.cuts.joined(event.name)
            if self.servers_ready and self.shards.paused:
                self.shards.paused = False
                out += [TellMembers(), *self.shards.resume(now)]
            return out
        return [*out, TellMembers(event.name), *self.shards.handle(event, now)]

    def _gone(self, event: ReplicaGone, now: float) -> list[Command]:
        r = self.replicas.replicas.get(event.name)
        if r is None or r.state is State.GONE or (r.uid and event.uid and r.uid != event.uid):
            return []
        assert event.cause in CAUSES, event.cause
        held = any(s.worker == event.name for s in self.shards.leased.values())
        grows = event.cause == OUT_OF_MEMORY and self.replicas.can_grow(event.name)
        crashed = held and event.cause in (CRASHED, OUT_OF_MEMORY) and not grows
        # The stream breaks a moment before the process is seen to be gone. Out of touch for longer, a worker was by
        # then at some other batch than the one it last told of: nobody can say whose fault it was.
        blame = crashed and (r.state is State.JOINED or now - r.since <= IN_TOUCH_SECONDS)
        seat = self.shards.seats.get(event.name)
        if crashed and event.cause == CRASHED:
            event = replace(event, cause=BLAMED)
        elif event.cause == FINISHED and seat is not None and seat.leaving:
            event = replace(event, cause=PREEMPTED)  # it was asked to go, and went in good order
        out = self.replicas.handle(event, now)
        reason = "\n".join([f"{event.name}: {event.reason}", *event.last_lines]) if blame else event.reason
        return out + self._worker_lost(event.name, reason, blame, now)

    def _worker_lost(self, worker: str, reason: str, blame: bool, now: float) -> list[Command]:
        held = [s for s in self.shards.leased.values() if s.worker == worker]
        if worker in self.shards.seats:
            self.recoveries.append(Recovery(worker, now, [s.id for s in held if s.kind is Kind.TRAIN]))
        # It may live on for a while, and even listen: its step is called off before anybody else gets the shard.
        out: list[Command] = [RevokeLease(worker, s.id, s.attempt, reason) for s in held]
        return out + self.shards.handle(WorkerLost(worker, reason, blame), now)

    def _recovered(self, shard_id: str, now: float) -> None:
        for r in self.recoveries:
            if r.seconds is None and shard_id in r.shards:
                r.seconds = now - r.at

    def _hung(self, now: float) -> list[Command]:
        """Liveness is progress: who holds a lease and does not move is replaced."""
        out: list[Command] = []
        if self._standing_still:
            return out
        limit = self.terms.budget.hang_seconds
        idle = {r.name: self.shards.idle_since(r.name) for r in self.replicas.joined("worker")}
        hung = [name for name, since in idle.items() if since is not None and now - since >= limit]
        lifted = self.cuts.give_way() if hung else []
        if lifted:  # pushes were held: who is really hung shows itself without the barrier
            self.shards.rest(now)
            return lifted
        for name in hung:
            reason = f"no batch finished for {limit:g} s"
            self.replicas.replace(name, PREEMPTED, reason, now, out)
            out += self._worker_lost(name, reason, False, now)
        if out:
            out += self.replicas.handle(TimePassed(), now)
        return out

    # What follows.

    def _follow(self, now: float) -> list[Command]:
        out = self.cuts.check(self._unclosed(), self.shards.worked_on())
        out += self.cuts.repaired({s.id: s.next_batch for s in self.shards.open_training()})
        while self.shards.results:
            shard, result = self.shards.results.pop(0)
            out += self._finished(shard, result, now)
        if self.shards.paused or self.cuts.active is not None or self.publishing is not None:
            return out
        if self.stopping:
            return out + self.cuts.start(SAVE, 0)
        version, over = self.shards.version, self.shards.trained_out
        at = self.evaluation.wanted_at(version, self.terms.plan.total_batches, over)
        if at is not None:
            return out + self.cuts.start(VIEW, at)
        if over and self.evaluation.over(version):
            if self.terms.audit and not self.audited:
                if not self.auditing:
                    self.auditing = True
                    out += self.shards.handle(ShardsAdded((Shard(Kind.AUDIT, 0, 0, 0, 0, 1),)), now)
                return out
            if self.terms.export and not self.exported:
                if not self.exporting:
                    self.exporting = True
                    export = Shard(Kind.EXPORT, 0, 0, 0, 0, 1, payload=str(version))
                    out += self.shards.handle(ShardsAdded((export,)), now)
                return out
            done = self.shards.done_records
            out.append(FinishJob(SUCCEEDED, f"all {done} records are trained"))
        return out

    def _finished(self, shard: Shard, result: str, now: float) -> list[Command]:
        out: list[Command] = []
        if shard.kind is Kind.EVALUATE:
            summary = self.evaluation.completed(shard, result)
            if summary is not None:
                out += self.shards.handle(ShardsAdded((summary,)), now)
        elif shard.kind is Kind.SUMMARIZE:
            finished = self.evaluation.summarized(result)
            if finished is not None:
                out += [ReportMetrics(finished.version, result), DropView(finished.cut)]
        elif shard.kind is Kind.AUDIT:
            self.audited = result
            out.append(Announce(f"audit: {result}"))
        elif shard.kind is Kind.EXPORT:
            self.exported = result
            out.append(Announce(f"the model is in {result}"))
        return out

    def _cut_done(self, cut: Cut, now: float) -> list[Command]:
        ahead = {s.id: s.next_batch for s in self.shards.open_training()}
        version = self.shards.version + sum(n - ahead[s] for s, n in cut.counters.items() if s in ahead)
        self.shards.rest(now)
        if cut.purpose == VIEW:
            out: list[Command] = [ReleaseServers(cut.number)]
            out += self.shards.handle(ShardsAdded(self.evaluation.opened(cut.number, version)), now)
            return out
        if version == 0:
            return [FinishJob(STOPPED, f"{self.stopping}; nothing was trained yet")]
        if self.cuts.failed:
            return [FinishJob(FAILED, f"the checkpoint could not be written: {self.cuts.failed}")]
        counters, files = tuple(sorted(cut.counters.items())), tuple(sorted(cut.frozen.items()))
        self.publishing = PublishCheckpoint(cut.number, version, counters, files)
        return [self.publishing]

    def _published(self, directory: str, error: str) -> list[Command]:
        if self.publishing is None:
            return []
        version = self.publishing.version
        if error:
            return [FinishJob(FAILED, f"the checkpoint could not be written: {error}")]
        self.checkpoint = directory
        return [
            Announce(f"the checkpoint of version {version} is in {directory}"),
            FinishJob(STOPPED, f"{self.stopping}; the checkpoint holds version {version}"),
        ]

    def _stop(self, reason: str) -> list[Command]:
        if self.stopping:
            return []
        self.stopping, self.shards.draining = reason, True
        if self.shards.paused:
            return [FinishJob(STOPPED, f"{reason}; nothing was trained yet")]
        out: list[Command] = [Announce(f"stopping: {reason}; the servers write a checkpoint first")]
        cut = self.cuts.active
        if cut is not None and cut.purpose == VIEW and cut.phase is not Phase.CUTTING:
            out += self.cuts.cancel()
        return out

    def _unclosed(self) -> set[str]:
        return {s.id for s in self.shards.open_training()}
