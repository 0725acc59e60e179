"""The zoo's convolutional net in PyTorch, with dropout and batch norm: Adam, images drawn from numbers."""

from __future__ import annotations

import torch
from drawn import images as feed  # noqa: F401
from mnist.mnist_pytorch import custom_model, eval_metrics_fn, loss  # noqa: F401


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)
