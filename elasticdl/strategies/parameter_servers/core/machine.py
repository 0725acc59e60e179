"""The whole job: routes each event to the machines it concerns and decides what follows from all of them together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.evaluation import Evaluation
from elasticdl.core.machine import NOWHERE, Progress, Recovery, ended
from elasticdl.core.plan import Kind, Shard, ShardId
from elasticdl.core.replicas import BLAMED, CAUSES, CRASHED, FINISHED, OUT_OF_MEMORY, PREEMPTED, Replicas, State
from elasticdl.core.searches import Searches
from elasticdl.core.shards import Shards, ShardsAdded, WorkerLost
from elasticdl.job.outcome import Outcome
from elasticdl.strategies.parameter_servers.core.closing import Closing
from elasticdl.strategies.parameter_servers.core.cuts import SAVE, VIEW, Cut, Phase
from elasticdl.strategies.parameter_servers.core.servers import Servers
from elasticdl.strategies.parameter_servers.core.terms import ParameterServerTerms

IN_TOUCH_SECONDS = 5.0
BY_HAND = "workers of this job are started by hand: start or stop one yourself"


@dataclass
class ParameterServerMachine:
    """One mutator, `handle`: an event in, commands out."""

    terms: ParameterServerTerms
    replicas: Replicas
    shards: Shards
    servers: Servers
    evaluation: Evaluation
    closing: Closing
    outcome: Outcome | None = None
    reason: str = ""
    checkpoint: str = ""  # the newest on disk
    rollbacks: int = 0  # because a server was lost
    repeated: int = 0  # versions trained again after them
    rolled_back: float | None = None  # when the last one was
    loss: float | None = None
    recoveries: list[Recovery] = field(default_factory=list)

    @classmethod
    def new(cls, terms: ParameterServerTerms) -> Self:
        wanted = {"ps": terms.servers, "worker": 0 if terms.by_hand else terms.workers}
        evaluation = Evaluation.planned(
            terms.validation_records, terms.evaluation_steps, terms.plan.minibatch, terms.workers
        )
        return cls(
            terms,
            Replicas.wanting(terms.job, wanted, terms.budget),
            Shards(terms.plan, Searches(terms.max_bad_records)),
            Servers.new(terms.job, terms.servers, terms.schedule),
            evaluation,
            Closing(terms.audit, terms.export),
        )

    # Questions.

    def deadline(self) -> float | None:
        """When `TimePassed` should come next."""
        times = [t for t in [self.replicas.deadline()] if t is not None]
        if not self._standing_still:
            idle = [self.shards.idle_since(r.name) for r in self.replicas.joined("worker")]
            times += [t + self.terms.budget.hang_seconds for t in idle if t is not None]
        due = self.servers.checkpoints.deadline(self.shards.version) if self._may_cut else None
        return min([*times, due] if due is not None else times, default=None)

    def progress(self) -> Progress:
        plan, shards = self.terms.plan, self.shards
        epoch = min(shards.epoch, plan.epochs - 1)
        return Progress(
            shards.done_records, plan.total_records, shards.version, plan.total_versions, epoch, plan.epochs, self.loss
        )

    def refused(self, role: str, count: int) -> str:
        """Why there cannot be so many of a role; empty when there can."""
        if role == "worker" and self.terms.by_hand:
            return BY_HAND
        if role not in ("ps", "worker"):
            return f"there is no role {role} to scale"
        if count < 1:
            return f"a job needs at least one {role}"
        return self.servers.refused(count) if role == "ps" else ""

    @property
    def parting(self) -> bool:
        return self.servers.parting(self.replicas)

    @property
    def _standing_still(self) -> bool:
        """The servers are frozen, or not all there: no worker can move, so none is hung."""
        return self.shards.paused or self.servers.frozen

    @property
    def _ending(self) -> bool:
        return self.servers.ending(self.replicas)

    @property
    def _may_cut(self) -> bool:
        """Whether the clock may start a cut: none is under way, except one that has yet to begin."""
        if self.shards.paused or self._ending or self.shards.trained_out:
            return False
        cuts = self.servers.cuts
        return cuts.active is None or cuts.gives_way_to(0, self.shards.version)

    # The one mutator.

    def handle(self, event: e.Event, now: float) -> list[c.Command]:
        if self.outcome:
            return []
        out = self._route(event, now)
        while self.replicas.lost_servers and not self.replicas.finished:
            lost = self.replicas.lost_servers.pop(0)
            if lost.name in self.servers.names:  # one that is only to come holds nothing yet
                out += self._roll_back(str(lost), now, lost.name)
        while self.replicas.not_to_be_had:  # asked for while the job runs
            lost = self.replicas.not_to_be_had.pop(0)
            out.append(c.Announce(f"{lost}; continuing without it"))
            if self.replicas.role_of(lost.name) == "ps":
                out += self.servers.stay(self.replicas, now)
        if not any(isinstance(x, c.FinishJob) for x in out):
            out += self._follow(now)
        return ended(self, out)

    # Routing.

    def _route(self, event: e.Event, now: float) -> list[c.Command]:
        match event:
            case e.ReplicaJoined():
                return self._joined(event, now)
            case e.ReplicaGone():
                return self._gone(event, now)
            case e.MasterStarted() | e.TimePassed():
                out = self._of_replicas(event, now)
                if isinstance(event, e.MasterStarted):
                    out += self.shards.searches.unanswered() + self.servers.checkpoints.unanswered()
                else:
                    out += self._hung(now)
                return out
            case e.ReplicaStarted() | e.ReplicaHeldUp() | e.ReplicaDropped() | e.WorkerCame():
                return self._of_replicas(event, now)
            case e.ServerHeld(server, number, counters, at, coming):
                at_version = at if self.terms.plan.synchronous else None
                moving = self.shards.worked_on()
                return self.servers.cuts.held(
                    server, number, dict(counters), self._unclosed(), moving, at_version, coming
                )
            case e.ServerCut(server, number):
                cut = self.servers.cuts.frozen(server, number)
                return self._cut_done(cut, now) if cut is not None else []
            case e.ServerWrote(server, number, part, error):
                return self.servers.wrote(server, number, part, error, self.replicas, now)
            case e.ServerRestored(server, timeline, error):
                return self._restored(server, timeline, error, now)
            case e.CheckpointPublished(number, directory, error):
                if error:
                    return self.servers.not_saved(number, error, self.replicas, now)
                return self._published(number, directory, now)
            case e.ReplicaLeaving(name) if self.replicas.role_of(name) == "ps":
                return self.servers.leave(name)
            case e.WorkerUnfit(_, error):
                return [c.FinishJob(Outcome.FAILED, error)]
            case e.StopRequested(reason):
                return self._stop(reason)
            case e.ScaleRequested(role, count):
                return self._scale(role, count, now)
            case e.BatchesCommitted(loss=loss):
                if ShardId.parse(event.shard).kind is Kind.TRAIN:
                    self.loss = loss
                out = self.shards.handle(event, now)
                self._recovered(event.shard, now)
                return out
            case _:
                return self.shards.handle(event, now)

    def _of_replicas(self, event: e.Event, now: float) -> list[c.Command]:
        out = self.replicas.handle(event, now)
        for command in list(out):
            if isinstance(command, c.StopReplica) and self.replicas.role_of(command.name) == "worker":
                out += self._worker_lost(command.name, command.reason, False, now)
        if isinstance(event, e.MasterStarted):
            for r in self.replicas.replicas.values():
                if r.state is State.GONE and r.name in self.shards.seats:
                    out += self._worker_lost(r.name, r.detail, False, now)
        return out

    def _joined(self, event: e.ReplicaJoined, now: float) -> list[c.Command]:
        if not self.replicas.admits(event.name, event.incarnation):
            return []
        out = self.replicas.handle(event, now)
        if self.replicas.replicas[event.name].role == "ps":
            if event.name not in self.servers.names:
                return out  # its time comes with the next cut
            out += self.servers.checkpoints.joined(event.name, event.timeline)
            if event.timeline == self.servers.checkpoints.timeline:
                out += [c.TellMembers(event.name), *self.servers.back(event.name)]
            return out + self._go_on(now)
        return [*out, c.TellMembers(event.name), *self.shards.handle(event, now)]

    # Workers.

    def _gone(self, event: e.ReplicaGone, now: float) -> list[c.Command]:
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
        # then at some other batch than the one it last reported: the fault is unknown.
        blame = crashed and (r.state is State.JOINED or now - r.since <= IN_TOUCH_SECONDS)
        seat = self.shards.seats.get(event.name)
        if crashed and event.cause == CRASHED:
            event = replace(event, cause=BLAMED)
        elif event.cause == FINISHED and seat is not None and seat.leaving:
            event = replace(event, cause=PREEMPTED)  # it was asked to leave, and did
        out = self.replicas.handle(event, now)
        reason = "\n".join([f"{event.name}: {event.reason}", *event.last_lines]) if blame else event.reason
        return out + self._worker_lost(event.name, reason, blame, now)

    def _worker_lost(self, worker: str, reason: str, blame: bool, now: float, hung: bool = False) -> list[c.Command]:
        held = [s for s in self.shards.leased.values() if s.worker == worker]
        if worker in self.shards.seats:
            self.recoveries.append(Recovery(worker, now, [s.id for s in held if s.kind is Kind.TRAIN]))
        # It may live on for a while, and even listen: its lease is revoked before another worker gets the shard.
        out: list[c.Command] = [c.RevokeLease(worker, s.id, s.attempt, reason) for s in held]
        return out + self.shards.handle(WorkerLost(worker, reason, blame, hung), now)

    def _unclosed(self) -> set[str]:
        return {s.id for s in self.shards.open_training()}

    def _recovered(self, shard_id: str, now: float) -> None:
        for r in self.recoveries:
            if r.seconds is None and (shard_id in r.shards or r.server):
                r.seconds = now - r.at

    def _hung(self, now: float) -> list[c.Command]:
        """Liveness is progress: a worker that holds a lease and does not move is replaced."""
        out: list[c.Command] = []
        if self._standing_still:
            return out
        limit = self.terms.budget.hang_seconds
        idle = {r.name: self.shards.idle_since(r.name) for r in self.replicas.joined("worker")}
        hung = [name for name, since in idle.items() if since is not None and now - since >= limit]
        lifted = self.servers.cuts.give_way() if hung else []
        if lifted:  # pushes were held: a worker that really hangs shows without the barrier
            self.shards.rest(now)
            return lifted
        for name in hung:
            reason = f"no batch finished for {limit:g} s"
            self.replicas.replace(name, PREEMPTED, reason, now, out)
            # It is in touch, so it is the batch that does not end: its records are searched as if they crashed it.
            out += self._worker_lost(name, f"{name}: {reason}", True, now, hung=True)
        if out:
            out += self.replicas.handle(e.TimePassed(), now)
        return out

    # What follows.

    def _follow(self, now: float) -> list[c.Command]:
        cuts = self.servers.cuts
        out = cuts.check(self._unclosed(), self.shards.worked_on())
        out += cuts.repaired({s.id: s.next_batch for s in self.shards.open_training()})
        while self.shards.results:
            shard, result = self.shards.results.pop(0)
            out += self._finished(shard, result, now)
        if self.shards.paused or self.servers.holding_on:
            return out
        wanted = self._wanted_cut(now)
        if wanted is not None:
            purpose, at, lasting = wanted
            if cuts.active is None:
                return out + cuts.start(purpose, at, lasting)
            if cuts.gives_way_to(at, self.shards.version):
                return out + cuts.cancel() + cuts.start(purpose, at, lasting)
        if cuts.active is not None or self._ending:
            return out
        return out + self._conclude(now)

    def _wanted_cut(self, now: float) -> tuple[str, int, bool] | None:
        """Which cut comes next, at which version: the nearest of all that are due."""
        version, over, checkpoints = self.shards.version, self.shards.trained_out, self.servers.checkpoints
        if self._ending:
            return (SAVE, 0, bool(self.servers.stopping)) if checkpoints.writing is None else None
        wanted: list[tuple[str, int, bool]] = []
        at = self.evaluation.wanted_at(version, self.terms.plan.total_versions, over)
        if at is not None:
            wanted.append((VIEW, at, False))
        saved = checkpoints.wanted(version, self.terms.plan.total_versions, now)
        if saved is not None and not over:
            wanted.append((SAVE, *saved))
        return min(wanted, key=lambda w: max(w[1], version), default=None)

    def _cut_done(self, cut: Cut, now: float) -> list[c.Command]:
        position = self.shards.position(cut.counters)
        self.shards.rest(now)
        if cut.purpose == VIEW:
            opened = self.evaluation.opened(cut.number, position.version)
            return [c.ReleaseServers(cut.number), *self.shards.handle(ShardsAdded(opened), now)]
        if self.servers.stopping and position.version == 0:
            return [c.FinishJob(Outcome.STOPPED, f"{self.servers.stopping}; nothing was trained yet")]
        self.servers.checkpoints.begin(cut.number, position, cut.lasting, self._ending, now)
        out: list[c.Command] = [] if self.servers.holding_on else [c.ReleaseServers(cut.number)]
        for server, (part, error) in cut.early.items():
            out += self.servers.wrote(server, cut.number, part, error, self.replicas, now)
        return out

    def _published(self, number: int, directory: str, now: float) -> list[c.Command]:
        servers = self.servers
        mine, last = servers.writes(number), servers.holding_on
        out = servers.published(number, directory)
        if not mine:
            return out
        self.checkpoint = directory
        if not last:
            return out
        if not servers.stopping and servers.ready_to_resize(self.replicas):
            return out + self._resize(now)
        return out + servers.end_hold(number, self.replicas, now)

    def _finished(self, shard: Shard, result: str, now: float) -> list[c.Command]:
        if shard.kind is Kind.EVALUATE:
            summary = self.evaluation.completed(shard, result)
            return self.shards.handle(ShardsAdded((summary,)), now) if summary is not None else []
        if shard.kind is Kind.SUMMARIZE:
            finished = self.evaluation.summarized(result)
            return [c.ReportMetrics(finished.version, result), c.DropView(finished.cut)] if finished is not None else []
        return [self.closing.finished(shard.kind, result)]

    def _conclude(self, now: float) -> list[c.Command]:
        """When all is trained and evaluated: audit, export, end."""
        version, checkpoints = self.shards.version, self.servers.checkpoints
        if not (self.shards.trained_out and self.evaluation.over(version)):
            return []
        if not self.closing.over:
            steps = self.closing.next(version)
            return self.shards.handle(ShardsAdded(steps), now) if steps else []
        if checkpoints.writing is not None and checkpoints.writing.lasting:
            return []  # the user asked for it
        superfluous = checkpoints.superfluous()
        if any(self.checkpoint in s.directories for s in superfluous):
            self.checkpoint = ""
        done = c.FinishJob(Outcome.SUCCEEDED, f"all {self.shards.done_records} records are trained")
        return [*checkpoints.give_up(), *superfluous, done]

    # Going back.

    def _go_on(self, now: float) -> list[c.Command]:
        """Once every server stands on this timeline there is work again."""
        if not self.servers.ready(self.replicas) or not self.shards.paused:
            return []
        self.shards.paused = False
        self.servers.checkpoints.started(now)
        return [c.TellMembers(), *self.shards.resume(now)]

    def _roll_back(self, why: str, now: float, server: str = "") -> list[c.Command]:
        """A server and what it held are lost, or another number begins: all go back to the newest checkpoint."""
        reached = self.shards.version
        to = self.servers.checkpoints.roll_back()
        out: list[c.Command] = [c.RevokeLease(s.worker, s.id, s.attempt, why) for s in self.shards.leased.values()]
        self.shards.go_back(to.position)
        self.shards.paused = True
        self.evaluation.go_back(to.position.version)
        self.closing.go_back()
        self.rolled_back = now
        self.repeated += max(0, reached - to.position.version)
        if server:
            self.recoveries.append(Recovery(server, now, [], server=True))
            self.rollbacks += 1
        told = f"Rolling back from version {reached} to {to}: {why}"
        if reached <= to.position.version:  # nothing is lost
            told = f"Continuing from {to}: {why}"
        return [*out, c.Announce(told), c.TellMembers(), *self.servers.go_back(self.replicas)]

    def _restored(self, server: str, timeline: int, error: str, now: float) -> list[c.Command]:
        checkpoints = self.servers.checkpoints
        if timeline != checkpoints.timeline:
            return []
        if not error:
            checkpoints.restored.add(server)
            return self._go_on(now)
        damaged = checkpoints.newest
        if checkpoints.damaged() is None:
            return [c.FinishJob(Outcome.FAILED, f"{server} cannot restore {damaged}: {error}")]
        told = c.Announce(f"Cannot read the checkpoint of {damaged}: {error}")
        return [told, *self._roll_back(f"{server} cannot read it", now, server)]

    # What users ask for.

    def _stop(self, reason: str) -> list[c.Command]:
        if self.servers.stopping:
            return []
        self.servers.stopping, self.shards.draining = reason, True
        if self.terms.schedule.nowhere:
            return [c.FinishJob(Outcome.STOPPED, f"{reason}; {NOWHERE}")]
        if self.shards.paused:
            newest = self.servers.checkpoints.newest
            if not newest.directory:
                lost = "the trained values are lost with a server" if self.rollbacks else "nothing was trained yet"
                return [c.FinishJob(Outcome.STOPPED, f"{reason}; {lost}")]
            self.checkpoint = newest.directory
            return [c.FinishJob(Outcome.STOPPED, f"{reason}; the checkpoint holds version {newest.position.version}")]
        out: list[c.Command] = [c.Announce(f"Stopping the job ({reason}); saving a checkpoint first")]
        cut = self.servers.cuts.active
        if cut is not None and cut.purpose == VIEW and cut.phase is not Phase.CUTTING:
            out += self.servers.cuts.cancel()
        return out

    def _scale(self, role: str, count: int, now: float) -> list[c.Command]:
        refused = self.refused(role, count)
        if refused or self.servers.stopping:
            return [c.Announce(f"Cannot scale {role} to {count}: {refused or 'the job is stopping'}")]
        if role == "worker":
            return [c.Announce(f"Scaling to {count} workers"), *self.replicas.resize("worker", count, now)]
        return self.servers.scale(count, self.replicas, now)

    def _resize(self, now: float) -> list[c.Command]:
        before, after = len(self.servers.names), self.servers.wanted
        self.servers.resize(self.replicas)
        out = self._roll_back(f"{after} servers instead of {before}", now)
        return out + self.replicas.resize("ps", after, now)
