"""The state of an all-reduce job: its terms, its machines, what was asked for, and the questions about all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from elasticdl.core.checkpoints import Checkpoints, Schedule
from elasticdl.core.machine import Progress, Recovery
from elasticdl.core.plan import BadRecord
from elasticdl.core.replicas import Budget, Replicas
from elasticdl.core.steps import StepPlan
from elasticdl.job.outcome import Outcome
from elasticdl.strategies.allreduce.core.changes import Changes
from elasticdl.strategies.allreduce.core.membership import Membership

NEXT = 0  # save at the next step
SAVE_HANGS = 4  # a state that is not written in so many times --hang_seconds never will be


@dataclass(frozen=True)
class AllreduceTerms:
    """What the job is about, fixed at submission."""

    job: str
    workers: int
    plan: StepPlan
    least: int = 1
    most: int = 0  # 0: as many as there are virtual workers
    standby: int = 0
    deterministic: bool = True
    grace_seconds: float = 30.0
    validation_records: int = 0
    evaluation_steps: int = 0
    export: bool = False
    audit: bool = False
    budget: Budget = field(default_factory=Budget)
    schedule: Schedule = field(default_factory=Schedule)
    mode: str = ""
    max_bad_records: int = 0


@dataclass
class Save:
    """A state that a worker was asked to write."""

    cut: int
    worker: str
    at: int
    lasting: bool
    since: float | None = None  # when that step was there


@dataclass
class AllreduceState:
    """What is known of the job, and the questions that concern several of its machines."""

    terms: AllreduceTerms
    replicas: Replicas
    membership: Membership
    checkpoints: Checkpoints
    step: int = 0  # the newest that was heard of
    records: int = 0  # trained by so many steps
    holdings: dict[str, int] = field(default_factory=dict)  # records in the state that a worker confirmed last
    loss: float | None = None
    evaluations: list[tuple[int, str]] = field(default_factory=list)  # version, metrics as JSON
    saves: list[Save] = field(default_factory=list)
    written: list[tuple[Save, int, str]] = field(default_factory=list)  # on disk and not yet published: step, part
    cuts: int = 0
    owed: bool = False  # who was to write a lasting checkpoint went when its step was there already
    unsaved: int = 0  # the newest step whose lasting checkpoint could not be written
    checkpoint: str = ""  # the newest on disk
    exporter: str = ""  # who was asked to write the model
    exports: int = 0  # how often somebody was
    exported: str = ""
    audited: str = ""
    concluded: bool = False  # the export and the audit are done
    stopping: str = ""
    last_cut: int = 0  # the one that a stop waits for
    outcome: Outcome | None = None
    reason: str = ""
    recoveries: list[Recovery] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)
    bad_records: list[BadRecord] = field(default_factory=list)  # left out of their steps, whoever computed those
    repeated: int = 0  # steps trained again because everybody was lost
    now: float = 0.0  # of the last event

    @classmethod
    def new(cls, terms: AllreduceTerms) -> Self:
        membership = Membership(terms.workers, terms.least, terms.grace_seconds, terms.deterministic)
        wanted = {"worker": terms.workers + terms.standby}
        return cls(
            terms,
            Replicas.wanting(terms.job, wanted, terms.budget),
            membership,
            Checkpoints((), terms.schedule),
        )

    # Questions.

    def deadline(self) -> float | None:
        """When `TimePassed` should come next."""
        times = [self.replicas.deadline(), self.membership.deadline(self.now)]
        if self._may_save:
            times.append(self.checkpoints.next_time)
        times.append(self._last_word)
        times += [s.since + self.save_seconds for s in self.saves if s.since is not None]
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
            return f"the job needs at least {self.terms.least} of them (--min_workers)"
        plan = self.terms.plan
        most = self.terms.most or (0 if plan.share else plan.virtual)
        if most and count > most:
            limit = "--max_workers" if self.terms.most else "its virtual workers, fixed at submission"
            return f"the job takes at most {most} ({limit})"
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
    def open_cuts(self) -> set[int]:
        """Those that somebody was asked to write and that have yet to be published, in any order."""
        writing = self.checkpoints.writing
        cuts = {s.cut for s in self.saves} | {s.cut for s, _, _ in self.written}
        return cuts | ({writing.cut} if writing is not None else set())

    @property
    def parting(self) -> bool:
        """Whether workers that were told to go are still there, or what they wrote has yet to be published."""
        there = any(w.leaving and w.in_touch for w in self.membership.workers.values())
        return there or bool(self.written) or self.checkpoints.writing is not None

    @property
    def save_seconds(self) -> float:
        """How long a state may take to be written."""
        return SAVE_HANGS * self.terms.budget.hang_seconds

    @property
    def _may_save(self) -> bool:
        """Whether the clock may ask for a checkpoint."""
        c = self.checkpoints
        idle = c.writing is None and all(s.lasting for s in self.saves) and not self.stopping
        news = self.step > c.newest.position.version and not self.trained_out
        return idle and news and self.membership.training and bool(self.membership.holder())

    @property
    def _last_word(self) -> float | None:
        """Until when the audit waits for those out of touch, who may have set records aside; None: not at all."""
        asked = self.terms.audit and self.terms.max_bad_records and not self.exporter and not self.concluded
        until = self.membership.silent_until() if asked and self.trained_out else 0.0
        return until if until > self.now else None

    def stands_at(self, step: int, records: int) -> None:
        """So many steps are in the model; they trained so many records, if the plan does not know it."""
        self.step, self.records = step, self.terms.plan.trained(step, records)
