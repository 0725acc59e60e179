"""What a worker does with a lease: train its batches, evaluate them, sum metrics up, export the model."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from elasticdl import faults
from elasticdl.core.plan import Plan
from elasticdl.errors import DataError, JobFailed, ModelError, Refused, ScheduleError, WireError
from elasticdl.frameworks.arrays import FloatArray, IdArray
from elasticdl.frameworks.clipping import clipped
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.trainable import StepResult, Trainable
from elasticdl.job.loglines import loss_line
from elasticdl.job.spec import JobSpec
from elasticdl.ps.client import Batch, Client, Interrupted, Resend, Stale, TimelineOver
from elasticdl.strategies.parameter_servers import audit, finite
from elasticdl.strategies.parameter_servers.dense import Dense
from elasticdl.worker.batches import BatchesAhead, Minibatch, Source, load
from elasticdl.worker.control import Control
from elasticdl.worker.phases import Phases
from elasticdl.worker.session import Work

log = logging.getLogger(__name__)


@dataclass
class ServerRows:
    """Rows from the servers: live ones are born on first use, those of a pinned view never."""

    client: Client
    view: int = 0
    create: bool = True
    phases: Phases = field(default_factory=Phases)

    def rows(self, table: str, ids: IdArray) -> FloatArray:
        with self.phases("pull rows"):
            return self.client.rows(table, ids, self.view, self.create)

    def distinct(self, ids: IdArray) -> tuple[IdArray, IdArray]:
        with self.phases("distinct ids"):
            return self.client.unique(ids)

    def chunks(self, table: str) -> Iterator[tuple[IdArray, FloatArray]]:
        return self.client.export_rows(table)


class Worker:
    def __init__(
        self,
        spec: JobSpec,
        code: ModelFile,
        model: Trainable,
        training: Source,
        validation: Source | None,
        control: Control,
        client: Client,
    ) -> None:
        self.spec, self.model, self.code = spec, model, code
        self.training, self.validation = training, validation
        self.control, self.client = control, client
        self.ahead = BatchesAhead(code.feed, spec.minibatch_size)
        self._logged = -1
        self._evaluating = 0  # the view whose values the model holds
        self._timeline = 0  # the one in which the servers know the model
        self.plan = Plan.of(spec, training.dataset.records)
        self.dense = Dense(client, spec.get_model_steps)
        self._round_to_come = False
        self.phases, self._trained = Phases(), 0

    def run(self) -> None:
        """Work until nothing is left, or the master ends this worker."""
        schedule = self.model.schedule
        log.info("Learning rate: %s", schedule.name if schedule else self.model.parameters.optimizer.learning_rate)
        while (work := self._next()) is not None:
            self.client.called_off_by(lambda work=work: self._called_off(work))  # type: ignore[misc]
            try:
                self._join_timeline()
                self._work(work)
            except Interrupted:
                if self.control.leaving and not self.control.gone(work):
                    self.control.returned(work, "the worker is leaving")
            except TimelineOver as over:
                log.info("Waiting for the servers: %s", over)
                self.control.wait_for_timeline_after(self.client.timeline)
            except Refused as refusal:
                log.warning("Returned %s: %s", work.shard, refusal)
                self.control.returned(work, str(refusal))
            except ScheduleError as error:  # not the fault of a record: no use in trying others
                self.control.unfit(str(error))
                raise JobFailed(str(error)) from error
            except (ModelError, DataError) as error:
                log.error("Batch %d of %s failed\n%s", work.next_batch, work.shard, error)
                self.control.failed(work, str(error))

        if self._trained:
            log.info(self.phases.line(self._trained))

    def _next(self) -> Work | None:
        with self.phases("wait for work"):
            return self.control.wait_for_work()

    def _called_off(self, work: Work) -> bool:
        """Whether to stop waiting for a server: the lease is gone, or this worker got the batch that it waits for."""
        if self.control.gone(work) or self.control.preceded(work):
            return True
        return self._round_to_come and self.control.leaving

    def _join_timeline(self) -> None:
        """Before the first lease of a timeline: connect to the servers and declare the model."""
        addresses, timeline = self.control.place()
        if timeline == self._timeline or not addresses:
            return
        if timeline != self.client.timeline:
            self.client.move(addresses, timeline)
        self._evaluating = 0
        try:
            self.client.declare(*self.model.initial())
        except Refused as refusal:
            reason = f"the servers rejected this model: {refusal}"
            self.control.unfit(reason)
            raise JobFailed(reason) from refusal
        self._timeline = timeline
        self.dense.forget()

    def _work(self, work: Work) -> None:
        match work.kind:
            case "train":
                self._train(work)
            case "evaluate":
                self._evaluate(work)
            case "summarize":
                metrics = self.model.new_metrics()
                metrics.merge(base64.b64decode(part) for part in json.loads(work.payload))
                self.control.completed(work, json.dumps(metrics.result()))
            case "audit":
                total = self.training.dataset.records
                self.control.completed(work, audit.verdict(self.client, self.spec, total, work.bad_records))
            case "export":
                self._export(work)
            case "probe":
                self._probe(work)
            case kind:
                raise Refused(f"this worker does not know how to {kind}")

    # Training.

    def _train(self, work: Work) -> None:
        self._evaluating = 0
        while work.next_batch < work.batches and not self.control.gone(work):
            try:
                self._batch(work, work.next_batch)
            except Resend as resend:
                log.warning("Going back to batch %d of %s: %s", resend.next_batch, work.shard, resend)
                work.next_batch = resend.next_batch
            except Stale as stale:
                log.info("Recomputing %s on newer values: %s", work.shard, stale)
            if self.control.leaving and work.next_batch < work.batches:
                self.control.returned(work, "the worker is leaving")

    def _batch(self, work: Work, number: int) -> None:
        with self.phases("data"):
            minibatch = self.ahead.take(self.training, work, number, self._coming(work, number))
        with self.phases("pull dense"):
            trainable, state, pulled = self._values(work)
        result, skip = StepResult(0.0, np.zeros_like(trainable), state), False
        if minibatch.records:  # else every record of it was set aside
            with self.phases("compute"):
                self.model.assign(trainable, state)
                result = self._step(minibatch, ServerRows(self.client, phases=self.phases))
            if skip := self._not_finite(work, number, minibatch, result):
                result = StepResult(result.loss, np.zeros_like(trainable), state)
            result = clipped(result, self.model.parameters)
        batch = Batch(work.round, work.index, work.attempt, number)
        records = 0 if skip else minibatch.records
        rows = {**result.rows, **audit.rows(minibatch.numbers)} if self.spec.audit else result.rows
        rate = self.model.schedule.to_send(pulled, work.round) if self.model.schedule else 0.0
        try:
            difference = result.state - state
            with self.phases("push"):
                version = self.client.push(batch, result.gradients, difference, rows, pulled, rate, records)
        except WireError:
            self.dense.forget()
            raise
        if records:
            self.dense.moved(result.gradients, difference, rate)
        else:
            self.dense.passed()
        faults.point("worker.after_ack")
        if number + 1 == work.batches:
            faults.point("worker.before_completion")
        self.control.committed(work, number + 1, result.loss, skip)
        self._trained += 1
        every = self.spec.log_loss_steps
        if version and version // every > self._logged:  # 0: the first round is not whole yet
            self._logged = version // every
            log.info(loss_line(result.loss, version))

    def _values(self, work: Work) -> tuple[FloatArray, FloatArray, int]:
        """The values that a batch is computed on; in synchronous training they include the rounds before it."""
        if not self.plan.synchronous:
            return self.dense.get()
        self._round_to_come = True
        try:
            return self.dense.get(at_least=self.plan.version_needed(work.round, work.index))
        finally:
            self._round_to_come = False

    def _not_finite(self, work: Work, number: int, minibatch: Minibatch, result: StepResult) -> bool:
        """Whether to skip a batch because of non-finite gradients; without --nonfinite_gradients=skip the job fails."""
        found = finite.trouble(result, self.model.parameters)
        if not found:
            return False
        where = f"batch {number} of {work.shard} ({self.training.named(minibatch.numbers)})"
        if self.spec.nonfinite_gradients == "fail":
            reason = f"non-finite values: {found}, in {where}. --nonfinite_gradients=skip skips such batches."
            self.control.unfit(reason)
            raise JobFailed(reason)
        log.warning("Skipped %s: non-finite values in %s", where, found)
        return True

    def _step(self, minibatch: Minibatch, rows: ServerRows) -> StepResult:
        with self.code.running("computing a training step"):
            return self.model.step(minibatch.features, minibatch.labels, rows)

    def _coming(self, work: Work, number: int) -> list[tuple[Source, Work, int]]:
        """The batches after this one: of the same lease, then the next lease's first.

        A batch that may crash the process is not read ahead, so that a crash is blamed on the right one.
        """
        if work.careful:
            return []
        out = [(self.training, work, n) for n in range(number + 1, work.batches)]
        for other in self.control.queued():
            if other.kind == "train" and other.shard != work.shard and not other.careful:
                out.append((self.training, other, other.next_batch))
        return out

    def _probe(self, work: Work) -> None:
        """Compute a part of a batch that crashes workers, and push nothing."""
        self._evaluating = 0
        trainable, state, _ = self.client.pull()
        self.model.assign(trainable, state)
        suspects = load(self.training, work.round, work.start, work.stop, work.bad_records, self.code.feed)
        if suspects.records:
            self._step(suspects, ServerRows(self.client, create=False))
        self.control.completed(work, "")

    # Everything else.

    def _evaluate(self, work: Work) -> None:
        assert self.validation is not None
        view = int(work.payload)
        if self._evaluating != view:
            trainable, state, _ = self.client.pull(view)
            self.model.assign(trainable, state)
            self._evaluating = view
        metrics = self.model.new_metrics()
        rows = ServerRows(self.client, view)
        for number in range(work.batches):
            if self.control.gone(work):
                return
            then = [(self.validation, work, n) for n in range(number + 1, work.batches)]
            minibatch = self.ahead.take(self.validation, work, number, then)
            with self.code.running("evaluating"):
                metrics.update(minibatch.labels, self.model.predict(minibatch.features, rows))
            self.control.committed(work, number + 1, 0.0)
        self.control.completed(work, base64.b64encode(metrics.state()).decode())

    def _export(self, work: Work) -> None:
        trainable, state, _ = self.client.pull()
        self.model.assign(trainable, state)
        self._evaluating = 0
        directory = Path(str(self.spec.output))
        files = self.model.export(directory, ServerRows(self.client, create=False))
        log.info("Wrote %s to %s", ", ".join(files), directory)
        self.control.completed(work, str(directory))
