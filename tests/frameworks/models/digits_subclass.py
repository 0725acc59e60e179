"""The digits net as a subclass of keras.Model, built on its first batch."""

from __future__ import annotations

import keras
from digits_keras import eval_metrics_fn, feed, loss, optimizer  # noqa: F401


class Digits(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden = keras.layers.Dense(32, activation="tanh")
        self.norm = keras.layers.BatchNormalization(momentum=0.9)
        self.logits = keras.layers.Dense(10)

    def call(self, x, training=False):
        return self.logits(self.norm(self.hidden(x), training=training))


def custom_model():
    return Digits()
