"""The digits net in PyTorch."""

from __future__ import annotations

import torch


def custom_model():
    return torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 10)
    )


def loss(labels, predictions):
    return torch.nn.functional.cross_entropy(predictions, labels)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.2)


def feed(records, mode, metadata):
    raise NotImplementedError


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: predictions.argmax(1) == labels}
