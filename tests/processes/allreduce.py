"""All-reduce jobs in real processes, and what one process alone makes of the same job: the two must be equal."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from elasticdl.api import state_files
from elasticdl.api.elastic import Elastic
from elasticdl.api.job import loop_terms, numbering
from elasticdl.api.terms import Hooks
from elasticdl.collective.control import Alone
from elasticdl.collective.session import WorldSession
from elasticdl.core.steps import StepPlan
from elasticdl.data.reader import open_reader
from elasticdl.frameworks.loading import load_replica
from elasticdl.frameworks.model_file import ModelFile, ModelRequest
from elasticdl.job.spec import JobSpec
from elasticdl.strategies.allreduce.parts_ahead import PartsAhead
from elasticdl.strategies.allreduce.training import ReplicaEvaluation, ReplicaModel
from elasticdl.wire import control_pb2 as pb
from elasticdl.worker.batches import Source
from tests.processes import harness
from tests.processes.harness import RunningJob

RECORDS, VALIDATION = 1013, 100  # nothing divides


@dataclass(frozen=True)
class Description:
    """One job, however many workers it will have."""

    model: str = "pebble"
    records: int = RECORDS
    epochs: int = 2
    workers: int = 2
    virtual: int = 8
    minibatch: int = 16
    evaluation_steps: int = 25
    more: dict[str, Any] = field(default_factory=dict, hash=False)

    def spec(self, data: Path) -> JobSpec:
        knobs = {
            "model_zoo": "tests/models", "model_def": f"{self.model}.custom_model",
            "training_data": str(data / "train"), "validation_data": str(data / "validation"),
            "distribution_strategy": "AllreduceStrategy", "num_epochs": self.epochs, "num_workers": self.workers,
            "virtual_workers": self.virtual, "minibatch_size": self.minibatch, "audit": True,
            "evaluation_steps": self.evaluation_steps, **self.more,
        }  # fmt: skip
        return JobSpec.model_validate(knobs)

    @property
    def steps(self) -> int:
        return self.epochs * -(-self.records // (self.minibatch * self.workers))


def write_data(folder: Path, records: int = RECORDS) -> Path:
    harness.write_ids(folder / "train", records)
    harness.write_ids(folder / "validation", VALIDATION)
    return folder


def train_alone(description: Description, data: Path) -> tuple[dict[str, torch.Tensor], dict[int, dict[str, float]]]:
    """State and evaluations of the same job, trained by this process."""
    torch.set_num_threads(1)
    spec = description.spec(data)
    code = ModelFile(ModelRequest.of(spec))
    sources = {}
    for mode, path in (("training", spec.training_data), ("evaluation", spec.validation_data)):
        reader = open_reader(str(path), {}, flag="")
        sources[mode] = Source(reader, reader.describe(), spec, mode)
    replica = load_replica(code, spec.seed)
    model, plan = ReplicaModel(replica), StepPlan.of(spec, sources["training"].dataset.records)
    evaluations: dict[int, dict[str, float]] = {}
    evaluation = ReplicaEvaluation(replica, code, sources["evaluation"], plan.virtual, spec.minibatch_size)
    hooks = Hooks(evaluation=evaluation, evaluated=lambda step, found: evaluations.update({step: dict(found)}))
    control = Alone(WorldSession("alone", "one", 60.0))
    elastic = Elastic(model, loop_terms(spec, plan), control, numbering(spec, sources["training"].dataset), hooks)
    ahead = PartsAhead(sources["training"], code.feed, spec.seed)
    for part in elastic.parts():
        this, *then = elastic.upcoming(3)
        batch = ahead.take(this, then)
        if batch.bad:
            elastic.leave_out(batch.bad)
        elastic.step(model.compute(batch.features, batch.labels, part.seed) if batch.records else None)
    assert elastic.committed_steps == description.steps
    return state_files.snapshot(elastic.state()).fetched(), evaluations


alone = functools.cache(train_alone)  # for tests of one module that share their data


def start(
    tmp: Path, name: str, description: Description, data: Path, *flags: str, part_seconds: float = 0.0,
    checkpoint_seconds: float = 0.0, checkpoint_steps: int | None = None, **env: str,
) -> RunningJob:  # fmt: skip
    """The job as the command line starts it, slow, until it is told to hurry. Unless `checkpoint_steps` says otherwise,
    there is a checkpoint of the last step."""
    slow = tmp / f"{name}-slow"
    slow.touch()
    given = [f"--{name}={_spelled(value)}" for name, value in description.spec(data).given().items()]
    return harness.start(
        tmp, name, *given, f"--checkpoint_dir={tmp / name}-checkpoints", f"--output={tmp / name}-model",
        f"--checkpoint_steps={checkpoint_steps or description.steps}", f"--checkpoint_seconds={checkpoint_seconds}",
        *flags,
        env={"PEBBLE_SECONDS": str(part_seconds), "PEBBLE_SLOW": str(slow), **env},
    )  # fmt: skip


def hurry(job: RunningJob) -> None:
    """All that was to happen has: the rest of the job may take as little time as it can."""
    job.output.with_name(f"{job.paths.job_name}-slow").unlink(missing_ok=True)


def scale(job: RunningJob, workers: int) -> None:
    """The master has heard that there are to be so many workers; when they are there, the job's status tells."""
    until = time.monotonic() + job.deadline_seconds
    done = scaled(job, f"--workers={workers}", "--timeout=0")
    while "did not answer" in done.stderr and time.monotonic() < until:  # within its 5 s, where all are busy importing
        done = scaled(job, f"--workers={workers}", "--timeout=0")
    assert done.returncode == 0, f"{done.stderr}\n{job.story()}"


