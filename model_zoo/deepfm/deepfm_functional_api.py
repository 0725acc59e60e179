"""DeepFM on Criteo-shaped records in Keras' functional form, its embeddings on the parameter servers."""

from __future__ import annotations

import keras
from deepfm.criteo import BUCKETS, CATEGORIES, COUNTS, feed  # noqa: F401

from elasticdl.layers import Embedding


def custom_model(dim: int = 8, hidden: int = 64):
    counts = keras.Input((len(COUNTS),), name="counts")
    ids = keras.Input((len(CATEGORIES),), dtype="int64", name="ids")
    vectors = Embedding(dim, input_dim=BUCKETS, name="vectors")(ids)  # [batch, 26, dim]
    weights = Embedding(1, input_dim=BUCKETS, combiner="sum", name="weights")(ids)  # [batch, 1]

    linear = weights + keras.layers.Dense(1)(counts)
    total = keras.ops.sum(vectors, axis=1)
    pairs = 0.5 * keras.ops.sum(total * total - keras.ops.sum(vectors * vectors, axis=1), axis=1, keepdims=True)

    deep = keras.layers.Concatenate()([keras.layers.Flatten()(vectors), counts])
    deep = keras.layers.Dense(hidden, activation="relu")(deep)
    deep = keras.layers.Dense(hidden // 2, activation="relu")(deep)
    return keras.Model({"counts": counts, "ids": ids}, linear + pairs + keras.layers.Dense(1)(deep), name="deepfm")


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels, predictions, from_logits=True)


def optimizer():
    return keras.optimizers.Adagrad(0.05)


def eval_metrics_fn():
    return {
        "auc": keras.metrics.AUC(from_logits=True),
        "accuracy": lambda labels, predictions: (predictions > 0) == (labels > 0.5),
    }
