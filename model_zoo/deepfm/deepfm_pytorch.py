"""DeepFM on Criteo-shaped records in PyTorch, its embeddings on the parameter servers."""

from __future__ import annotations

import torch
from deepfm.criteo import BUCKETS, CATEGORIES, COUNTS, feed  # noqa: F401
from torch import nn

from elasticdl.job.parameters import InitializerSpec
from elasticdl.layers.torch import Embedding

SMALL = InitializerSpec(kind="uniform", a=-0.05, b=0.05)


class DeepFM(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.vectors = Embedding(dim, BUCKETS, initializer=SMALL)
        self.weights = Embedding(1, BUCKETS, combiner="sum", initializer=SMALL)
        self.linear = nn.Linear(len(COUNTS), 1)
        self.deep = nn.Sequential(
            nn.Linear(len(CATEGORIES) * dim + len(COUNTS), hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden // 2),
            nn.ReLU(),
            nn.Linear(hidden // 2, 1),
        )

    def forward(self, features):
        counts, ids = features["counts"], features["ids"]
        vectors = self.vectors(ids)
        total = vectors.sum(1)
        pairs = 0.5 * (total * total - (vectors * vectors).sum(1)).sum(1, keepdim=True)
        deep = self.deep(torch.cat([vectors.flatten(1), counts], dim=1))
        return self.linear(counts) + self.weights(ids) + pairs + deep


def custom_model(dim: int = 8, hidden: int = 64):
    return DeepFM(dim, hidden)


def loss(labels, predictions):
    return nn.functional.binary_cross_entropy_with_logits(predictions, labels)


def optimizer(parameters):
    return torch.optim.Adagrad(parameters, lr=0.05, initial_accumulator_value=0.1)


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: (predictions > 0) == (labels > 0.5)}
