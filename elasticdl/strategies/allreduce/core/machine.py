"""The whole of an all-reduce job: routes each event to the machines it concerns, and decides what follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from elasticdl.core.commands import (
    Announce,
    AskForStack,
    Command,
    DeleteCheckpoints,
    ExportModel,
    FinishJob,
    ReportMetrics,
    SaveState,
    SettleSave,
    StartWorld,
    StopReplica,
)
from elasticdl.core.events import (
    CheckpointPublished,
    Event,
    MasterStarted,
    ModelEvaluated,
    ModelExported,
    RecordLeftOut,
    ReplicaDropped,
    ReplicaGone,
    ReplicaHeldUp,
    ReplicaJoined,
    ReplicaLeaving,
    ReplicaStarted,
    ScaleRequested,
    ServerWrote,
    StepsCommitted,
    StopRequested,
    TimePassed,
    WorkerHung,
    WorkerUnfit,
    WorldBroken,
    WorldConfirmed,
    WorldFormed,
)
from elasticdl.core.machine import NOWHERE, Recovery
from elasticdl.core.plan import BadRecord
from elasticdl.core.replicas import FINISHED, PREEMPTED, State
from elasticdl.job.outcome import Outcome
from elasticdl.strategies.allreduce.core.membership import Phase
from elasticdl.strategies.allreduce.core.saves import SavingJob
from elasticdl.strategies.allreduce.core.state import NEXT

STACK_SECONDS = 1.0  # a hung worker may take to say where it stands


@dataclass
class AllreduceMachine(SavingJob):
    """One mutator, `handle`: an event in, commands out."""

    def handle(self, event: Event, now: float) -> list[Command]:
        if self.outcome:
            return []
        self.now = now
        world = self.membership.generation if self.membership.training else 0
        out = self._route(event, now)
        while self.membership.to_evict:
            out += self._put_down(self.membership.to_evict.pop(0), "its world breaks again and again", now)
        if reason := self.membership.hopeless(now):
            out.append(FinishJob(Outcome.FAILED, reason))
        while self.replicas.not_to_be_had:
            out.append(Announce(f"{self.replicas.not_to_be_had.pop(0)}; the job goes on without it"))
        for started in [c for c in out if isinstance(c, StartWorld)]:
            if set(started.to) & set(started.members):  # and not only told to one who goes
                out += self._begin(started)
        if not any(isinstance(c, FinishJob) for c in out):
            out += self._follow(now)
        if self.membership.training and self.membership.generation != world:
            out += self._trains(now)
        out += self.changes.heard(event, out, self.membership.training, now)
        for place, command in enumerate(out):
            if isinstance(command, FinishJob):
                self.outcome, self.reason = command.outcome, command.reason
                self.replicas.finished = True
                return out[: place + 1]
        return out

    # Routing.

    def _route(self, event: Event, now: float) -> list[Command]:
        match event:
            case ReplicaJoined():
                return self._joined(event, now)
            case ReplicaDropped(name, incarnation):
                w = self.membership.workers.get(name)
                if w is None or w.incarnation != incarnation:
                    return self.replicas.handle(event, now)
                # Asked before those who leave hear that nobody trains, as everywhere.
                out = self.replicas.handle(event, now) + self._save_before_all_leave(name)
                return out + self.membership.dropped(name, now)
            case ReplicaGone():
                return self._gone(event, now)
            case ReplicaStarted() | ReplicaHeldUp() | TimePassed():
                return self._of_replicas(event, now) + self.membership.time_passed(now)
            case MasterStarted():
                self.membership.master_started(now)
                out = self._of_replicas(event, now)
                for name in list(self.membership.workers):
                    if self.replicas.replicas[name].state is State.GONE:
                        out += self._forget(name) + self.membership.gone(name, now)
                return out + self.checkpoints.unanswered()
            case ReplicaLeaving(name):
                return self._leaving(name, now)
            case WorldConfirmed(worker, generation, state):
                self.holdings[worker] = event.records
                return self.membership.confirm(worker, generation, state, now)
            case WorldBroken():
                return self._broken(event, now)
            case WorldFormed(worker, generation):
                return self.membership.form(worker, generation, now)
            case StepsCommitted(_, generation, step, loss):
                if generation != self.membership.running_generation:
                    return []  # of a world that is over
                if step > self.step:
                    self.stands_at(step, event.records)
                self.loss = self.loss if loss is None else loss
                return self.membership.stepped(generation, step, now)
            case ModelEvaluated(worker, version, metrics):
                return self._evaluated(version, metrics) if worker in self.membership.running else []
            case ServerWrote(worker, cut, part, error):
                return self._wrote(worker, cut, part, error, now)
            case CheckpointPublished(cut, directory, error):
                return self._published(cut, directory, error, now)
            case ModelExported():
                return self._exported(event)
            case WorkerHung(worker, reason):
                r = self.replicas.replicas.get(worker)
                if r is None or worker not in self.membership.workers:
                    return []
                asked: list[Command] = [Announce(f"{worker} is hung: {reason}"), AskForStack(worker, reason)]
                return asked + self._put_down(worker, f"hung: {reason}", now, STACK_SECONDS)
            case RecordLeftOut(_, record, name, error):
                return self._left_out(BadRecord(record, name, error))
            case WorkerUnfit(worker, error):
                return [FinishJob(Outcome.FAILED, f"{worker}: {error}")]
            case StopRequested(reason):
                return self._stop(reason, now)
            case ScaleRequested(role, count):
                return self._scale(role, count, now)
            case _:
                return []

    def _of_replicas(self, event: Event, now: float) -> list[Command]:
        out = self.replicas.handle(event, now)
        for command in list(out):
            if isinstance(command, StopReplica) and command.grace_seconds == 0.0:
                out += self._lost(command.name, now) + self._forget(command.name)
                out += self._save_before_all_leave(command.name) + self.membership.exclude(command.name, now)
        return out

    def _joined(self, event: ReplicaJoined, now: float) -> list[Command]:
        if not self.replicas.admits(event.name, event.incarnation):
            return []
        out, leaving = self.replicas.handle(event, now), event.capacity == 0
        found = self.membership.joined(event.name, event.incarnation, event.generation, event.fingerprint, leaving, now)
        again = [SaveState(s.worker, s.cut, s.at) for s in self.saves if s.worker == event.name]
        out += [*again, *(self._save_before_all_leave() if leaving else []), *found]
        asked = self.exporter == event.name and not self.concluded
        return [*out, ExportModel(event.name, self.exports)] if asked else out

    def _gone(self, event: ReplicaGone, now: float) -> list[Command]:
        if not self.replicas.concerns(event.name, event.uid):
            return []
        w = self.membership.workers.get(event.name)
        if event.cause == FINISHED and w is not None and w.leaving:
            event = replace(event, cause=PREEMPTED)  # it was asked to go, and went in good order
        out: list[Command] = [] if w is not None and w.leaving else self._lost(event.name, now)
        out += self.replicas.handle(event, now)
        out += self._forget(event.name) + self._save_before_all_leave(event.name)
        return out + self.membership.gone(event.name, now)

    def _forget(self, name: str) -> list[Command]:
        """Whatever it was asked to do, it will not."""
        self.holdings.pop(name, None)
        self.owed = self.owed or any(s.worker == name and s.lasting and s.at <= self.step for s in self.saves)
        self.saves = [s for s in self.saves if s.worker != name]
        if self.exporter == name:
            self.exporter = ""
        return []

    def _broken(self, event: WorldBroken, now: float) -> list[Command]:
        out: list[Command] = []
        if event.unreadable and event.unreadable == self.membership.checkpoint[0]:
            out = self._damaged(event.error)
        found = self.membership.broken(event.worker, event.generation, event.suspects, now)
        if found and not out:
            out = [Announce(f"{event.worker}: generation {event.generation} broke: {event.error}")]
        return out + found

    def _lost(self, name: str, now: float) -> list[Command]:
        if name in self.membership.members and self.membership.phase is not Phase.NONE:
            self.recoveries.append(Recovery(name, now, []))
        return []

    def _put_down(self, name: str, reason: str, now: float, grace_seconds: float = 0.0) -> list[Command]:
        """Replace a worker that is there but of no use."""
        out = self._lost(name, now)
        self.replicas.replace(name, PREEMPTED, reason, now, out)
        out = [replace(c, grace_seconds=grace_seconds) if isinstance(c, StopReplica) else c for c in out]
        out += self._forget(name) + self._save_before_all_leave(name) + self.membership.exclude(name, now)
        return out + self.replicas.handle(TimePassed(), now)

    def _leaving(self, name: str, now: float) -> list[Command]:
        if name not in self.membership.workers:
            return []  # it is being put down anyway
        m, w = self.membership, self.membership.workers[name]
        if w.leaving:
            return []
        m.workers[name] = m.workers.pop(name)  # told last
        told: list[Command] = [Announce(f"{name} is told to go: it leaves at the end of a step")]
        out = m.leave(name, now)
        return told + self._save_before_all_leave() + out  # asked before it hears that it may go

    def _trains(self, now: float) -> list[Command]:
        for r in self.recoveries:
            if r.seconds is None:
                r.seconds = now - r.at
        self.checkpoints.reading = ""
        if self.checkpoints.next_time is None:
            self.checkpoints.started(now)
        size = len(self.membership.members)
        who = "1 worker trains" if size == 1 else f"{size} workers train"
        return [Announce(f"generation {self.membership.generation}: {who}, from step {self.step}")]

    def _begin(self, world: StartWorld) -> list[Command]:
        """A world starts: below what was heard of only where all who held more are lost."""
        step = world.state[1]
        self.repeated += max(0, self.step - step)
        self.stands_at(step, self._records_of(world))
        self.checkpoints.reading = world.directory
        self.evaluations = [e for e in self.evaluations if e[0] <= step]
        # Who is not in it never comes to a step at which it was to save, unless it is there already.
        if self.exporter not in world.members:
            self.exporter = ""
        left = [s for s in self.saves if s.at > step and s.worker not in world.members]
        self.saves = [s for s in self.saves if s not in left]
        return [SettleSave(s.cut, "", s.worker) for s in left]

    def _records_of(self, world: StartWorld) -> int:
        """Trained in the state that a world begins with: as the checkpoint says, or who brings that state."""
        saved = [c.position.records for c in self.checkpoints.known if c.directory == world.directory]
        held = [self.holdings[n] for n in world.members if n in self.holdings and n not in world.copies]
        return next(iter(saved if world.directory else held), self.records)

    def _evaluated(self, version: int, metrics: str) -> list[Command]:
        if any(v == version for v, _ in self.evaluations):
            return []
        self.evaluations.append((version, metrics))
        self.evaluations.sort()
        return [ReportMetrics(version, metrics)]

    def _left_out(self, bad: BadRecord) -> list[Command]:
        if any(b.record == bad.record for b in self.bad_records):
            return []
        self.bad_records.append(bad)
        if len(self.bad_records) > self.terms.max_bad_records:
            return [FinishJob(Outcome.FAILED, bad.one_too_many(self.terms.max_bad_records))]
        return [Announce(f"{bad.name} cannot be trained and is set aside ({len(self.bad_records)} so far)")]

    # People.

    def _stop(self, reason: str, now: float) -> list[Command]:
        if self.stopping:
            return []
        self.stopping = reason
        if self.terms.schedule.nowhere:
            return [FinishJob(Outcome.STOPPED, f"{reason}; {NOWHERE}")]
        if self.step and self.membership.holders:
            return [Announce(f"stopping: {reason}; the state is saved first")]
        if not self.step and not self.checkpoints.newest.directory:
            return [FinishJob(Outcome.STOPPED, f"{reason}; nothing was trained yet")]
        return []

    def _scale(self, role: str, count: int, now: float) -> list[Command]:
        refused = self.refused(role, count)
        if refused or self.stopping:
            return [Announce(f"not scaled to {count} of {role}: {refused or 'the job is stopping'}")]
        out: list[Command] = [Announce(f"scaling to {count} workers")]
        out += self.replicas.resize("worker", count + self.terms.standby, now)
        return out + self.membership.scaled(count, now)

    # What follows.

    def _follow(self, now: float) -> list[Command]:
        out = self._overdue(now)
        if any(isinstance(c, FinishJob) for c in out):
            return out
        if self.stopping:
            return out + ([] if self.last_cut in self.open_cuts else self._stop_again(now))
        if not self.trained_out:
            return out + self._due(now)
        out += self._end_saves()
        return out + (self._conclude() if self.evaluated_out and not self.owed else self._due(now))

    def _conclude(self) -> list[Command]:
        """Everything is trained."""
        if not self.concluded and (self.terms.export or self.terms.audit):
            if self._last_word is None and not self.exporter and (holder := self.membership.holder()):
                self.exporter, self.exports = holder, self.exports + 1
                return [ExportModel(holder, self.exports)]
            return []
        if any(s.lasting for s in self.saves) or self.checkpoints.writing is not None or self.written:
            return []  # the user asked for it
        superfluous: Iterable[DeleteCheckpoints] = self.checkpoints.superfluous()
        if any(self.checkpoint in s.directories for s in superfluous):
            self.checkpoint = ""
        done = FinishJob(Outcome.SUCCEEDED, f"all {self.records} records are trained")
        return [*self.checkpoints.give_up(), *superfluous, done]

    def _stop_again(self, now: float) -> list[Command]:
        """The state is to be saved, or who was to do it is gone: somebody else, or the newest checkpoint."""
        if self.step and (keeper := self.membership.keeper()):
            self.last_cut = self.cuts + 1
            return self._save(NEXT, True, keeper)
        if self.step and self.membership.holders:
            return []  # out of touch, for the moment
        newest = self.checkpoints.newest
        held = f"the checkpoint holds step {newest.position.version}" if newest.directory else "nothing is saved"
        return [FinishJob(Outcome.STOPPED, f"{self.stopping}; {held}")]

    def _exported(self, event: ModelExported) -> list[Command]:
        """Only the answer to the last request counts: who was asked before had to give way, and may say so late."""
        if self.concluded or event.worker != self.exporter or event.number not in (0, self.exports):
            return []
        if event.error:
            return [FinishJob(Outcome.FAILED, f"the model could not be written: {event.worker}: {event.error}")]
        self.concluded, self.exported, self.audited = True, event.directory, event.audit
        out: list[Command] = [Announce(f"audit: {event.audit}")] if event.audit else []
        return [*out, Announce(f"the model is in {event.directory}")] if event.directory else out
