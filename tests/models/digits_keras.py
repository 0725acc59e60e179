"""The zoo's convolutional net in Keras, with dropout and batch norm: Adam, images drawn from numbers."""

from __future__ import annotations

import keras
from drawn import images as feed  # noqa: F401
from mnist.mnist_functional_api import custom_model, eval_metrics_fn, loss  # noqa: F401


def optimizer():
    return keras.optimizers.Adam(1e-3)
