"""One weight with a gradient of 1 for each record; three workers compute at the same time."""

from __future__ import annotations

import numpy as np
import torch

from tests.modes.meeting import BARRIER


class One(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            BARRIER.wait()
        return x * self.weight


def custom_model() -> torch.nn.Module:
    return One()


def loss(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    return predictions.mean()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


def feed(records, mode, metadata):
    return np.ones(len(records), np.float32), np.zeros(len(records), np.float32)
