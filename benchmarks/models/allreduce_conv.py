"""MNIST's convolutional net with dropout and batch norm on made-up digits: the toy of the all-reduce benchmarks.

Needs torch and numpy only, so that the peers train the same net on the same records.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

PIXELS = 28 * 28
WIDTH = 1 + PIXELS  # bytes of a record: the label, then the image


def make_records(count, seed=1):
    """uint8 [count, WIDTH]: one blurred pattern per class under noise."""
    random = np.random.default_rng(seed)
    patterns = random.integers(0, 200, (10, PIXELS))
    labels = random.integers(0, 10, count)
    noise = random.integers(0, 56, (count, PIXELS))
    return np.concatenate([labels[:, None], patterns[labels] + noise], axis=1).astype(np.uint8)


def decode(rows):
    images = rows[:, 1:].reshape(-1, 28, 28).astype(np.float32) / 255.0
    return images, rows[:, 0].astype(np.int64)


def feed(records, mode, metadata):
    images, labels = decode(np.frombuffer(b"".join(records), np.uint8).reshape(-1, WIDTH))
    return images if mode == "prediction" else (images, labels)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.BatchNorm2d(64, momentum=0.05), nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 12 * 12, 10),
        )  # fmt: skip

    def forward(self, images):
        return self.layers(images.unsqueeze(1))


def custom_model():
    return Net()


def loss(labels, predictions):
    return nn.functional.cross_entropy(predictions, labels)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: predictions.argmax(1) == labels}
