"""A multi-layer perceptron on the made-up digits: many parameters for little arithmetic, for the all-reduce benchmarks.

`hidden` sets its size: 1024 makes 1.9 M parameters, 4540 makes 24.2 M, which is 97 MB.
"""

from __future__ import annotations

import torch
from allreduce_conv import PIXELS, decode, eval_metrics_fn, feed, loss, make_records  # noqa: F401
from torch import nn


def custom_model(hidden=1024):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
    )


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01)
