"""The examples of docs/writing-a-model.md run unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelFile, ModelRequest
from tests.frameworks.memory_rows import MemoryRows

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-model.md"
FEED = "def feed(records, mode, metadata):\n    return records\n"


EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)


def test_the_whole_example_trains(zoo: Path) -> None:
    (zoo / "whole.py").write_text(EXAMPLES[0])
    code = ModelFile(ModelRequest(str(zoo), "whole.custom_model"))
    trainable = load_trainable(code, 1)
    records = [{"a": "1", "b": "2", "c": "3", "d": str(i), "class": str(i % 3)} for i in range(6)]
    features, labels = code.feed(records, "training", {})
    rows = MemoryRows(trainable.parameters)
    assert np.isfinite(trainable.step(features, labels, rows).loss)
    metrics = trainable.new_metrics()
    metrics.update(labels, trainable.predict(features, rows))
    assert 0 <= metrics.result()["accuracy"] <= 1


def test_the_torch_example_trains(zoo: Path) -> None:
    pytest.importorskip("torch", reason="a torch model")
    (zoo / "plain.py").write_text(EXAMPLES[1] + FEED)
    trainable = load_trainable(ModelRequest(str(zoo), "plain.custom_model"), 1)
    result = trainable.step(np.ones((2, 4)), np.array([0, 2]), MemoryRows(trainable.parameters))
    assert result.gradients.shape == (15,)
    assert trainable.parameters.optimizer.kind == "adam"
