"""A loop's own export, in real processes: also when a worker dies or hangs in it, the model is whole."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
import torch

from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.wire import control_pb2 as pb
from tests.api import export_program
from tests.collective.conductor import Conductor, Worker
from tests.collective.nursery import Nursery
from tests.processes import harness

pytestmark = pytest.mark.processes

PROGRAM = export_program.__name__


@pytest.fixture(scope="module")
def nursery():
    it = Nursery()
    yield it
    it.close()


@pytest.fixture(autouse=True)
def no_job_left():
    yield
    harness.end_all()


def whole(output: Path) -> str:
    """The export is complete, with its folder; the worker that made it."""
    manifest = json.loads((output / "manifest.json").read_text())
    assert sorted(manifest["files"]) == ["replica.txt", "vocabulary/words.txt", "weights.pt"]
    for name, file in manifest["files"].items():
        assert hashlib.sha256((output / name).read_bytes()).hexdigest() == file["sha256"], name
    assert torch.load(output / "weights.pt").keys() == {"weight", "bias"}
    return (output / "replica.txt").read_text()


def start(tmp_path: Path, name: str, how: str) -> harness.RunningJob:
    return harness.start(
        tmp_path, name, f"--job_command={shlex.join([sys.executable, '-m', PROGRAM])}",
        "--distribution_strategy=AllreduceStrategy", "--training_records=64", "--minibatch_size=8", "--num_workers=2",
        "--virtual_workers=2", f"--output={tmp_path / 'model'}", f"--checkpoint_dir={tmp_path / 'checkpoints'}",
        env={"EXPORT_HOW": how, "EXPORT_MARK": str(tmp_path / "mark")},
    )  # fmt: skip


def test_an_exporter_killed_in_the_middle_is_followed_by_another_and_a_second_job_replaces_its_model(
    tmp_path: Path,
) -> None:
    left = tmp_path / "checkpoints" / "dies.cut-7.partial"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_text("a state that is no checkpoint yet when the job ends")
    job = start(tmp_path, "dies", "die")
    code, result = job.finish()
    assert code == 0 and result["outcome"] == "succeeded", job.story()
    assert (tmp_path / "mark").read_text() == "in the middle"
    first = whole(tmp_path / "model")
    assert not left.exists(), "no worker needs it any more"
    again = start(tmp_path, "again", "")
    code, _ = again.finish()
    assert code == 0 and first != whole(tmp_path / "model"), again.story()


def test_an_export_that_raises_fails_the_job_with_its_message_and_nothing_is_trained_again(tmp_path: Path) -> None:
    job = start(tmp_path, "raises", "raise")
    code, result = job.finish()
    assert code != 0 and result["outcome"] == "failed", job.story()
    reason, status = str(result["reason"]), result["status"]
    assert "cannot write the model: " in reason and "elasticdl-raises-worker-" in reason
    assert reason.endswith("ValueError: layer pool has no config") and isinstance(status, dict)
    assert int(status.get("repeated_batches", 0)) == 0 and int(status.get("losses", 0)) == 0
    logs = "".join(log.read_text() for log in job.paths.logs.glob("*worker*.log"))
    assert "Traceback" in logs and "export_program.py" in logs
    assert not (tmp_path / "model" / "manifest.json").exists()


@pytest.mark.parametrize("when", ["while its successor writes", "when its successor is done"])
def test_an_exporter_that_continues_after_its_replacement_changes_nothing(
    when: str, nursery: Nursery, tmp_path: Path
) -> None:
    """It was stopped before it touched the disk."""
    output, gate = tmp_path / "model", tmp_path / "gate"
    os.mkfifo(gate)
    spec = JobSpec.model_validate({"minibatch_size": 8, "num_workers": 2, "virtual_workers": 2})

    def ask(worker: Worker, number: int) -> None:
        conductor.send(worker.name, export=pb.Export(directory=str(output), number=number, run=1))

    def answer(worker: Worker) -> pb.Exported:
        conductor.wait(lambda: worker.kinds("exported"), f"an export by {worker.name}")
        (answered,) = worker.kinds("exported")
        assert isinstance(answered, pb.Exported)
        return answered

    with Conductor(nursery, tmp_path / "job", spec) as conductor:
        conductor.wanted = 2
        late, successor = (conductor.spawn(i, PROGRAM, {"EXPORT_GATE": str(gate) if i else ""}) for i in range(2))
        conductor.wait_for_step(4)
        conductor.wait(lambda: all(w.pulse.phase == "wait" for w in (late, successor)), "the end of training")
        late.process.send_signal(signal.SIGSTOP)
        ask(late, 1)
        ask(successor, 2)
        with gate.open("w"):  # it is in the middle
            if when == "while its successor writes":
                late.process.send_signal(signal.SIGCONT)
                done = answer(late)
        assert answer(successor) == pb.Exported(directory=str(output), number=2)
        if when == "when its successor is done":
            late.process.send_signal(signal.SIGCONT)
            done = answer(late)
        assert done.number == 1 and "another process has started a newer export" in done.error
        assert whole(output) == successor.name == names.replica_name("j", "worker", 1)
        assert set(conductor.finish().values()) == {0}
