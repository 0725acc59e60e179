"""A linear model of three numbers and the mean of two rows, in Keras' functional form."""

from __future__ import annotations

import keras
import numpy as np

from elasticdl.layers import Embedding

ROWS = 50


def custom_model(input_dim: int | None = ROWS):
    x = keras.Input((3,), name="x")
    ids = keras.Input((2,), dtype="int64", name="ids")
    rows = Embedding(2, input_dim=input_dim, combiner="mean", name="items")(ids)
    return keras.Model({"x": x, "ids": ids}, keras.layers.Dense(1)(keras.layers.Concatenate()([x, rows])))


def loss(labels, predictions):
    return keras.ops.square(predictions - labels)  # one value per record: the mean is taken


def optimizer():
    return keras.optimizers.SGD(0.1)


def feed(records, mode, metadata):
    features = {"x": np.array([r["x"] for r in records]), "ids": np.array([r["ids"] for r in records])}
    return features if mode == "prediction" else (features, np.array([[r["y"]] for r in records]))


def eval_metrics_fn():
    return {
        "error": lambda labels, predictions: (predictions - labels) ** 2,
        "mean_error": lambda labels, predictions: np.mean((predictions - labels) ** 2),
        "keras_error": keras.metrics.MeanSquaredError(),
        "r2": keras.metrics.R2Score,
    }
