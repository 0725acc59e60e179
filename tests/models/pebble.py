"""A small torch model on records that are only their number: dropout, batch norm, momentum, a schedule.

Its result shows if it depends on which worker computes what, or on the order. `PEBBLE_SECONDS` makes parts slow while
the file `PEBBLE_SLOW` exists. With `PEBBLE_PLAIN` nothing depends on which records are computed together.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import torch

SECONDS = float(os.environ.get("PEBBLE_SECONDS", "0"))
SLOW = os.environ.get("PEBBLE_SLOW", "")


def pause() -> None:
    if SECONDS and (not SLOW or Path(SLOW).exists()):
        time.sleep(SECONDS)


class Pebble(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        plain = bool(os.environ.get("PEBBLE_PLAIN"))
        norm = torch.nn.Identity() if plain else torch.nn.BatchNorm1d(width)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, width), norm, torch.nn.ReLU(), torch.nn.Dropout(0.0 if plain else 0.3),
            torch.nn.Linear(width, 2),
        )  # fmt: skip

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.training:
            pause()
        return self.layers(features)


def custom_model(width: int = 32) -> torch.nn.Module:
    return Pebble(width)


def loss(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, labels)


def optimizer(parameters):
    made = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return made, torch.optim.lr_scheduler.StepLR(made, 20, 0.8), "step"


def feed(records, mode, metadata):
    ids = np.frombuffer(b"".join(records), "<i8")
    features = np.stack([(ids >> bit) & 1 for bit in range(16)], 1).astype(np.float32) * 2 - 1
    labels = (features[:, :4].sum(1) > features[:, 4:8].sum(1)).astype(np.int64)
    return features if mode == "prediction" else (features, labels)


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: (predictions.argmax(1) == labels).float()}
