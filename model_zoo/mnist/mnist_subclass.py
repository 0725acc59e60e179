"""MNIST with a small convolutional net, as a subclass of keras.Model. It creates its variables on the first batch."""

from __future__ import annotations

import keras
from mnist.records import feed  # noqa: F401


class MnistModel(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.reshape = keras.layers.Reshape((28, 28, 1))
        self.conv1 = keras.layers.Conv2D(32, 3, activation="relu")
        self.conv2 = keras.layers.Conv2D(64, 3, activation="relu")
        self.pool = keras.layers.MaxPooling2D()
        self.norm = keras.layers.BatchNormalization(momentum=0.95)
        self.dropout = keras.layers.Dropout(0.25)
        self.flatten = keras.layers.Flatten()
        self.logits = keras.layers.Dense(10)

    def call(self, images, training=False):
        x = self.pool(self.conv2(self.conv1(self.reshape(images))))
        x = self.dropout(self.norm(x, training=training), training=training)
        return self.logits(self.flatten(x))


def custom_model():
    return MnistModel()


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer():
    return keras.optimizers.SGD(0.01)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
