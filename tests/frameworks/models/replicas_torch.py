"""A net with dropout and batch normalization in PyTorch, and optimizers to choose from."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, StepLR

from elasticdl.callbacks import LearningRateScheduler

PATTERN = torch.full((3, 3), -torch.inf).triu(1) + 0.1


class Net(nn.Module):
    def __init__(self, plain):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.Identity() if plain else nn.BatchNorm1d(16, momentum=0.3)
        self.dropout = nn.Identity() if plain else nn.Dropout(0.4)
        self.last = nn.Linear(16, 3)
        self.unused = nn.Linear(2, 2)
        self.register_buffer("pattern", PATTERN.clone())
        self.register_buffer("seen", torch.zeros((), dtype=torch.int32))
        self.register_buffer("replaced", torch.ones(2, dtype=torch.float64))

    def forward(self, x):
        if self.training:
            self.seen += 3
            self.replaced = self.replaced * 0.5
        return self.last(self.dropout(self.norm(torch.tanh(self.first(x)))))


def custom_model(plain: bool = False):
    return Net(plain)


def loss(labels, predictions):
    return nn.functional.cross_entropy(predictions, labels)


def feed(records, mode, metadata):
    raise NotImplementedError


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: predictions.argmax(1) == labels}


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def plain_descent(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1, amsgrad=True)


def rmsprop(parameters):
    return torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5)


def adagrad(parameters):
    return torch.optim.Adagrad(parameters, lr=0.05)


def nadam(parameters):
    return torch.optim.NAdam(parameters, lr=0.01)  # none that parameter servers know


def grouped(parameters):
    first, *others = parameters
    groups = [{"params": [first], "lr": 0.5}, {"params": others}]
    made = torch.optim.Adam(groups, lr=0.01)
    return made, OneCycleLR(made, max_lr=[0.5, 0.1], total_steps=40), "step"


def by_epoch(parameters):
    made = torch.optim.SGD(parameters, lr=0.1)
    return made, StepLR(made, 2, 0.5), "epoch"


def cosine(parameters):
    made = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return made, CosineAnnealingLR(made, 10), "step"


def counting(parameters):
    return Counting(parameters, lr=0.1)


class Counting(torch.optim.SGD):
    """Keeps plain numbers: one per parameter and one of its group."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        for group in self.param_groups:
            group["taken"] = 0

    def step(self, closure=None):
        for group in self.param_groups:
            group["taken"] += 1
            for parameter in group["params"]:
                slots = self.state[parameter]
                slots["count"] = slots.get("count", 0) + 1
                slots["nothing"] = None
                parameter.data.add_(parameter.grad, alpha=-0.1 / (slots["count"] + group["taken"]))


def lbfgs(parameters):
    return torch.optim.LBFGS(parameters)


def sparse_adam(parameters):
    return torch.optim.SparseAdam(parameters)


def callbacks():
    return []


def by_step():
    return [LearningRateScheduler(lambda step: 0.5 / (step + 1))]
