"""A model or data that no worker can do anything with: the master hears of it, and does not try again."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.data.reader import open_reader
from elasticdl.job.spec import JobSpec
from tests.collective.conductor import Conductor
from tests.collective.nursery import Nursery
from tests.processes.harness import write_ids

pytestmark = pytest.mark.processes

MODEL = """
import numpy as np
import torch

def custom_model():
    return torch.nn.Linear(1, 1)

def loss(labels, predictions):
    if "{where}" == "loss":
        raise ValueError("no loss for you")
    return predictions.mean()

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)

def feed(records, mode, metadata):
    if "{where}" == mode:
        raise ValueError("no such records")
    return np.ones((len(records), 1), np.float32), np.ones((len(records), 1), np.float32)

def eval_metrics_fn():
    return {{"loss": lambda labels, predictions: predictions}}
"""


@pytest.fixture(scope="module")
def nursery():
    it = Nursery()
    yield it
    it.close()


@pytest.mark.parametrize(
    ("where", "what"), [("loss", "ValueError: no loss for you"), ("evaluation", "ValueError: no such records")]
)
def test_what_is_wrong_with_the_model_or_its_data_reaches_the_master_before_the_worker_ends(
    where: str, what: str, nursery: Nursery, tmp_path: Path
) -> None:
    (tmp_path / "odd.py").write_text(MODEL.format(where=where))
    paths = {"training": tmp_path / "train", "evaluation": tmp_path / "validation"}
    for path in paths.values():
        write_ids(path, 8)
    datasets = {mode: open_reader(str(path), {}, flag="").describe().to_json() for mode, path in paths.items()}
    spec = JobSpec.model_validate(
        {
            "model_zoo": str(tmp_path), "model_def": "odd.custom_model", "training_data": str(paths["training"]),
            "validation_data": str(paths["evaluation"]), "distribution_strategy": "AllreduceStrategy",
            "minibatch_size": 4, "num_workers": 1,
        }
    )  # fmt: skip
    with Conductor(nursery, tmp_path / "job", spec, datasets) as conductor:
        worker = conductor.spawn(0, "elasticdl.worker")
        conductor.wait(lambda: worker.dead, "its end")
        assert [what in said.error for said in worker.kinds("unfit")] == [True], conductor.story()
        assert worker.process is not None and worker.process.returncode == 1
