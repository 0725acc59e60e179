"""Models of the zoo trained by whole jobs: to the metric their data allows, with every record trained exactly once.

MNIST with the conv net, SGD 0.01 and batches of 64: the accuracy on the test images is 0.95 after 250 steps (0.93 is
demanded) and 0.98 after two epochs (0.975 is demanded), with one worker, with two, and with a worker killed every few
seconds. Scikit-learn's digits, which stand in where MNIST cannot be had, have 1,400 training records: 0.9 after 15
epochs.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.processes.harness import ROOT, RunningJob, start

pytestmark = pytest.mark.zoo


@pytest.fixture(scope="session")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("data") / "mnist"
    subprocess.run([sys.executable, "-m", "elasticdl", "data", "mnist", str(target)], check=True, cwd=ROOT)
    return target


@pytest.fixture(scope="session")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("data") / "criteo"
    command = [sys.executable, "-m", "elasticdl", "data", "criteo", str(target), "--records", "20000", "--seed", "1"]
    subprocess.run(command, check=True, cwd=ROOT)
    return target


def _real(mnist: Path) -> bool:
    return "digits" not in (mnist / "_SOURCE").read_text()


def _train_mnist(tmp: Path, mnist: Path, name: str, workers: int, *flags: str) -> RunningJob:
    return start(
        tmp, name, "--model_zoo=model_zoo", "--model_def=mnist.mnist_functional_api.custom_model",
        f"--training_data={mnist / 'train'}", f"--validation_data={mnist / 'test'}", "--minibatch_size=64",
        "--num_minibatches_per_task=2", "--num_ps_pods=1", f"--num_workers={workers}", "--audit=true",
        "--distribution_strategy=ParameterServerStrategy", *flags,
    )  # fmt: skip


def _check(job: RunningJob, accuracy: float) -> None:
    code, result = job.finish()
    assert code == 0, job.story()
    status = result["status"]
    assert isinstance(status, dict)
    assert status["records_done"] == status["records_total"]
    assert "trained" in status["audit"], "no audit was made"
    reached = status["evaluations"][-1]["metrics"]["accuracy"]
    assert reached >= accuracy, f"accuracy {reached}"


def _check_while_killing(job: RunningJob, accuracy: float, every_seconds: float) -> None:
    """Kill a worker that trains every few seconds, but on a slow machine not before the job moved since the last."""
    over = threading.Event()

    def kill() -> None:
        steps = 0
        while not over.wait(every_seconds):
            status = next(job.statuses(), None)
            if status and status.version >= steps + 20 and job.kill_training_worker(status):
                steps = status.version

    job.wait_until(lambda s: s.version > 0)
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        _check(job, accuracy)
    finally:
        over.set()
        killer.join()


def test_mnist_reaches_its_accuracy_while_a_worker_is_killed_every_few_seconds(tmp_path: Path, mnist: Path) -> None:
    flags = ("--max_step=250", "--evaluation_steps=125") if _real(mnist) else ("--num_epochs=15",)
    job = _train_mnist(tmp_path, mnist, "killed", 2, *flags)
    _check_while_killing(job, 0.93 if _real(mnist) else 0.88, every_seconds=6.0)
    assert job.kills, "no worker was killed"


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("workers", [1, 2])
def test_mnist_reaches_the_accuracy_that_two_epochs_allow(tmp_path: Path, mnist: Path, workers: int) -> None:
    epochs = 2 if _real(mnist) else 15
    job = _train_mnist(tmp_path, mnist, "whole", workers, f"--num_epochs={epochs}", "--evaluation_steps=500")
    job.deadline_seconds = 1200
    _check(job, 0.975 if _real(mnist) else 0.9)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_mnist_reaches_the_accuracy_of_two_epochs_with_a_worker_killed_every_few_seconds(
    tmp_path: Path, mnist: Path
) -> None:
    epochs = 2 if _real(mnist) else 15
    job = _train_mnist(tmp_path, mnist, "whole", 2, f"--num_epochs={epochs}", "--evaluation_steps=500")
    job.deadline_seconds = 1200
    _check_while_killing(job, 0.975 if _real(mnist) else 0.9, every_seconds=12.0)
    assert len(job.kills) > 3


def test_deepfm_on_two_servers_learns_what_its_data_allows(tmp_path: Path, criteo: Path) -> None:
    """Three epochs reach an AUC of 0.72 here; guessing gives 0.5, and no model can beat 0.85 on this data."""
    job = start(
        tmp_path, "deepfm", "--model_zoo=model_zoo", "--model_def=deepfm.deepfm_functional_api.custom_model",
        f"--training_data={criteo / 'train'}", f"--validation_data={criteo / 'test'}", "--minibatch_size=64",
        "--num_epochs=3", "--num_ps_pods=2", "--num_workers=2", "--audit=true", f"--output={tmp_path / 'model'}",
    )  # fmt: skip
    code, result = job.finish()
    assert code == 0, job.story()
    status = result["status"]
    assert isinstance(status, dict)
    assert status["evaluations"][-1]["metrics"]["auc"] > 0.68
    assert (tmp_path / "model" / "model.keras").exists()
