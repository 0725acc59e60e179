"""The pebble in Keras: dropout and batch norm, Adam with a schedule."""

from __future__ import annotations

import os

import keras
from pebble import feed, pause  # noqa: F401


class Pause(keras.layers.Layer):
    """Makes a training pass last."""

    def call(self, inputs, training=False):
        if training and os.environ.get("KERAS_BACKEND", "torch") == "torch":
            pause()
        return inputs


def custom_model(width: int = 32) -> keras.Model:
    inputs = keras.Input((16,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(width)(Pause()(inputs)))
    hidden = keras.layers.Dropout(0.3)(keras.layers.ReLU()(hidden))
    return keras.Model(inputs, keras.layers.Dense(2)(hidden))


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer():
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 20, 0.9))


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
