"""The witness model counts: each record moves its row and every scalar by exactly one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelFile, ModelRequest
from tests.frameworks.memory_rows import MemoryRows

MODELS = Path(__file__).parents[1] / "models"
pytest.importorskip("torch", reason="the witness is a torch model")


def test_after_two_epochs_every_row_is_minus_two_and_every_scalar_counts_the_records() -> None:
    code = ModelFile(ModelRequest(str(MODELS), "witness.custom_model", params={"num_servers": 3}))
    trainable = load_trainable(code, 1)
    assert [v.shape for v in trainable.parameters.variables] == [(1,), (1,), (1,)]
    assert trainable.parameters.optimizer.learning_rate == 1.0
    rows = MemoryRows(trainable.parameters)
    records = [int(i).to_bytes(8, "little") for i in range(1000, 1000 + 130)]
    values, state = trainable.initial()
    for _ in range(2):
        for start in range(0, len(records), 32):
            features, labels = code.feed(records[start : start + 32], "training", {})
            trainable.assign(values, state)
            result = trainable.step(features, labels, rows)
            values = values - result.gradients
            rows.descend("seen", *result.rows["seen"], rate=1.0)
    assert values.tolist() == [-260.0] * 3
    ids = rows.ids("seen")
    assert ids.tolist() == list(range(1000, 1130))
    np.testing.assert_array_equal(rows.rows("seen", ids), np.full((130, 1), -2.0))
