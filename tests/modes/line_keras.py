"""The same kind of model in Keras."""

from __future__ import annotations

import keras
import numpy as np

from elasticdl.layers.keras import Embedding


def custom_model():
    ids = keras.Input((), dtype="int64", name="ids")
    x = keras.Input((2,), name="x")
    words = keras.layers.Reshape((3,))(Embedding(3)(ids))
    hidden = keras.layers.Dense(4, activation="tanh")(keras.layers.Concatenate()([words, x]))
    return keras.Model({"ids": ids, "x": x}, keras.layers.Dense(1)(hidden))


def loss(labels, predictions):
    difference = keras.ops.reshape(predictions, (-1,)) - keras.ops.reshape(labels, (-1,))
    return keras.ops.mean(keras.ops.square(difference))


def optimizer():
    return keras.optimizers.SGD(0.1)


def adam():
    return keras.optimizers.Adam(0.02)


def adagrad():
    return keras.optimizers.Adagrad(0.1)


def feed(records, mode, metadata):
    numbers = np.frombuffer(b"".join(records), "<i8").astype(np.int64)
    x = np.stack([np.sin(numbers * 0.7), np.cos(numbers * 1.3)], axis=1).astype(np.float32)
    return {"ids": numbers % 11, "x": x}, (x[:, 0] - 2 * x[:, 1] + 0.1 * (numbers % 7)).astype(np.float32)
