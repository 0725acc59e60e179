"""Functional Keras models with elasticdl's layer in each of its forms; id -1 or 0 is padding."""

from __future__ import annotations

import keras
from linear_keras import feed, loss, optimizer  # noqa: F401

from elasticdl.layers import Embedding

ARGUMENTS = {
    "padded_sqrtn": {"combiner": "sqrtn", "mask_value": -1},
    "padded": {"mask_value": -1},
    "mask_zero": {"mask_zero": True},
    "padded_mean": {"combiner": "mean", "mask_zero": True},
    "weighted": {"combiner": "mean", "mask_value": -1},
    "hidden": {"combiner": "sum", "mask_value": -1},
}


@keras.saving.register_keras_serializable("forms")
class Hidden(keras.layers.Layer):
    """A layer of the user's own with elasticdl's inside."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.items = Embedding(2, 30, name="items", **ARGUMENTS["hidden"])

    def call(self, ids):
        return self.items(ids)


def custom_model(form: str = "padded"):
    ids = keras.Input((4,), dtype="int64", name="ids")
    weights = keras.Input((4,), name="weights")
    layer = Hidden() if form == "hidden" else Embedding(2, 30, name="items", **ARGUMENTS[form])
    rows = layer(ids, weights=weights) if form == "weighted" else layer(ids)
    if form == "mask_zero":
        rows = keras.layers.GlobalAveragePooling1D()(rows)  # by the mask
    elif len(rows.shape) == 3:
        rows = keras.layers.Flatten()(rows)
    score = keras.layers.Dense(1)(keras.layers.Concatenate()([rows, weights]))
    return keras.Model({"ids": ids, "weights": weights}, score)
