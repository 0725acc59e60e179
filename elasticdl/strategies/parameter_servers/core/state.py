"""The state of a whole job: its machines, what was asked for, and the questions that concern several of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from elasticdl.core.checkpoints import Checkpoints, Schedule
from elasticdl.core.evaluation import Evaluation
from elasticdl.core.machine import Progress, Recovery
from elasticdl.core.plan import Plan, Shard
from elasticdl.core.replicas import Budget, Replicas
from elasticdl.core.shards import Shards
from elasticdl.job.outcome import Outcome
from elasticdl.strategies.parameter_servers.core.cuts import Cuts, Phase
from elasticdl.strategies.parameter_servers.core.scaling import Scaling, server_names

BY_HAND = "the workers of this job are started by hand: start another, or end one"


@dataclass(frozen=True)
class ParameterServerTerms:
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
    by_hand: bool = False  # nobody launches workers: whoever is started somewhere, and comes, takes part


@dataclass
class JobState:
    terms: ParameterServerTerms
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
    outcome: Outcome | None = None
    reason: str = ""
    servers_leaving: set[str] = field(default_factory=set)  # told to go: they wait for their part to be saved
    checkpoint: str = ""  # the newest on disk
    rollbacks: int = 0  # because a server was lost
    repeated: int = 0  # versions trained again after them
    rolled_back: float | None = None  # when the last one was
    loss: float | None = None
    recoveries: list[Recovery] = field(default_factory=list)

    @classmethod
    def new(cls, terms: ParameterServerTerms) -> Self:
        wanted = {"ps": terms.servers, "worker": 0 if terms.by_hand else terms.workers}
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

    # Questions.

    def deadline(self) -> float | None:
        """When `TimePassed` should come next."""
        times = [t for t in [self.replicas.deadline()] if t is not None]
        if not self._standing_still:
            idle = [self.shards.idle_since(r.name) for r in self.replicas.joined("worker")]
            times += [t + self.terms.budget.hang_seconds for t in idle if t is not None]
        due = self.checkpoints.deadline(self.shards.version) if self._may_cut else None
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
        return self.scaling.refused(role, count)

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
    def parting(self) -> bool:
        """Whether servers that were told to go still wait for what they hold to be saved."""
        return any(r.name in self.servers_leaving for r in self.replicas.joined("ps"))

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

    def _unclosed(self) -> set[str]:
        return {s.id for s in self.shards.open_training()}
