"""How a user's program becomes a worker of a job: `join()`, and the elastic loop over its model."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from elasticdl import faults
from elasticdl.api import state_files
from elasticdl.api.elastic import Elastic
from elasticdl.api.evaluation import RecordEvaluation
from elasticdl.api.terms import Hooks, LoopTerms, StepPart
from elasticdl.api.torch_model import Stateful, TorchModel
from elasticdl.collective.buckets import BUCKET_FLOATS
from elasticdl.collective.control import Alone, SharedSession, WorldControl
from elasticdl.collective.fingerprint import fingerprint
from elasticdl.collective.session import WorldSession
from elasticdl.core.steps import StepPlan
from elasticdl.data.dataset import DataFile, Dataset
from elasticdl.data.order import EpochOrder
from elasticdl.data.ranges import epoch_order
from elasticdl.errors import Problem, Unreachable, UsageError
from elasticdl.frameworks.determinism import use_deterministic_algorithms
from elasticdl.job import names
from elasticdl.job.loglines import configure_logging
from elasticdl.job.spec import JobSpec
from elasticdl.wire import datasets

log = logging.getLogger(__name__)

LOCAL_HOST = "127.0.0.1"


def join(**knobs: Any) -> JoinedJob:
    """Become a worker of the job that started this process, or, without one, a job of one worker.

    Knobs such as `minibatch_size=32` describe the job only where there is no master; else `elasticdl train` does.
    """
    file, replica = os.environ.get(names.ENV_JOB_FILE), os.environ.get(names.ENV_REPLICA)
    if not file or not replica:
        spec = JobSpec.model_validate({"num_workers": 1, **knobs})
        return JoinedJob(spec, "alone", {})
    spec = JobSpec.from_json(Path(file).read_bytes())
    configure_logging(spec.log_level, replica)
    faults.arm(replica)
    return JoinedJob(spec, replica, datasets.described(Path(file), spec))


class JoinedJob:
    """The job that this process is a worker of."""

    def __init__(self, spec: JobSpec, replica: str, datasets: Mapping[str, str]) -> None:
        self.spec, self.replica, self._datasets = spec, replica, datasets
        faulthandler.register(signal.SIGUSR1, all_threads=True)  # prints stack traces

    @property
    def alone(self) -> bool:
        return names.ENV_REPLICA not in os.environ

    def elastic(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        records: int | None = None,
        scheduler: Any = None,
        before_update: Callable[[], Any] | None = None,
        state: Mapping[str, Stateful | torch.Tensor] | None = None,
        evaluate: Callable[[npt.NDArray[np.int64]], Mapping[str, float]] | None = None,
        validation_records: int | None = None,
        export: Callable[[Path], None] | None = None,
        committed: Callable[[int, float], None] | None = None,
        evaluated: Callable[[int, Mapping[str, float]], None] | None = None,
        restore: str | Path | None = None,
        bucket_floats: int = BUCKET_FLOATS,
    ) -> Elastic:
        """The step loop over a model. Workers that join later receive model, optimizer, scheduler and `state`.

        `records` is the size of the data set, where --training_data does not give it. `before_update` runs with the
        mean gradients in place. `evaluate` gives mean metrics over some validation records. `export` writes the trained
        model to an empty folder, whose content is moved to --output when it is complete; by default the weights are
        written as safetensors. `committed` is called with every step and its loss, `evaluated` with every evaluation.
        `restore` is a checkpoint to start from where there is no master. Without determinism, gradients are sent during
        the backward pass, at least `bucket_floats` of them at a time.
        """
        if evaluate is None and not self.alone and "evaluation" in self._datasets:
            flag = "validation_data" if self.spec.validation_data else "validation_records"
            what = "the job has validation data, but its program cannot evaluate"
            remedy = f"Pass a function from record numbers to metrics, elastic(…, evaluate=…), or drop --{flag}."
            raise UsageError([Problem(flag, str(getattr(self.spec, flag)), what, remedy)])
        if self.spec.deterministic:
            use_deterministic_algorithms()
        trained = TorchModel(model, optimizer, scheduler, before_update, state)
        plan = StepPlan.of(self.spec, self._count("training", "records", records))
        evaluation = None
        if evaluate is not None:
            count = self._count("evaluation", "validation_records", validation_records)
            evaluation = RecordEvaluation(evaluate, count, plan.virtual)

        def export_weights(directory: Path) -> None:
            held = {n: t for n, t in trained.state().items() if n.startswith("model/")}
            state_files.write(directory, state_files.snapshot(held), elastic.committed_steps, 0)

        hooks = Hooks(committed or Hooks.committed, export or export_weights, evaluation, evaluated or Hooks.evaluated)
        control = self._control(trained.device, restore)
        terms = replace(loop_terms(self.spec, plan), bucket_floats=bucket_floats)
        elastic = OwnLoop(trained, terms, control, self._numbers(plan.records), hooks)
        return elastic

    def _control(self, device: torch.device, restore: str | Path | None) -> SharedSession:
        if not self.alone:
            return connect(self.spec, self.replica, device)
        session = WorldSession(self.replica, uuid.uuid4().hex, self.spec.master_grace_seconds)
        control = Alone(session)
        if restore is not None:
            control.begin_at(state_files.step_of(Path(restore)), str(restore))
        return control

    def _count(self, mode: str, name: str, given: int | None) -> int:
        if given is not None:
            return given
        if mode in self._datasets:
            return Dataset.from_json(self._datasets[mode]).records
        remedy = f"Pass the number of records: elastic(…, {name}=60000)."
        raise UsageError([Problem(name, "", "the number of records is unknown", remedy)])

    def _numbers(self, records: int) -> Callable[[int, int, int], npt.NDArray[np.int64]]:
        described = self._datasets.get("training")
        file = DataFile("records", 0, records)
        return numbering(self.spec, Dataset.from_json(described) if described else Dataset("", "records", (file,)))


class OwnLoop(Elastic):
    """The loop of a user's program. When the master is lost, the program exits as after SIGTERM, which is no crash."""

    def parts(self) -> Iterator[StepPart]:
        try:
            yield from super().parts()
        except Unreachable as error:
            _exit(error)

    def step(self, loss: float | torch.Tensor | None) -> bool:
        try:
            return super().step(loss)
        except Unreachable as error:
            _exit(error)


