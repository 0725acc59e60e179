"""The worker of an all-reduce job: trains a model file with the elastic loop of `elasticdl.api`."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from elasticdl.api.elastic import Elastic
from elasticdl.api.job import connect, loop_terms, numbering
from elasticdl.api.terms import Hooks, StepPart
from elasticdl.collective.control import SharedSession
from elasticdl.core import steps
from elasticdl.core.steps import StepPlan
from elasticdl.errors import DataError, ModelError
from elasticdl.frameworks.arrays import Arrays
from elasticdl.frameworks.determinism import random_state_kept
from elasticdl.frameworks.loading import load_replica
from elasticdl.frameworks.memory import have_at_hand
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.replica.model_replica import ModelReplica
from elasticdl.job.loglines import loss_line
from elasticdl.job.spec import JobSpec
from elasticdl.strategies.allreduce.parts_ahead import AHEAD, PartsAhead
from elasticdl.worker.bad_records import Sieve
from elasticdl.worker.batches import Source, load
from elasticdl.worker.phases import time_line

log = logging.getLogger(__name__)

STEP_VECTORS = 5  # as large as the gradient, that a copy of the state and a first step take: measured


class ReplicaModel:
    """A ModelReplica as the elastic loop sees it."""

    def __init__(self, replica: ModelReplica) -> None:
        self.replica, self.device = replica, replica.device
        self.size = replica.gradient_size + replica.buffer_size
        self.values, self.room = replica.values, 0
        self._given: torch.Tensor | None = None

    def begin(self, seed: int) -> None:
        """Its parts begin by themselves."""

    def compute(self, features: Arrays, labels: Arrays, seed: int) -> float:
        loss, self._given = self.replica.part(features, labels, seed, self.room)
        return loss

    def contribute(self, weight: float) -> torch.Tensor:
        assert self._given is not None
        given, self._given = self._given, None
        if weight != 1.0:
            given[: len(given) - self.room] *= weight
        return given

    def abandon(self) -> None:
        """Its parts end by themselves."""
        self._given = None

    def apply(self, mean: torch.Tensor, step: int, epoch: int, rate_scale: float) -> None:
        self.replica.apply(mean, step, epoch, rate_scale)

    def state(self) -> Mapping[str, torch.Tensor]:
        return self.replica.state()

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self.replica.load(state)


class ReplicaEvaluation:
    """The model's own metrics over the validation data, in as many parts as there are virtual workers."""

    def __init__(self, replica: ModelReplica, code: ModelFile, source: Source, virtual: int, minibatch: int) -> None:
        self._replica, self._code, self._source = replica, code, source
        self._virtual, self._minibatch = virtual, minibatch

    def part(self, virtual: int, check: Callable[[], None]) -> bytes:
        records = self._source.dataset.records
        first, last = (records * v // self._virtual for v in (virtual, virtual + 1))
        metrics = self._replica.new_metrics()
        for start in range(first, last, self._minibatch):
            check()
            stop = min(start + self._minibatch, last)
            with random_state_kept(steps.part_seed(0, start, virtual)):
                batch = load(self._source, 0, start, stop, (), self._code.feed)
            with self._code.running("evaluating"):
                metrics.update(batch.labels, self._replica.predict(batch.features))
        return metrics.state()

    def merged(self, parts: Sequence[bytes]) -> Mapping[str, float]:
        metrics = self._replica.new_metrics()
        metrics.merge(parts)
        return metrics.result()


def work(spec: JobSpec, name: str, code: ModelFile, sources: Mapping[str, Source]) -> int:
    """Train until the job is over or this worker receives SIGTERM; its exit code."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the launcher asks where a worker hangs
    training, validation = sources["training"], sources.get("evaluation")

    def sample() -> Arrays:
        """Features of the first records, for models that learn their shapes from data."""
        count = min(spec.minibatch_size, training.dataset.records)
        metadata = training.reader.metadata
        good = Sieve(
            lambda start, stop: training.read(0, start, stop),
            lambda records: code.feed(records, training.mode, metadata),
            lambda position: training.number(0, position),
        )
        good.sift(0, count)
        return code.feed(good.records, training.mode, metadata)[0]

    replica = load_replica(code, spec.seed, sample, deterministic=spec.deterministic)
    for note in replica.notes:
        log.info("%s", note)
    plan = StepPlan.of(spec, training.dataset.records)
    evaluation = None
    if validation is not None:
        evaluation = ReplicaEvaluation(replica, code, validation, plan.virtual, spec.minibatch_size)

    done = 0

    def committed(step: int, loss: float) -> None:
        nonlocal done
        done += 1
        if done == 1 or step % spec.log_loss_steps == 0:
            log.info(loss_line(loss, step))

    def export(directory: Path) -> None:
        log.info("Wrote %s", ", ".join(replica.export(directory)))

    _warm_up(replica, code, training, plan, spec.seed)
    if replica.device.type == "cpu":
        have_at_hand(STEP_VECTORS * 4 * (replica.gradient_size + replica.buffer_size))
    control = connect(spec, name, replica.device)
    log.info("Ready: %d trainable values, on %s", replica.gradient_size, replica.device)
    model = ReplicaModel(replica)
    hooks = Hooks(committed, export, evaluation, name_of=training.name_of)
    elastic = Elastic(model, loop_terms(spec, plan), control, numbering(spec, training.dataset), hooks)
    ahead = PartsAhead(training, code.feed, spec.seed)
    try:
        for part in elastic.parts():
            with elastic.reporting_errors():
                elastic.step(_compute(model, part, ahead, elastic, control))
    finally:
        control.close()
    shutdown = control.call(lambda s: s.shutdown)
    if done:
        log.info(time_line(control.call(lambda s: s.activity.seconds), done, "step"))
    log.info("Done: %s", shutdown or "leaving")
    # Leaving on SIGTERM is no normal end, and the master may not know why.
    return 0 if shutdown else 128 + signal.SIGTERM


def _warm_up(replica: ModelReplica, code: ModelFile, training: Source, plan: StepPlan, seed: int) -> None:
    """Compute a part and drop it, before other workers wait for this one: frameworks initialize or compile first.

    Errors are reported when it is trained.
    """
    step = plan.step(0, 0, 1)
    part = next(part for v in range(step.parts) if (part := step.part(v)).records)
    with contextlib.suppress(ModelError, DataError), random_state_kept(steps.part_seed(seed, 0, part.virtual)):
        batch = load(training, part.epoch, part.start, part.stop, (), code.feed)
        replica.part(batch.features, batch.labels, steps.part_seed(seed, 0, part.virtual))


def _compute(
    model: ReplicaModel, part: StepPart, ahead: PartsAhead, elastic: Elastic, control: SharedSession
) -> float | None:
    control.doing("data")
    this, *then = elastic.upcoming(AHEAD + 1)
    assert (this.step, this.virtual) == (part.step, part.virtual)
    minibatch = ahead.take(this, then)
    if minibatch.bad:
        part = elastic.leave_out(minibatch.bad)
    if not minibatch.records:
        return None
    elastic.computing(part)
    return model.compute(minibatch.features, minibatch.labels, part.seed)