def scaled(job: RunningJob, *words: str) -> subprocess.CompletedProcess[str]:
    """What `elasticdl scale` says to this."""
    command = [sys.executable, "-m", "elasticdl", "scale", job.paths.job_name, f"--state_dir={job.paths.state_dir}"]
    return subprocess.run([*command, *words], cwd=harness.ROOT, capture_output=True, text=True, timeout=150)


def together(status: pb.Status, workers: int) -> bool:
    """Whether a world of so many trains, and is not only about to."""
    return {f"rank {rank} of {workers}" for rank in range(workers)} <= {r.state for r in status.replicas}


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check(
    job: RunningJob, description: Description, alone: tuple[dict[str, torch.Tensor], dict[int, dict[str, float]]]
) -> dict[str, Any]:
    """The job succeeded, trained each record once in each epoch, and leaves what one process alone gets."""
    hurry(job)
    code, result = job.finish()
    assert code == 0 and result["outcome"] == "succeeded", f"{result}\n{job.story()}"
    status: Any = result["status"]
    expected = f"{description.records} records, each trained exactly {description.epochs} times"
    assert status["audit"] == expected, status["audit"]
    checkpoints = job.output.with_name(f"{job.paths.job_name}-checkpoints")
    state, _ = state_files.read(checkpoints / f"version-{description.steps}", description.steps)
    ours, evaluations = alone
    assert state.keys() == ours.keys()
    different = [name for name, tensor in state.items() if not same_bytes(tensor, ours[name])]
    assert not different, f"not what one worker alone gets: {different}"
    metrics = {int(e["version"]): e["metrics"] for e in status["evaluations"]}
    assert metrics == evaluations, f"{metrics}, alone {evaluations}"
    found: dict[str, Any] = status
    return found


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Not `torch.equal`: that takes 0.0 for -0.0, and knows no NaN again."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(*(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)))


def worker_pids(job: RunningJob) -> dict[str, int]:
    return {name: p.pid for name, p in job.replicas().items() if "-worker-" in name}


def story_of(job: RunningJob, worker: str) -> str:
    return job.paths.log(worker).read_text()


def decisions(status: dict[str, Any]) -> list[str]:
    return [str(d["text"]) for d in status["decisions"]]


def show(status: dict[str, Any]) -> str:
    return json.dumps(status, indent=1)


BROKE = "The world broke at step"  # what a worker says of it; it also says when the stream to its master breaks
TERM, KILL, STOP, CONT = signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
