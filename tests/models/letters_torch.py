"""The zoo's transformer, small, trained with AdamW and a schedule on lines drawn from numbers."""

from __future__ import annotations

import torch
from drawn import lines as feed  # noqa: F401
from text.transformer_pytorch import Transformer, eval_metrics_fn, loss  # noqa: F401


def custom_model():
    return Transformer(width=32, layers=2, heads=4, context=16, dropout=0.1)


def optimizer(parameters):
    made = torch.optim.AdamW(parameters, lr=3e-3)
    return made, torch.optim.lr_scheduler.StepLR(made, 10, 0.8), "step"
