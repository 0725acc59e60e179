"""A small torch model with rows on the servers and batch-norm statistics, trained on numbers made from record ids."""

from __future__ import annotations

import numpy as np
import torch

from elasticdl.layers.torch import Embedding


class Line(torch.nn.Module):
    def __init__(self, normalized: bool) -> None:
        super().__init__()
        self.words = Embedding(embedding_dim=3, initializer="uniform")
        self.hidden = torch.nn.Linear(5, 4)
        self.norm = torch.nn.BatchNorm1d(4) if normalized else torch.nn.Identity()
        self.score = torch.nn.Linear(4, 1)

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        joined = torch.cat([self.words(inputs["ids"]), inputs["x"]], dim=1)
        return self.score(torch.tanh(self.norm(self.hidden(joined)))).squeeze(-1)


def custom_model(normalized: bool = False) -> torch.nn.Module:
    return Line(normalized)


def loss(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(predictions, labels)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


def adagrad(parameters):
    return torch.optim.Adagrad(parameters, lr=0.1)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def feed(records, mode, metadata):
    numbers = np.frombuffer(b"".join(records), "<i8").astype(np.int64)
    x = np.stack([np.sin(numbers * 0.7), np.cos(numbers * 1.3)], axis=1).astype(np.float32)
    y = (x[:, 0] - 2 * x[:, 1] + 0.1 * (numbers % 7)).astype(np.float32)
    return {"ids": numbers % 11, "x": x}, y


def poisoned(records, mode, metadata):
    """Record 40 is not a number."""
    features, labels = feed(records, mode, metadata)
    numbers = np.frombuffer(b"".join(records), "<i8")
    return features, np.where(numbers == 40, np.float32("nan"), labels)
