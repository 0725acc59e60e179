"""`Trainer`: the workers' part of a strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from elasticdl.frameworks.arrays import Arrays
from elasticdl.frameworks.metrics import MetricsAccumulator
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.job import strategies
from elasticdl.job.spec import JobSpec
from elasticdl.worker.batches import Source


class Built(Protocol):
    """A model of whichever framework, built from a model file."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What users should know about it."""

    def new_metrics(self) -> MetricsAccumulator: ...


class Trainer(Protocol):
    def build(self, spec: JobSpec, code: ModelFile, sample: Callable[[], Arrays]) -> Built:
        """The model as a worker builds it, for the check before a job starts. `sample` gives some records' features."""

    def work(self, spec: JobSpec, replica: str, code: ModelFile, sources: Mapping[str, Source]) -> int:
        """Take part in the job until it is over, or this worker has to leave; the exit code."""


def trainer_of(spec: JobSpec) -> Trainer:
    found: Trainer = strategies.load(spec, "worker", "WORKER")
    return found
