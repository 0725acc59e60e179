"""What the workers of an all-reduce job do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from elasticdl.frameworks.arrays import Arrays
from elasticdl.frameworks.loading import load_replica
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.replica.model_replica import ModelReplica
from elasticdl.job.spec import JobSpec
from elasticdl.worker.batches import Source
from elasticdl.worker.trainer import Trainer


class AllreduceTrainer:
    def build(self, spec: JobSpec, code: ModelFile, sample: Callable[[], Arrays]) -> ModelReplica:
        return load_replica(code, spec.seed, sample, deterministic=spec.deterministic)

    def work(self, spec: JobSpec, replica: str, code: ModelFile, sources: Mapping[str, Source]) -> int:
        from elasticdl.strategies.allreduce import training  # here: it needs torch, and the check may do without

        return training.work(spec, replica, code, sources)


WORKER: Trainer = AllreduceTrainer()
