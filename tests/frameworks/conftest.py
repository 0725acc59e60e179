"""The models that every Trainable test runs on, in each form that this environment can run."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelFile, ModelRequest
from elasticdl.frameworks.trainable import Trainable
from tests.frameworks.memory_rows import MemoryRows

os.environ.setdefault("KERAS_BACKEND", "torch")  # before a test module imports Keras
MODELS = Path(__file__).parent / "models"
FORMS = ["keras", "subclass", *(["torch"] if importlib.util.find_spec("torch") else [])]


@dataclass
class Batch:
    features: Any
    labels: np.ndarray


@dataclass
class Case:
    """A trainable, its row source, and batches to run it on."""

    form: str
    code: ModelFile
    trainable: Trainable
    batches: list[Batch]
    rows: MemoryRows = field(init=False)

    def __post_init__(self) -> None:
        self.rows = MemoryRows(self.trainable.parameters)


def load(name: str, sample: Callable[[], Any], **params: Any) -> tuple[ModelFile, Trainable]:
    code = ModelFile(ModelRequest(str(MODELS), f"{name}.custom_model", params=params))
    return code, load_trainable(code, 7, sample)


def linear_batches() -> list[Batch]:
    draw = np.random.default_rng(1)
    batches = []
    for size in (8, 8, 5):
        x, ids = draw.normal(size=(size, 3)).astype(np.float32), draw.integers(0, 20, (size, 2))
        batches.append(Batch({"x": x, "ids": ids}, draw.normal(size=(size, 1)).astype(np.float32)))
    return batches


def digits_batches(size: int = 50) -> list[Batch]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[order] / 16.0).astype(np.float32), labels[order].astype(np.int64)
    return [Batch(images[i : i + size], labels[i : i + size]) for i in range(0, len(labels) - size, size)]


@pytest.fixture(params=FORMS)
def linear(request: pytest.FixtureRequest) -> Case:
    batches = linear_batches()
    code, trainable = load(f"linear_{request.param}", lambda: batches[0].features)
    return Case(request.param, code, trainable, batches)


@pytest.fixture(params=FORMS)
def digits(request: pytest.FixtureRequest) -> Case:
    batches = digits_batches()
    code, trainable = load(f"digits_{request.param}", lambda: batches[0].features)
    return Case(request.param, code, trainable, batches)


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[Path]:
    """A zoo of this test's own; what is imported from it is forgotten afterwards."""
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        folders = [file] if file else list(getattr(module, "__path__", []))
        if any(Path(folder).is_relative_to(tmp_path.resolve()) for folder in folders):
            del sys.modules[name]
