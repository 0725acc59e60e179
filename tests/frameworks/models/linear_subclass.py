"""The linear model as a subclass of keras.Model, built on its first batch."""

from __future__ import annotations

import keras
from linear_keras import ROWS, eval_metrics_fn, feed, loss, optimizer  # noqa: F401

from elasticdl.layers import Embedding


class Linear(keras.Model):
    def __init__(self):
        super().__init__()
        self.items = Embedding(2, input_dim=ROWS, combiner="mean", name="items")
        self.dense = keras.layers.Dense(1)

    def call(self, features):
        rows = self.items(features["ids"])
        return self.dense(keras.ops.concatenate([keras.ops.cast(features["x"], "float32"), rows], axis=-1))


def custom_model():
    return Linear()
