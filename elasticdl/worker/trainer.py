"""`Trainer`: the workers' part of a strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from elasticdl.frameworks.arrays import Arrays
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.replica.model_replica import ModelReplica
from elasticdl.frameworks.trainable import Trainable
from elasticdl.job.spec import JobSpec
from elasticdl.job.strategy import load
from elasticdl.worker.batches import Source


class Trainer(Protocol):
    def build(self, spec: JobSpec, code: ModelFile, sample: Callable[[], Arrays]) -> Trainable | ModelReplica:
        """The model as a worker builds it, for the check before a job starts. `sample` gives some records' features."""

    def work(self, spec: JobSpec, replica: str, code: ModelFile, sources: Mapping[str, Source]) -> int:
        """Take part in the job until it is over, or this worker has to leave; the exit code."""


def trainer_of(spec: JobSpec) -> Trainer:
    found: Trainer = load(spec, "worker", "WORKER")
    return found
