"""A small transformer that learns the next byte of made-up text, for the all-reduce benchmarks.

Needs torch and numpy only, so that the peers train the same net on the same records.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

VOCABULARY, LENGTH, DIM, HEADS, LAYERS = 256, 64, 128, 4, 4
WIDTH = LENGTH + 1  # bytes of a record


def make_records(count, seed=1):
    """uint8 [count, WIDTH]: each byte follows from the one before it, more often than not."""
    random = np.random.default_rng(seed)
    follows = random.permutation(VOCABULARY)
    rows = random.integers(0, VOCABULARY, (count, WIDTH))
    for place in range(1, WIDTH):
        likely = random.random(count) < 0.8
        rows[likely, place] = follows[rows[likely, place - 1]]
    return rows.astype(np.uint8)


def decode(rows):
    tokens = rows.astype(np.int64)
    return tokens[:, :-1], tokens[:, 1:]


def feed(records, mode, metadata):
    tokens, following = decode(np.frombuffer(b"".join(records), np.uint8).reshape(-1, WIDTH))
    return tokens if mode == "prediction" else (tokens, following)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, DIM), nn.Embedding(LENGTH, DIM)
        block = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
        self.logits = nn.Linear(DIM, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.tokens(tokens) + self.places(places)
        return self.logits(self.blocks(hidden, mask=self.mask, is_causal=True))


def custom_model():
    return Net()


def loss(labels, predictions):
    return nn.functional.cross_entropy(predictions.flatten(0, 1), labels.flatten())


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: (predictions.argmax(-1) == labels).float().mean(1)}
