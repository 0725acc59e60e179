"""The whole of an all-reduce job: routes each event to the machines it concerns, and decides what follows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.machine import NOWHERE, Progress, Recovery, ended
from elasticdl.core.plan import BadRecord
from elasticdl.core.replicas import FINISHED, PREEMPTED, Replicas, State
from elasticdl.job.outcome import Outcome
from elasticdl.strategies.allreduce.core.changes import Changes
from elasticdl.strategies.allreduce.core.closing import Closing
from elasticdl.strategies.allreduce.core.membership import Membership
from elasticdl.strategies.allreduce.core.proposals import Phase
from elasticdl.strategies.allreduce.core.saves import NEXT, Saves
from elasticdl.strategies.allreduce.core.terms import AllreduceTerms

STACK_SECONDS = 1.0  # a hung worker may take to send its stack traces


@dataclass
class AllreduceMachine:
    """One mutator, `handle`: an event in, commands out."""

    terms: AllreduceTerms
    replicas: Replicas
    membership: Membership
    saves: Saves
    closing: Closing = field(default_factory=Closing)
    step: int = 0  # the newest that was reported
    records: int = 0  # trained by so many steps
    holdings: dict[str, int] = field(default_factory=dict)  # records in the state that a worker confirmed last
    repeated: int = 0  # steps trained again because all workers were lost
    loss: float | None = None
    evaluations: list[tuple[int, str]] = field(default_factory=list)  # version, metrics as JSON
    checkpoint: str = ""  # the newest on disk
    outcome: Outcome | None = None
    reason: str = ""
    recoveries: list[Recovery] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)
    bad_records: list[BadRecord] = field(default_factory=list)  # left out of their steps
    now: float = 0.0  # of the last event

    @classmethod
    def new(cls, terms: AllreduceTerms) -> Self:
        membership = Membership(terms.workers, terms.least, terms.grace_seconds, terms.deterministic)
        wanted = {"worker": terms.workers + terms.standby}
        return cls(terms, Replicas.wanting(terms.job, wanted, terms.budget), membership, Saves.new(terms))

    # Questions.

    def deadline(self) -> float | None:
        """When `TimePassed` should come next."""
        times = [self.replicas.deadline(), self.membership.deadline(self.now), self._last_word]
        times += self.saves.deadlines(self.step, self.trained_out, self.membership)
        return min((t for t in times if t is not None), default=None)

    def progress(self) -> Progress:
        plan = self.terms.plan
        epoch = min(self.records // plan.records, plan.epochs - 1)
        return Progress(self.records, plan.total_records, self.step, plan.total_steps, epoch, plan.epochs, self.loss)

    def refused(self, role: str, count: int) -> str:
        """Why there cannot be so many of a role; empty when there can."""
        if role != "worker":
            return f"an all-reduce job has no {role}: only workers can be scaled"
        if count < self.terms.least:
            return f"the job needs at least {self.terms.least} workers (--min_workers)"
        plan = self.terms.plan
        most = self.terms.most or (0 if plan.share else plan.virtual)
        if most and count > most:
            limit = "--max_workers" if self.terms.most else "its virtual workers, fixed at submission"
            return f"the job takes at most {most} workers ({limit})"
        return ""

    @property
    def trained_out(self) -> bool:
        return self.terms.plan.over(self.step, self.records)

    @property
    def evaluated_out(self) -> bool:
        return not self.terms.validation_records or (self.trained_out and self.evaluated_at == self.step)

    @property
    def evaluated_at(self) -> int:
        return self.evaluations[-1][0] if self.evaluations else -1

    @property
    def parting(self) -> bool:
        """Whether leaving workers are still there, or what they wrote has yet to be published."""
        there = any(w.leaving and w.in_touch for w in self.membership.workers.values())
        return there or bool(self.saves.written) or self.saves.checkpoints.writing is not None

    @property
    def _last_word(self) -> float | None:
        """Until when the audit waits for disconnected workers, which may have skipped records; None: not at all."""
        begun = self.closing.exporter or self.closing.over
        asked = self.terms.audit and self.terms.max_bad_records and not begun
        until = self.membership.silent_until() if asked and self.trained_out else 0.0
        return until if until > self.now else None

    def stands_at(self, step: int, records: int) -> None:
        """So many steps are in the model; they trained so many records, if the plan does not know it."""
        self.step, self.records = step, self.terms.plan.trained(step, records)

    # The one mutator.

    def handle(self, event: e.Event, now: float) -> list[c.Command]:
        if self.outcome:
            return []
        self.now = now
        world = self.membership.generation if self.membership.training else 0
        out = self._route(event, now)
        while self.membership.to_evict:
            out += self._put_down(self.membership.to_evict.pop(0), "its world keeps breaking", now)
        if reason := self.membership.hopeless(now):
            out.append(c.FinishJob(Outcome.FAILED, reason))
        while self.replicas.not_to_be_had:
            out.append(c.Announce(f"{self.replicas.not_to_be_had.pop(0)}; continuing without it"))
        for started in [x for x in out if isinstance(x, c.StartWorld)]:
            if set(started.to) & set(started.members):  # and not only sent to a worker that leaves
                out += self._begin(started)
        if not any(isinstance(x, c.FinishJob) for x in out):
            out += self._follow(now)
        if self.membership.training and self.membership.generation != world:
            out += self._trains(now)
        out += self.changes.heard(event, out, self.membership.training, now)
        return ended(self, out)

    # Routing.

    def _route(self, event: e.Event, now: float) -> list[c.Command]:
        match event:
            case e.ReplicaJoined():
                return self._joined(event, now)
            case e.ReplicaDropped(name, incarnation):
                w = self.membership.workers.get(name)
                if w is None or w.incarnation != incarnation:
                    return self.replicas.handle(event, now)
                # Asked before leaving workers hear that training is paused, as everywhere.
                out = self.replicas.handle(event, now) + self._before_all_leave(name)
                return out + self.membership.dropped(name, now)
            case e.ReplicaGone():
                return self._gone(event, now)
            case e.ReplicaStarted() | e.ReplicaHeldUp() | e.TimePassed():
                return self._of_replicas(event, now) + self.membership.time_passed(now)
            case e.MasterStarted():
                self.membership.master_started(now)
                out = self._of_replicas(event, now)
                for name in list(self.membership.workers):
                    if self.replicas.replicas[name].state is State.GONE:
                        self._forget(name)
                        out += self.membership.gone(name, now)
                return out + self.saves.checkpoints.unanswered()
            case e.ReplicaLeaving(name):
                return self._leaving(name, now)
            case e.WorldConfirmed(worker, generation, state):
                self.holdings[worker] = event.records
                return self.membership.confirm(worker, generation, state, now)
            case e.WorldBroken():
                return self._broken(event, now)
            case e.WorldFormed(worker, generation):
                return self.membership.form(worker, generation, now)
            case e.StepsCommitted(_, generation, step, loss):
                if generation != self.membership.running_generation:
                    return []  # of a world that is over
                if step > self.step:
                    self.stands_at(step, event.records)
                self.loss = self.loss if loss is None else loss
                return self.membership.stepped(generation, step, now)
            case e.ModelEvaluated(worker, version, metrics):
                return self._evaluated(version, metrics) if worker in self.membership.running else []
            case e.ServerWrote(worker, cut, part, error):
                return self.saves.wrote(worker, cut, part, error, now)
            case e.CheckpointPublished(cut, directory, error):
                return self._published(cut, directory, error, now)
            case e.ModelExported():
                return self.closing.answered(event)
            case e.WorkerHung(worker, reason):
                r = self.replicas.replicas.get(worker)
                if r is None or worker not in self.membership.workers:
                    return []
                asked: list[c.Command] = [c.Announce(f"{worker} is hung: {reason}"), c.AskForStack(worker, reason)]
                return asked + self._put_down(worker, f"hung: {reason}", now, STACK_SECONDS)
            case e.RecordLeftOut(_, record, name, error):
                return self._left_out(BadRecord(record, name, error))
            case e.WorkerUnfit(worker, error):
                return [c.FinishJob(Outcome.FAILED, f"{worker}: {error}")]
            case e.StopRequested(reason):
                return self._stop(reason)
            case e.ScaleRequested(role, count):
                return self._scale(role, count, now)
            case _:
                return []

    def _of_replicas(self, event: e.Event, now: float) -> list[c.Command]:
        out = self.replicas.handle(event, now)
        for command in list(out):
            if isinstance(command, c.StopReplica) and command.grace_seconds == 0.0:
                out += self._lost(command.name, now)
                self._forget(command.name)
                out += self._before_all_leave(command.name) + self.membership.exclude(command.name, now)
        return out

    def _joined(self, event: e.ReplicaJoined, now: float) -> list[c.Command]:
        if not self.replicas.admits(event.name, event.incarnation):
            return []
        out, leaving = self.replicas.handle(event, now), event.capacity == 0
        found = self.membership.joined(event.name, event.incarnation, event.generation, event.fingerprint, leaving, now)
        out += [*self.saves.again(event.name), *(self._before_all_leave() if leaving else []), *found]
        return out + self.closing.again(event.name)

    def _gone(self, event: e.ReplicaGone, now: float) -> list[c.Command]:
        if not self.replicas.concerns(event.name, event.uid):
            return []
        w = self.membership.workers.get(event.name)
        if event.cause == FINISHED and w is not None and w.leaving:
            event = replace(event, cause=PREEMPTED)  # it was asked to leave, and did
        out: list[c.Command] = [] if w is not None and w.leaving else self._lost(event.name, now)
        out += self.replicas.handle(event, now)
        self._forget(event.name)
        out += self._before_all_leave(event.name)
        return out + self.membership.gone(event.name, now)

    def _forget(self, name: str) -> None:
        """It will not do what it was asked to."""
        self.holdings.pop(name, None)
        self.saves.forget(name, self.step)
        self.closing.forget(name)

    def _before_all_leave(self, lost: str = "") -> list[c.Command]:
        return self.saves.before_all_leave(self.membership.only_leavers(but=lost), self.step, self.now)

    def _broken(self, event: e.WorldBroken, now: float) -> list[c.Command]:
        out: list[c.Command] = []
        if event.unreadable and event.unreadable == self.membership.checkpoint[0]:
            out = self._damaged(event.error)
        found = self.membership.broken(event.worker, event.generation, event.suspects, now)
        if found and not out:
            out = [c.Announce(f"Generation {event.generation} broke at {event.worker}: {event.error}")]
        return out + found

    def _lost(self, name: str, now: float) -> list[c.Command]:
        if name in self.membership.members and self.membership.phase is not Phase.NONE:
            self.recoveries.append(Recovery(name, now, []))
        return []

    def _put_down(self, name: str, reason: str, now: float, grace_seconds: float = 0.0) -> list[c.Command]:
        """Stop a worker that is of no use, and replace it."""
        out = self._lost(name, now)
        self.replicas.replace(name, PREEMPTED, reason, now, out)
        out = [replace(x, grace_seconds=grace_seconds) if isinstance(x, c.StopReplica) else x for x in out]
        self._forget(name)
        out += self._before_all_leave(name) + self.membership.exclude(name, now)
        return out + self.replicas.handle(e.TimePassed(), now)

    def _leaving(self, name: str, now: float) -> list[c.Command]:
        if name not in self.membership.workers:
            return []  # it is being stopped anyway
        m, w = self.membership, self.membership.workers[name]
        if w.leaving:
            return []
        m.workers[name] = m.workers.pop(name)  # the last to leave
        told: list[c.Command] = [c.Announce(f"{name} received SIGTERM; leaving at the end of a step")]
        out = m.leave(name, now)
        return told + self._before_all_leave() + out  # asked before it hears that it may go

    def _trains(self, now: float) -> list[c.Command]:
        for r in self.recoveries:
            if r.seconds is None:
                r.seconds = now - r.at
        checkpoints = self.saves.checkpoints
        checkpoints.reading = ""
        if checkpoints.next_time is None:
            checkpoints.started(now)
        size = len(self.membership.members)
        trains = "1 worker trains" if size == 1 else f"{size} workers train"
        return [c.Announce(f"Generation {self.membership.generation}: {trains} from step {self.step}")]

    def _begin(self, world: c.StartWorld) -> list[c.Command]:
        """A world starts: below the newest step only where all workers that held more are lost."""
        step = world.state[1]
        self.repeated += max(0, self.step - step)
        self.stands_at(step, self._records_of(world))
        self.saves.checkpoints.reading = world.directory
        self.evaluations = [x for x in self.evaluations if x[0] <= step]
        if self.closing.exporter not in world.members:
            self.closing.exporter = ""
        return self.saves.begin(world.members, step)

    def _records_of(self, world: c.StartWorld) -> int:
        """Trained in the state that a world begins with: by the checkpoint, or the worker that brings the state."""
        saved = [k.position.records for k in self.saves.checkpoints.known if k.directory == world.directory]
        held = [self.holdings[n] for n in world.members if n in self.holdings and n not in world.copies]
        return next(iter(saved if world.directory else held), self.records)

    def _evaluated(self, version: int, metrics: str) -> list[c.Command]:
        if any(v == version for v, _ in self.evaluations):
            return []
        self.evaluations.append((version, metrics))
        self.evaluations.sort()
        return [c.ReportMetrics(version, metrics)]

    def _left_out(self, bad: BadRecord) -> list[c.Command]:
        if any(b.record == bad.record for b in self.bad_records):
            return []
        self.bad_records.append(bad)
        if len(self.bad_records) > self.terms.max_bad_records:
            return [c.FinishJob(Outcome.FAILED, bad.one_too_many(self.terms.max_bad_records))]
        return [c.Announce(f"Skipping {bad.name}: it cannot be trained ({len(self.bad_records)} so far)")]

    # Checkpoints.

    def _published(self, cut: int, directory: str, error: str, now: float) -> list[c.Command]:
        mine = cut == (self.saves.checkpoints.writing.cut if self.saves.checkpoints.writing is not None else 0)
        out = self.saves.published(cut, directory, error, now)
        if mine and not error:
            newest = self.saves.checkpoints.newest
            self.checkpoint = newest.directory
            self.membership.checkpoint = (newest.directory, newest.position.version)
        return out

    def _damaged(self, error: str) -> list[c.Command]:
        """The newest checkpoint cannot be read: the one before it, if there is one."""
        checkpoints = self.saves.checkpoints
        bad, to = checkpoints.newest, checkpoints.damaged()
        if to is None:
            return [c.FinishJob(Outcome.FAILED, f"no checkpoint can be read: {bad}: {error}")]
        self.membership.checkpoint = (to.directory, to.position.version)
        return [c.Announce(f"Cannot read the checkpoint of {bad}: {error}; continuing from {to}")]

    # What users ask for.

    def _stop(self, reason: str) -> list[c.Command]:
        if self.saves.stopping:
            return []
        self.saves.stopping = reason
        if self.terms.schedule.nowhere:
            return [c.FinishJob(Outcome.STOPPED, f"{reason}; {NOWHERE}")]
        if self.step and self.membership.holders:
            return [c.Announce(f"Stopping the job ({reason}); saving the state first")]
        if not self.step and not self.saves.checkpoints.newest.directory:
            return [c.FinishJob(Outcome.STOPPED, f"{reason}; nothing was trained yet")]
        return []

    def _scale(self, role: str, count: int, now: float) -> list[c.Command]:
        refused = self.refused(role, count)
        if refused or self.saves.stopping:
            return [c.Announce(f"Cannot scale {role} to {count}: {refused or 'the job is stopping'}")]
        out: list[c.Command] = [c.Announce(f"Scaling to {count} workers")]
        out += self.replicas.resize("worker", count + self.terms.standby, now)
        return out + self.membership.scaled(count, now)

    # What follows.

    def _follow(self, now: float) -> list[c.Command]:
        saves = self.saves
        out = saves.overdue(self.step, now)
        if any(isinstance(x, c.FinishJob) for x in out):
            return out
        if saves.stopping:
            return out + ([] if saves.last_cut in saves.open_cuts else self._stop_again(now))
        if self.trained_out:
            out += saves.end(self.step)
            if self.evaluated_out and not saves.owed:
                return out + self._conclude()
        return out + saves.due(self.step, self.trained_out, self.membership, now)

    def _conclude(self) -> list[c.Command]:
        """Everything is trained."""
        if not self.closing.over and (self.terms.export or self.terms.audit):
            if self._last_word is None and not self.closing.exporter and (holder := self.membership.holder()):
                return self.closing.ask(holder)
            return []
        if self.saves.lasting_open:
            return []  # the user asked for it
        superfluous = self.saves.checkpoints.superfluous()
        if any(self.checkpoint in s.directories for s in superfluous):
            self.checkpoint = ""
        done = c.FinishJob(Outcome.SUCCEEDED, f"all {self.records} records are trained")
        return [*self.saves.checkpoints.give_up(), *superfluous, done]

    def _stop_again(self, now: float) -> list[c.Command]:
        """The state is to be saved, or the worker that was asked is gone: ask another, or use the newest checkpoint."""
        saves = self.saves
        if self.step and (keeper := self.membership.keeper()):
            saves.last_cut = saves.cuts + 1
            return saves.ask(keeper, NEXT, True, self.step, now)
        if self.step and self.membership.holders:
            return []  # out of touch, for the moment
        newest = saves.checkpoints.newest
        held = f"the checkpoint holds step {newest.position.version}" if newest.directory else "nothing is saved"
        return [c.FinishJob(Outcome.STOPPED, f"{saves.stopping}; {held}")]
