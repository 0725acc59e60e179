"""Replicas of the test models, steps on them, and a program that continues from states of another process."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

os.environ.setdefault("KERAS_BACKEND", "torch")

from elasticdl.core.steps import part_seed
from elasticdl.frameworks.loading import load_replica
from elasticdl.frameworks.model_file import ModelRequest
from elasticdl.frameworks.replica.model_replica import ModelReplica

MODELS = Path(__file__).parent / "models"
FORMS = ["keras", "torch"] if importlib.util.find_spec("keras") else ["torch"]
OPTIMIZERS = ["optimizer", "adam", "adamw", "rmsprop", "adagrad", "nadam", "cosine"]
ONLY = {"torch": ["grouped", "counting"], "keras": ["averaged", "scaled"]}
VIRTUAL = 4


def make(form: str, seed: int = 5, **request: object) -> ModelReplica:
    model = f"replicas_{form}.custom_model"
    return load_replica(ModelRequest(str(MODELS), model, **request), seed, device="cpu")  # type: ignore[arg-type]


def batch(step: int, virtual: int) -> tuple[np.ndarray, np.ndarray]:
    """Records of a part: two or three of them."""
    draw = np.random.default_rng(100 * step + virtual)
    size = 2 + (step + virtual) % 2
    return draw.normal(size=(size, 6)).astype(np.float32), draw.integers(0, 3, size)


def contribution(replica: ModelReplica, step: int, virtual: int) -> torch.Tensor:
    features, labels = batch(step, virtual)
    _, vector = replica.part(features, labels, part_seed(9, step, virtual))
    return vector.mul_(len(labels))


def mean_of(parts: list[torch.Tensor], step: int) -> torch.Tensor:
    """Parts added along the binary tree, divided by the records."""
    records = sum(len(batch(step, v)[1]) for v in range(len(parts)))
    while len(parts) > 1:
        parts = [parts[i] + parts[i + 1] for i in range(0, len(parts), 2)]
    return parts[0] / records


def train(replica: ModelReplica, start: int, stop: int, order: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    for step in range(start, stop):
        parts = {virtual: contribution(replica, step, virtual) for virtual in order}
        replica.apply(mean_of([parts[v] for v in sorted(order)], step), step, step // 5)


def digest(state: dict[str, torch.Tensor]) -> str:
    """Of all names, types, shapes and bits."""
    found = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous().resolve_conj()
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for file in map(Path, sys.argv[1:]):
        form, optimizer = file.stem.split(".")
        going_on = make(form, optimizer=optimizer)
        going_on.load(load_file(file))
        train(going_on, 5, 25, order=(0,))
        print(file.stem, digest(going_on.state()))
