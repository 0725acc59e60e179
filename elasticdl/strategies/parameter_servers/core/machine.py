"""The whole job: routes each event to the machines it concerns and decides what follows from all of them together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from elasticdl.core.commands import (
    Announce,
    Command,
    DropView,
    FinishJob,
    ReportMetrics,
    RevokeLease,
    StopReplica,
    TellMembers,
)
from elasticdl.core.events import (
    BatchesCommitted,
    CheckpointPublished,
    Event,
    MasterStarted,
    ReplicaDropped,
    ReplicaGone,
    ReplicaHeldUp,
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
    WorkerCame,
    WorkerUnfit,
)
from elasticdl.core.machine import Recovery
from elasticdl.core.plan import Kind, Shard, ShardId
from elasticdl.core.replicas import BLAMED, CAUSES, CRASHED, FINISHED, OUT_OF_MEMORY, PREEMPTED, State
from elasticdl.core.shards import ShardsAdded, WorkerLost
from elasticdl.job.outcome import Outcome
from elasticdl.strategies.parameter_servers.core.servers import JobOfServers

IN_TOUCH_SECONDS = 5.0


@dataclass
class ParameterServerMachine(JobOfServers):
    """One mutator, `handle`: an event in, commands out."""

    def handle(self, event: Event, now: float) -> list[Command]:
        if self.outcome:
            return []
        out = self._route(event, now)
        while self.replicas.lost_servers and not self.replicas.finished:
            lost = self.replicas.lost_servers.pop(0)
            if lost.name in self.scaling.servers:  # one that is only to come holds nothing yet
                out += self._roll_back(str(lost), now, lost.name)
        out += self._not_to_be_had(now)
        if not any(isinstance(c, FinishJob) for c in out):
            out += self._follow(now)
        for place, command in enumerate(out):
            if isinstance(command, FinishJob):
                self.outcome, self.reason = command.outcome, command.reason
                self.replicas.finished = True
                return out[: place + 1]  # what was decided after the end has no meaning
        return out

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
            case ReplicaStarted() | ReplicaHeldUp() | ReplicaDropped() | WorkerCame():
                return self._of_replicas(event, now)
            case ServerHeld(server, number, counters, at, coming):
                at_version = at if self.terms.plan.synchronous else None
                moving = self.shards.worked_on()
                return self.cuts.held(server, number, dict(counters), self._unclosed(), moving, at_version, coming)
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
                return [FinishJob(Outcome.FAILED, error)]
            case StopRequested(reason):
                return self._stop(reason)
            case ScaleRequested(role, count):
                return self._scale(role, count, now)
            case BatchesCommitted(loss=loss):
                if ShardId.parse(event.shard).kind is Kind.TRAIN:
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

    # Workers.

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
        superfluous = self.checkpoints.superfluous()
        if any(self.checkpoint in s.directories for s in superfluous):
            self.checkpoint = ""
        done = FinishJob(Outcome.SUCCEEDED, f"all {self.shards.done_records} records are trained")
        return [*self.checkpoints.give_up(), *superfluous, done]

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
