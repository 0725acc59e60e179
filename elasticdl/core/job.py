"""The whole job: routes each event to the machines it concerns and decides what follows from all of them together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from elasticdl.core.checkpoints import Checkpoints, Schedule
from elasticdl.core.commands import (
    Announce,
    Command,
    CutServers,
    DeleteCheckpoints,
    DropView,
    FinishJob,
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
    ReplicaLeaving,
    ReplicaStarted,
    ScaleRequested,
    ServerCut,
    ServerHeld,
    ServerRestored,
    ServerWrote,
    StopRequested,
    TimePassed,
    WorkerUnfit,
)
from elasticdl.core.plan import Kind, Plan, Shard
from elasticdl.core.replicas import BLAMED, CAUSES, CRASHED, FINISHED, OUT_OF_MEMORY, PREEMPTED, Budget, Replicas, State
from elasticdl.core.scaling import Scaling, server_names
from elasticdl.core.shards import Shards, ShardsAdded, WorkerLost

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
    schedule: Schedule = field(default_factory=Schedule)
    mode: str = ""  # how gradients become versions, in words


@dataclass
class Recovery:
    """A loss and how long it took until the lost shard moved again; of a server, until any did."""

    replica: str
    at: float
    shards: list[str]
    seconds: float | None = None
    server: bool = False


@dataclass
class Job:
    terms: Terms
    replicas: Replicas
    shards: Shards
    cuts: Cuts
    evaluation: Evaluation
    checkpoints: Checkpoints
    scaling: Scaling
    exported: str = ""  # where the model was written
    exporting: bool = False
    audited: str = ""  # what the audit found
    auditing: bool = False
    stopping: str = ""  # why a stop was asked for
    outcome: str = ""
    reason: str = ""
    servers_leaving: set[str] = field(default_factory=set)  # told to go: they wait for their part to be saved
    checkpoint: str = ""  # the newest on disk
    repeated: int = 0  # batches trained again after rollbacks
    rolled_back: float | None = None  # when the last one was
    loss: float | None = None
    recoveries: list[Recovery] = field(default_factory=list)

    @classmethod
    def new(cls, terms: Terms) -> Job:
        wanted = {"ps": terms.servers, "worker": terms.workers}
        servers = server_names(terms.job, terms.servers)
        evaluation = Evaluation.planned(
            terms.validation_records, terms.evaluation_steps, terms.plan.minibatch, terms.workers
        )
        return cls(
            terms,
            Replicas.wanting(terms.job, wanted, terms.budget),
            Shards(terms.plan, terms.max_bad_records),
            Cuts(servers),
            evaluation,
            Checkpoints(servers, terms.schedule),
            Scaling(terms.job, servers, terms.servers),
        )

    def handle(self, event: Event, now: float) -> list[Command]:
        if self.outcome:
            return []
        out = self._route(event, now)
        while self.replicas.lost_servers and not self.replicas.finished:
            why = self.replicas.lost_servers.pop(0)
            if why.split()[0] in self.scaling.servers:  # one that is only to come holds nothing yet
                out += self._roll_back(why, now)
        out += self._not_to_be_had(now)
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
        due = self.checkpoints.deadline(self.shards.version) if self._may_cut else None
        return min([*times, due] if due is not None else times, default=None)

    def lease(self, shard_id: str) -> Shard | None:
        return self.shards.leased.get(shard_id)

    @property
    def _standing_still(self) -> bool:
        """The servers are frozen, or not all there: nobody can move, and nobody is hung."""
        cut = self.cuts.active
        return self.shards.paused or self._holding_on or (cut is not None and cut.phase is Phase.CUTTING)

    @property
    def _holding_on(self) -> bool:
        """What is being written is the last that these servers do: nothing moves any more."""
        return self.checkpoints.writing is not None and self.checkpoints.writing.held

    @property
    def _ending(self) -> bool:
        """The next cut is the last thing that these servers do together."""
        return bool(self.stopping or self.servers_leaving) or self._ready_to_resize

    @property
    def _ready_to_resize(self) -> bool:
        return self.scaling.resizing and self._all_joined(self.scaling.next_servers())

    @property
    def _may_cut(self) -> bool:
        """Whether the clock may start a cut: none is under way, except one that has yet to begin."""
        if self.shards.paused or self._ending or self.shards.trained_out:
            return False
        return self.cuts.active is None or self.cuts.gives_way_to(0, self.shards.version)

    @property
    def servers_ready(self) -> bool:
        return self.checkpoints.ready and self._all_joined(self.scaling.servers)

    def _all_joined(self, servers: Iterable[str]) -> bool:
        return set(servers) <= {r.name for r in self.replicas.joined("ps")}

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
                    out += self.shards.unanswered() + self.checkpoints.unanswered()
                else:
                    out += self._hung(now)
                return out
            case ReplicaStarted() | ReplicaDropped():
                return self._of_replicas(event, now)
            case ServerHeld(server, number, counters, at):
                at_version = at if self.terms.plan.synchronous else None
                moving = self.shards.worked_on()
                return self.cuts.held(server, number, dict(counters), self._unclosed(), moving, at_version)
            case ServerCut(server, number):
                cut = self.cuts.frozen(server, number)
                return self._cut_done(cut, now) if cut is not None else []
            case ServerWrote(server, number, part, error):
                return self._wrote(server, number, part, error, now)
            case ServerRestored(server, timeline, error):
                return self._restored(server, timeline, error, now)
            case CheckpointPublished(number, directory, error):
                if error:
                    return self._not_saved("", number, error, now)
                return self._published(number, directory, now)
            case ReplicaLeaving(name) if self.replicas.role_of(name) == "ps":
                if name not in self.servers_leaving:
                    self.servers_leaving.add(name)
                    return [Announce(f"{name} is told to go: its part is saved first")]
                return []
            case WorkerUnfit(_, error):
                return [FinishJob(FAILED, error)]
            case StopRequested(reason):
                return self._stop(reason)
            case ScaleRequested(role, count):
                return self._scale(role, count, now)
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
            if isinstance(command, StopReplica) and self.replicas.role_of(command.name) == "worker":
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
            if event.name not in self.scaling.servers:
                return out  # its time comes with the next cut
            out += self.checkpoints.joined(event.name, event.timeline)
            if event.timeline == self.checkpoints.timeline:
                out += [TellMembers(event.name), *self._tell_of_cuts(event.name)]
            return out + self._go_on(now)
        return [*out, TellMembers(event.name), *self.shards.handle(event, now)]

    def _tell_of_cuts(self, server: str) -> list[Command]:
        """A server's stream is back: where the cut stands, and what it has to write."""
        writing = self.checkpoints.writing
        if writing is None:
            return self.cuts.joined(server)
        again: list[Command] = [CutServers(writing.cut, SAVE, server)] if server not in writing.files else []
        return again if self._holding_on else [*self.cuts.joined(server), *again]

    def _go_on(self, now: float) -> list[Command]:
        """Once every server stands on this timeline there is work again."""
        if not self.servers_ready or not self.shards.paused:
            return []
        self.shards.paused = False
        self.checkpoints.started(now)
        return [TellMembers(), *self.shards.resume(now)]

    def _gone(self, event: ReplicaGone, now: float) -> list[Command]:
        if not self.replicas.concerns(event.name, event.uid):
            return []
        assert event.cause in CAUSES, event.cause
        r = self.replicas.replicas[event.name]
        if r.role == "ps":
            return self.replicas.handle(event, now)
        # A rollback takes the leases away a moment before their workers hear of it.
        just_now = self.rolled_back is not None and now - self.rolled_back <= IN_TOUCH_SECONDS
        held = just_now or any(s.worker == event.name for s in self.shards.leased.values())
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

    def _worker_lost(self, worker: str, reason: str, blame: bool, now: float, hung: bool = False) -> list[Command]:
        held = [s for s in self.shards.leased.values() if s.worker == worker]
        if worker in self.shards.seats:
            self.recoveries.append(Recovery(worker, now, [s.id for s in held if s.kind is Kind.TRAIN]))
        # It may live on for a while, and even listen: its step is called off before anybody else gets the shard.
        out: list[Command] = [RevokeLease(worker, s.id, s.attempt, reason) for s in held]
        return out + self.shards.handle(WorkerLost(worker, reason, blame, hung), now)

    def _recovered(self, shard_id: str, now: float) -> None:
        for r in self.recoveries:
            if r.seconds is None and (shard_id in r.shards or r.server):
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
            # It is in touch, so it is the batch that does not end: its records are searched as if they crashed it.
            out += self._worker_lost(name, f"{name}: {reason}", True, now, hung=True)
        if out:
            out += self.replicas.handle(TimePassed(), now)
        return out

    # Another number of replicas.

    def _scale(self, role: str, count: int, now: float) -> list[Command]:
        refused = self.scaling.refused(role, count)
        if refused or self.stopping:
            return [Announce(f"not scaled to {count} of {role}: {refused or 'the job is stopping'}")]
        if role == "worker":
            return [Announce(f"scaling to {count} workers"), *self.replicas.resize("worker", count, now)]
        self.scaling.wanted = count
        out: list[Command] = [Announce(f"scaling from {len(self.scaling.servers)} servers to {count}")]
        # Those that are too many go when the others hold their rows.
        return out + self.replicas.resize("ps", max(count, len(self.scaling.servers)), now)

    def _resize(self, now: float) -> list[Command]:
        """The cut that all servers wrote is where the new ones begin: rows that stay are not moved."""
        before, after = len(self.scaling.servers), self.scaling.next_servers()
        for s in self.replicas.slots:
            s.on_trial = False
        self.scaling.servers = self.cuts.servers = self.checkpoints.servers = after
        out = self._roll_back(f"there are {len(after)} servers instead of {before}", now)
        return out + self.replicas.resize("ps", len(after), now)

    def _not_to_be_had(self, now: float) -> list[Command]:
        """A replica that was asked for while the job runs fails again and again: go on without."""
        out: list[Command] = []
        while self.replicas.not_to_be_had:
            why = self.replicas.not_to_be_had.pop(0)
            out.append(Announce(f"{why}; the job goes on without it"))
            if self.replicas.role_of(why.split()[0]) == "ps":
                out += self._stay(now)
        return out

    def _stay(self, now: float) -> list[Command]:
        self.scaling.wanted = len(self.scaling.servers)
        return self.replicas.resize("ps", self.scaling.wanted, now)

    # Going back.

    def _roll_back(self, why: str, now: float) -> list[Command]:
        """A server and what it held are lost: everybody goes back to the newest checkpoint."""
        reached = self.shards.version
        to = self.checkpoints.roll_back()
        out: list[Command] = []
        for s in self.shards.leased.values():
            out.append(RevokeLease(s.worker, s.id, s.attempt, why))
        self.cuts.active = None
        self.shards.go_back(to.position)
        self.shards.paused = True
        self.evaluation.go_back(to.position.version)
        self.exporting = self.auditing = False
        self.exported = self.audited = ""
        self.rolled_back = now
        self.repeated += max(0, reached - to.position.version)
        self.servers_leaving &= {r.name for r in self.replicas.joined("ps")}
        if why.split()[0] in self.scaling.servers:
            self.recoveries.append(Recovery(why.split()[0], now, [], server=True))
        told = f"{why}; everybody goes back from version {reached} to {to} and trains on from there"
        if reached <= to.position.version:  # nothing is lost
            told = f"{why}; everybody goes on from {to}"
        out += [Announce(told), TellMembers()]
        return out + self.checkpoints.restore(
            r.name for r in self.replicas.joined("ps") if r.name in self.scaling.servers
        )

    def _restored(self, server: str, timeline: int, error: str, now: float) -> list[Command]:
        if timeline != self.checkpoints.timeline:
            return []
        if not error:
            self.checkpoints.restored.add(server)
            return self._go_on(now)
        damaged = self.checkpoints.newest
        if self.checkpoints.damaged() is None:
            return [FinishJob(FAILED, f"{server} cannot go back to {damaged}: {error}")]
        out: list[Command] = [Announce(f"the checkpoint of {damaged} cannot be used: {error}")]
        return out + self._roll_back(f"{server} cannot read it", now)

    # What follows.

    def _follow(self, now: float) -> list[Command]:
        out = self.cuts.check(self._unclosed(), self.shards.worked_on())
        out += self.cuts.repaired({s.id: s.next_batch for s in self.shards.open_training()})
        while self.shards.results:
            shard, result = self.shards.results.pop(0)
            out += self._finished(shard, result, now)
        if self.shards.paused or self._holding_on:
            return out
        wanted = self._wanted_cut(now)
        if wanted is not None:
            purpose, at, lasting = wanted
            if self.cuts.active is None:
                return out + self.cuts.start(purpose, at, lasting)
            if self.cuts.gives_way_to(at, self.shards.version):
                return out + self.cuts.cancel() + self.cuts.start(purpose, at, lasting)
        if self.cuts.active is not None or self._ending:
            return out
        return out + self._conclude(now)

    def _wanted_cut(self, now: float) -> tuple[str, int, bool] | None:
        """Which cut comes next, at which version: the nearest of all that are due."""
        version, over = self.shards.version, self.shards.trained_out
        if self._ending:
            return (SAVE, 0, bool(self.stopping)) if self.checkpoints.writing is None else None
        wanted: list[tuple[str, int, bool]] = []
        at = self.evaluation.wanted_at(version, self.terms.plan.total_versions, over)
        if at is not None:
            wanted.append((VIEW, at, False))
        saved = self.checkpoints.wanted(version, self.terms.plan.total_versions, now)
        if saved is not None and not over:
            wanted.append((SAVE, *saved))
        return min(wanted, key=lambda w: max(w[1], version), default=None)

    def _conclude(self, now: float) -> list[Command]:
        """When all is trained and evaluated: audit, export, end."""
        out: list[Command] = []
        version = self.shards.version
        if not (self.shards.trained_out and self.evaluation.over(version)):
            return out
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
        if self.checkpoints.writing is not None and self.checkpoints.writing.lasting:
            return out  # the user asked for it
        done = FinishJob(SUCCEEDED, f"all {self.shards.done_records} records are trained")
        return [*self.checkpoints.give_up(), *self.checkpoints.superfluous(), done]

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
        position = self.shards.position(cut.counters)
        self.shards.rest(now)
        out: list[Command] = []
        if cut.purpose == VIEW:
            out.append(ReleaseServers(cut.number))
            opened = self.evaluation.opened(cut.number, position.version)
            return out + self.shards.handle(ShardsAdded(opened), now)
        if self.stopping and position.version == 0:
            return [FinishJob(STOPPED, f"{self.stopping}; nothing was trained yet")]
        self.checkpoints.begin(cut.number, position, cut.lasting, self._ending, now)
        out += [] if self._holding_on else [ReleaseServers(cut.number)]
        for server, (part, error) in cut.early.items():
            out += self._wrote(server, cut.number, part, error, now)
        return out

    def _published(self, number: int, directory: str, now: float) -> list[Command]:
        writing = self.checkpoints.writing
        if writing is None or writing.cut != number:  # a rollback came in between
            known = any(k.directory == directory for k in self.checkpoints.known)
            return [] if known else [DeleteCheckpoints((directory,))]
        checkpoint, out = self.checkpoints.published(directory)
        self.checkpoint, version = directory, checkpoint.position.version
        out.append(Announce(f"the checkpoint of version {version} is in {directory}"))
        if writing.held and self.stopping:
            return [*out, FinishJob(STOPPED, f"{self.stopping}; the checkpoint holds version {version}")]
        if writing.held and self._ready_to_resize:
            return out + self._resize(now)
        if writing.held and not self.servers_leaving:  # somebody changed their mind
            out.append(ReleaseServers(number))
        return out + (self._dismiss("told to go; its part is saved", now) if writing.held else [])

    def _dismiss(self, reason: str, now: float) -> list[Command]:
        """Servers that were told to go, go; others take their place."""
        out: list[Command] = []
        for name in sorted(self.servers_leaving & {r.name for r in self.replicas.joined("ps")}):
            self.replicas.replace(name, PREEMPTED, reason, now, out)
        return out

    def _wrote(self, server: str, number: int, part: str, error: str, now: float) -> list[Command]:
        cut = self.cuts.active
        if cut is not None and cut.number == number:  # it has written before the last server froze
            cut.early[server] = (part, error)
            return []
        if error:
            return self._not_saved(server, number, error, now)
        return self.checkpoints.wrote(server, number, part)

    def _not_saved(self, server: str, number: int, error: str, now: float) -> list[Command]:
        writing = self.checkpoints.writing
        if writing is None or writing.cut != number:
            return []
        who = f"{server}: " if server else ""
        if self.stopping and writing.held:
            return [FinishJob(FAILED, f"the checkpoint could not be written: {who}{error}")]
        out = self.checkpoints.give_up()
        kept = self.checkpoints.newest
        out.append(Announce(f"the checkpoint could not be written ({who}{error}); training goes on, {kept} stays"))
        if self.scaling.resizing and writing.held:
            out.append(Announce(f"there stay {len(self.scaling.servers)} servers"))
            out += self._stay(now)
        return out + ([ReleaseServers(number), *self._dismiss("told to go", now)] if writing.held else [])

    def _stop(self, reason: str) -> list[Command]:
        if self.stopping:
            return []
        self.stopping, self.shards.draining = reason, True
        if self.shards.paused:
            newest = self.checkpoints.newest
            if not newest.directory:
                lost = "what was trained is lost with a server" if self.repeated else "nothing was trained yet"
                return [FinishJob(STOPPED, f"{reason}; {lost}")]
            self.checkpoint = newest.directory
            return [FinishJob(STOPPED, f"{reason}; the checkpoint holds version {newest.position.version}")]
        out: list[Command] = [Announce(f"stopping: {reason}; the servers write a checkpoint first")]
        cut = self.cuts.active
        if cut is not None and cut.purpose == VIEW and cut.phase is not Phase.CUTTING:
            out += self.cuts.cancel()
        return out

    def _unclosed(self) -> set[str]:
        return {s.id for s in self.shards.open_training()}
