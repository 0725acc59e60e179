"""MNIST with a small convolutional net, in plain PyTorch."""

from __future__ import annotations

import torch
from mnist.records import feed  # noqa: F401
from torch import nn


class MnistModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.BatchNorm2d(64, momentum=0.05),
            nn.Dropout(0.25),
            nn.Flatten(),
        )
        self.logits = nn.Linear(64 * 12 * 12, 10)

    def forward(self, images):
        return self.logits(self.features(images.unsqueeze(1)))


def custom_model():
    return MnistModel()


def loss(labels, predictions):
    return nn.functional.cross_entropy(predictions, labels)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01)


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: predictions.argmax(1) == labels}
