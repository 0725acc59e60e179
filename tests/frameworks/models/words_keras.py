"""Plain Keras embeddings, which may move to the servers: a mean over the words of a text, in every form Keras has."""

from __future__ import annotations

import keras
import numpy as np

WORDS, DIM = 40, 3


class Words(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.words = keras.layers.Embedding(WORDS, DIM, mask_zero=True, name="words")
        self.mean = keras.layers.GlobalAveragePooling1D()
        self.score = keras.layers.Dense(1, name="score")

    def call(self, ids):
        return self.score(self.mean(self.words(ids)))


class Tied(keras.Model):
    """The rows serve twice: to read a word and to score words."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.words = keras.layers.Embedding(WORDS, DIM, name="words")

    def call(self, ids):
        hidden = keras.ops.mean(self.words(ids), axis=1)
        return keras.ops.matmul(hidden, keras.ops.transpose(self.words.embeddings))[:, :1]


def custom_model(form: str = "functional"):
    if form == "subclass":
        return Words()
    if form == "tied":
        return Tied()
    words = keras.layers.Embedding(WORDS, DIM, mask_zero=True, name="words", **OPTIONS.get(form, {}))
    mean, score = keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1, name="score")
    if form == "sequential":
        return keras.Sequential([keras.Input((4,), dtype="int64"), words, mean, score])
    ids = keras.Input((4,), dtype="int64")
    model = keras.Model(ids, score(mean(words(ids))))
    if form == "pretrained":
        words.set_weights([np.arange(WORDS * DIM, dtype=np.float32).reshape(WORDS, DIM)])
    if form == "frozen":
        words.trainable = False
    if form == "tied_graph":
        scores = keras.ops.einsum("bd,wd->bw", mean(words(ids)), words.embeddings)
        model = keras.Model(ids, keras.ops.max(scores, axis=1, keepdims=True))
    return model


OPTIONS = {
    "regularized": {"embeddings_regularizer": "l2"},
    "constrained": {"embeddings_constraint": "non_neg"},
    "truncated": {"embeddings_initializer": "glorot_normal"},
    "glorot": {"embeddings_initializer": "glorot_uniform"},
}


def loss(labels, predictions):
    return keras.ops.square(predictions - labels)


def optimizer():
    return keras.optimizers.SGD(0.1)


def feed(records, mode, metadata):
    raise NotImplementedError
