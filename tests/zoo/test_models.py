"""Every model of the zoo is loaded, trained for some steps on data of its shape, evaluated and exported."""

from __future__ import annotations

import csv
import importlib.util
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.data.example import encode_example
from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelFile, ModelRequest
from elasticdl.frameworks.trainable import Trainable
from tests.frameworks.memory_rows import MemoryRows

os.environ.setdefault("KERAS_BACKEND", "torch")
REPOSITORY = Path(__file__).parents[2]
HAS_TORCH = importlib.util.find_spec("torch") is not None


def forms(*names: str) -> list[str]:
    return [name for name in names if HAS_TORCH or "pytorch" not in name]


def digits() -> list[bytes]:
    """Scikit-learn's digits, enlarged to MNIST's size."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    large = np.kron(images.reshape(-1, 8, 8), np.ones((3, 3)))  # 24 x 24
    padded = np.pad(large * (255 / 16), ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(labels))
    return [encode_example({"image": padded[i].tobytes(), "label": int(labels[i])}) for i in order]


def clicks() -> list[dict[str, str]]:
    """Criteo-shaped rows: the sample if it is there, else generated; a click depends on the first two categories."""
    sample = REPOSITORY.parent / "shared" / "data" / "criteo_sample.txt"
    if sample.exists():
        with sample.open() as f:
            return list(csv.DictReader(f))
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(200):
        row = {f"I{i}": str(draw.integers(0, 100)) if draw.random() > 0.2 else "" for i in range(1, 14)}
        row |= {f"C{i}": f"{draw.integers(0, 30):08x}" for i in range(1, 27)}
        row["label"] = str(zlib.crc32((row["C1"] + row["C2"]).encode()) % 2)
        rows.append(row)
    return rows


def load(name: str, records: list[Any]) -> tuple[ModelFile, Trainable]:
    code = ModelFile(ModelRequest(str(REPOSITORY / "model_zoo"), f"{name}.custom_model"))
    return code, load_trainable(code, 3, lambda: code.feed(records[:2], "training", {})[0])


def train(
    code: ModelFile, trainable: Trainable, records: list[Any], rows: MemoryRows, size: int, epochs: int, rate: float
) -> list[float]:
    values, state = trainable.initial()
    losses = []
    for _ in range(epochs):
        for start in range(0, len(records), size):
            features, labels = code.feed(records[start : start + size], "training", {})
            trainable.assign(values, state)
            result = trainable.step(features, labels, rows)
            values, state = values - np.float32(rate) * result.gradients, result.state
            for table, (ids, gradients) in result.rows.items():
                rows.descend(table, ids, gradients, rate)
            losses.append(result.loss)
    trainable.assign(values, state)
    return losses


def evaluate(code: ModelFile, trainable: Trainable, records: list[Any], rows: MemoryRows) -> dict[str, float]:
    metrics = trainable.new_metrics()
    for start in range(0, len(records), 100):
        features, labels = code.feed(records[start : start + 100], "evaluation", {})
        metrics.update(labels, trainable.predict(features, rows))
    return metrics.result()


@pytest.mark.zoo
@pytest.mark.parametrize("name", forms("mnist_functional_api", "mnist_subclass", "mnist_pytorch"))
def test_mnist_models_learn_digits(name: str, tmp_path: Path) -> None:
    """Fifty steps on enlarged 8x8 digits: at least 0.85 of unseen ones are right."""
    records = digits()
    code, trainable = load(f"mnist.{name}", records)
    assert trainable.parameters.optimizer.learning_rate == 0.01
    rows = MemoryRows(trainable.parameters)
    train(code, trainable, records[:1600], rows, size=64, epochs=2, rate=0.03)
    assert evaluate(code, trainable, records[1600:], rows)["accuracy"] >= 0.85
    assert "manifest.json" in trainable.export(tmp_path, rows)


@pytest.mark.zoo
@pytest.mark.parametrize("name", forms("deepfm_functional_api", "deepfm_pytorch"))
def test_deepfm_learns_clicks(name: str) -> None:
    records = clicks()
    code, trainable = load(f"deepfm.{name}", records)
    assert {table.name for table in trainable.parameters.tables} == {"vectors", "weights"}
    rows = MemoryRows(trainable.parameters)
    losses = train(code, trainable, records, rows, size=50, epochs=40, rate=0.2)
    assert np.mean(losses[-4:]) < 0.5 * np.mean(losses[:4])  # it memorizes these rows
    assert evaluate(code, trainable, records, rows)["accuracy"] > 0.9
