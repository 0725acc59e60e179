"""A small language model in plain PyTorch: a transformer that predicts the next byte of a text.

With `--aux_params "width=64; layers=2; heads=4; context=64"`, the defaults, it has 137,216 parameters.
"""

from __future__ import annotations

import torch
from text.windows import CONTEXT, custom_data_reader, feed  # noqa: F401
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.thought = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.left_out = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.asked(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = nn.functional.scaled_dot_product_attention(*heads, dropout_p=dropout, is_causal=True)
        x = x + self.left_out(self.joined(seen.transpose(1, 2).reshape(batch, length, width)))
        return x + self.left_out(self.thought(self.between(x)))


class Transformer(nn.Module):
    def __init__(self, width, layers, heads, context, dropout):
        super().__init__()
        self.letters = nn.Embedding(256, width)
        self.places = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, 256)

    def forward(self, ids):
        return self.logits(self.norm(self.blocks(self.letters(ids) + self.places[: ids.shape[1]])))


def custom_model(width: int = 64, layers: int = 2, heads: int = 4, context: int = CONTEXT, dropout: float = 0.1):
    return Transformer(width, layers, heads, context, dropout)


def loss(labels, predictions):
    return nn.functional.cross_entropy(predictions.flatten(0, 1), labels.flatten())


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=3e-3)


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: (predictions.argmax(-1) == labels).float().mean(1)}
