"""What a worker looks at before it pushes, and how it names the records of a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elasticdl.data.dataset import DataFile, Dataset
from elasticdl.data.reader import open_reader
from elasticdl.frameworks.trainable import StepResult
from elasticdl.job.parameters import OptimizerSpec, ParametersSpec, TableSpec, VariableSpec
from elasticdl.job.spec import JobSpec
from elasticdl.strategies.parameter_servers.finite import trouble
from elasticdl.worker.batches import Source
from tests.processes.harness import write_ids

SPEC = ParametersSpec(
    variables=(
        VariableSpec(name="kernel", shape=(2, 2)),
        VariableSpec(name="mean", shape=(2,), trainable=False),
        VariableSpec(name="bias", shape=(2,)),
    ),
    tables=(TableSpec(name="words", dim=2),),
    optimizer=OptimizerSpec(kind="sgd", learning_rate=0.1),
)
NAN, INF = float("nan"), float("inf")


def result(loss: float = 0.5, gradient: float = 1.0, state: float = 1.0, row: float = 1.0) -> StepResult:
    gradients, values = np.ones(6, np.float32), np.ones(2, np.float32)
    gradients[4], values[1] = gradient, state
    rows = np.array([[1.0, row]], np.float32)
    return StepResult(loss, gradients, values, {"words": (np.array([3]), rows)})


def test_finite_numbers_are_no_trouble_however_large() -> None:
    assert trouble(result(1e38, 3e38, -3e38, 3e38), SPEC) == ""


@pytest.mark.parametrize("what", [NAN, INF, -INF])
def test_what_is_not_finite_is_named(what: float) -> None:
    assert trouble(result(loss=what), SPEC) == f"the loss ({what:g})"
    assert trouble(result(gradient=what), SPEC) == "the gradient of bias"
    assert trouble(result(state=what), SPEC) == "the new value of mean"
    assert trouble(result(row=what), SPEC) == "the gradients of table words"
    everything = trouble(result(what, what, what, what), SPEC)
    assert everything == f"the loss ({what:g}), the gradient of bias, the new value of mean and 1 more"


def test_records_are_named_by_file_and_range(tmp_path: Path) -> None:
    data = write_ids(tmp_path / "ids", 20)
    dataset = Dataset("d", "recordio", (DataFile("a", 1, 10), DataFile("b", 1, 10)))
    source = Source(open_reader(str(data), {}), dataset, JobSpec(), "training")
    assert source.named(np.array([3, 1, 2, 7, 12, 19, 11])) == "records 1 to 3, 7 of a; records 1 to 2, 9 of b"
    assert source.named(np.arange(0, 20)) == "records 0 to 9 of a; records 0 to 9 of b"