def _exit(error: Unreachable) -> NoReturn:
    log.error("%s", error)
    raise SystemExit(128 + signal.SIGTERM) from error


def connect(spec: JobSpec, replica: str, device: torch.device) -> WorldControl:
    """The stream to the master of this job. On SIGTERM the worker leaves after the step."""
    session = WorldSession(replica, uuid.uuid4().hex, spec.master_grace_seconds, fingerprint(device))
    certificate = os.environ.get(names.ENV_TLS_CERT)
    control = WorldControl(
        session, os.environ[names.ENV_MASTER_ADDR], os.environ[names.ENV_TOKEN], certificate=certificate
    )
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda _signum, _frame: control.leave())
    control.start()
    sys.stdout.flush()
    return control


def loop_terms(spec: JobSpec, plan: StepPlan) -> LoopTerms:
    return LoopTerms(
        plan,
        spec.seed,
        spec.deterministic,
        spec.evaluation_steps,
        spec.audit,
        spec.nonfinite_gradients == "skip",
        spec.max_bad_records,
        os.environ.get(names.ENV_POD_IP) or LOCAL_HOST,
        spec.minibatch_size,
    )


def numbering(spec: JobSpec, dataset: Dataset) -> Callable[[int, int, int], npt.NDArray[np.int64]]:
    """The records at positions [start, stop) of an epoch."""
    kept: dict[int, EpochOrder] = {}

    def numbers(epoch: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        if epoch not in kept:
            kept.clear()
            kept[epoch] = epoch_order(
                dataset, epoch, seed=spec.seed, shard_records=spec.shard_records, shuffle=spec.shuffle
            )
        return kept[epoch].records(start, stop)

    return numbers
