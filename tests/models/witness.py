"""The model that proves exactly-once training: every record's gradient is 1, so values count how often it was trained.

A row per record id and `num_servers` dense scalars, SGD with rate 1. After E epochs over N records each
row is exactly -E and each scalar exactly -E * N. Records are little-endian 64-bit ids. `PEBBLE_SECONDS` makes a batch
last (see pebble.py).
"""

from __future__ import annotations

import os

import numpy as np
import torch
from pebble import pause

from elasticdl.layers.torch import Embedding


class Witness(torch.nn.Module):
    def __init__(self, num_servers: int) -> None:
        super().__init__()
        self.seen = Embedding(embedding_dim=1, initializer="zeros")
        self.scalars = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(1)) for _ in range(num_servers)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.training:
            pause()
        return self.seen(ids).squeeze(-1) + sum(self.scalars)


def custom_model(num_servers: int = int(os.environ.get("WITNESS_SERVERS", "1"))) -> torch.nn.Module:
    return Witness(num_servers)


def loss(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    return predictions.sum()  # not the mean: each record moves each value by exactly one


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


def feed(records, mode, metadata):
    ids = np.frombuffer(b"".join(records), "<i8").astype(np.int64)
    return ids if mode == "prediction" else (ids, np.zeros(len(ids), np.float32))


def eval_metrics_fn():
    return {"mean_prediction": lambda labels, predictions: predictions}
