"""A small language model in Keras' functional form: a transformer that predicts the next byte of a text."""

from __future__ import annotations

import keras
from text.windows import CONTEXT, custom_data_reader, feed  # noqa: F401


@keras.saving.register_keras_serializable("text")
class Places(keras.layers.Layer):
    """Adds a vector per position in the window."""

    def build(self, shape):
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.vectors = self.add_weight(shape=shape[1:], initializer=normal, name="vectors")

    def call(self, x):
        return x + self.vectors


def custom_model(width: int = 64, layers: int = 2, heads: int = 4, context: int = CONTEXT, dropout: float = 0.1):
    ids = keras.Input((context,), dtype="int32", name="bytes")
    x = Places(name="places")(keras.layers.Embedding(256, width, name="letters")(ids))
    for _ in range(layers):
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(y, y, use_causal_mask=True)
        x = x + keras.layers.Dropout(dropout)(y)
        y = keras.layers.Dense(4 * width, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = x + keras.layers.Dropout(dropout)(keras.layers.Dense(width)(y))
    logits = keras.layers.Dense(256, name="logits")(keras.layers.LayerNormalization()(x))
    return keras.Model(ids, logits, name="transformer")


def loss(labels, predictions):
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True))


def optimizer():
    return keras.optimizers.AdamW(3e-3)


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: (predictions.argmax(-1) == labels).mean(1)}
