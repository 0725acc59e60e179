"""MNIST records, shared by the models of this folder: tf.Example messages with `image` (784 bytes) and `label`."""

from __future__ import annotations

import numpy as np

from elasticdl.data.example import decode_examples


def feed(records, mode, metadata):
    """Images as float32 [n, 28, 28] between 0 and 1, labels as int64 [n]."""
    examples = decode_examples(records)
    images = examples["image"].reshape(-1, 28, 28).astype(np.float32) / 255.0
    if mode == "prediction":
        return images
    return images, examples["label"].reshape(-1).astype(np.int64)
