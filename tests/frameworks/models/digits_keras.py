"""Handwritten digits of 8x8 pixels: a small net with batch normalization, in Keras' functional form."""

from __future__ import annotations

import keras


def custom_model():
    x = keras.Input((64,))
    hidden = keras.layers.Dense(32, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-4))(x)
    hidden = keras.layers.BatchNormalization(momentum=0.9)(hidden)
    return keras.Model(x, keras.layers.Dense(10)(hidden))


def loss(labels, predictions):
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True))


def optimizer():
    return keras.optimizers.SGD(0.2)


def feed(records, mode, metadata):
    raise NotImplementedError


def eval_metrics_fn():
    return {
        "accuracy": lambda labels, predictions: predictions.argmax(axis=1) == labels,
        "keras_accuracy": keras.metrics.SparseCategoricalAccuracy(),
    }
