"""What an all-reduce job is about, fixed at submission."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl.core.checkpoints import Schedule
from elasticdl.core.replicas import Budget
from elasticdl.core.steps import StepPlan


@dataclass(frozen=True)
class AllreduceTerms:
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
