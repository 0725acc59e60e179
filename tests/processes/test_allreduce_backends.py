"""All-reduce with Keras on JAX and on TensorFlow: a worker's death changes no byte there either."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.processes import allreduce
from tests.processes.allreduce import KILL, Description

BACKEND = os.environ.get("KERAS_BACKEND", "torch")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.backend,
    pytest.mark.skipif(BACKEND == "torch", reason="make test-backends runs it; on torch test_allreduce_equal.py does"),
]

# The epoch ends in the middle of a step, which itself does not divide by the virtual workers.
DIGITS = Description("digits_keras", records=205, minibatch=9, evaluation_steps=7)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return allreduce.write_data(tmp_path_factory.mktemp("ids"), DIGITS.records)


def test_two_undisturbed_workers_train_what_one_process_alone_does(tmp_path: Path, data: Path) -> None:
    job = allreduce.start(tmp_path, "calm", DIGITS, data)
    status = allreduce.check(job, DIGITS, allreduce.alone(DIGITS, data))
    assert int(status["generation"]) <= 2, "a worker was disturbed"  # 2: one came after the other
    exported = json.loads((tmp_path / "calm-model" / "model.json").read_text())
    assert exported["framework"] == f"keras-{BACKEND}"


def test_a_worker_killed_in_the_midst_changes_nothing(tmp_path: Path, data: Path) -> None:
    job = allreduce.start(tmp_path, "killed", DIGITS, data, part_seconds=0.8)
    first = job.wait_until(lambda s: allreduce.together(s, 2) and s.version >= 2)
    victim, survivor = first.world
    before = allreduce.worker_pids(job)
    assert job.kill(victim, KILL)
    job.wait_until(lambda s: list(s.world) == [survivor] and s.version > first.version)
    back = job.wait_until(lambda s: allreduce.together(s, 2))
    assert back.version < DIGITS.steps, "its successor had nothing left to train"
    assert allreduce.worker_pids(job)[survivor] == before[survivor], "the survivor was started again"
    status = allreduce.check(job, DIGITS, allreduce.alone(DIGITS, data))
    assert int(status.get("repeated_batches", 0)) == 0
