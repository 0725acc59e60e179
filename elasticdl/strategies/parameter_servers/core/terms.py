"""What a job with parameter servers is about, fixed at submission."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl.core.checkpoints import Schedule
from elasticdl.core.plan import Plan
from elasticdl.core.replicas import Budget


@dataclass(frozen=True)
class ParameterServerTerms:
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
    by_hand: bool = False  # workers are started by hand; each that connects takes part
