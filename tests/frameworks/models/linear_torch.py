"""The linear model in PyTorch."""

from __future__ import annotations

import numpy as np
import torch

from elasticdl.layers.torch import Embedding

ROWS = 50


class Linear(torch.nn.Module):
    def __init__(self, input_dim: int | None):
        super().__init__()
        self.items = Embedding(2, input_dim, combiner="mean", initializer="uniform")
        self.dense = torch.nn.Linear(5, 1)

    def forward(self, features):
        return self.dense(torch.cat([features["x"], self.items(features["ids"])], dim=1))


def custom_model(input_dim: int | None = ROWS):
    return Linear(input_dim)


def loss(labels, predictions):
    return torch.nn.functional.mse_loss(predictions, labels)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def feed(records, mode, metadata):
    features = {"x": np.array([r["x"] for r in records]), "ids": np.array([r["ids"] for r in records])}
    return features if mode == "prediction" else (features, np.array([[r["y"]] for r in records]))


def eval_metrics_fn():
    return {
        "error": lambda labels, predictions: (predictions - labels) ** 2,
        "mean_error": lambda labels, predictions: ((predictions - labels) ** 2).mean(),
    }
