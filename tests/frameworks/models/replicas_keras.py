"""The net of replicas_torch.py in Keras, and optimizers to choose from."""

from __future__ import annotations

import keras

from elasticdl.callbacks import LearningRateScheduler


class Counter(keras.layers.Layer):
    """Counts passes in an integer variable, and holds a table that stands still."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="seen")
        self.pattern = self.add_weight(
            shape=(3,), initializer=keras.initializers.Constant(-float("inf")), trainable=False, name="pattern"
        )

    def call(self, x, training=False):
        if training:
            self.seen.assign(self.seen + 3)
        return x


def custom_model(plain: bool = False):
    x = keras.Input((6,))
    y = keras.layers.Dense(16, activation="tanh", kernel_constraint=keras.constraints.MaxNorm(2.0))(x)
    y = Counter()(y)
    if not plain:
        y = keras.layers.BatchNormalization(momentum=0.7)(y)
        y = keras.layers.Dropout(0.4)(y)
        y = keras.layers.GaussianNoise(0.1)(y)
    return keras.Model(x, keras.layers.Dense(3)(y))


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def feed(records, mode, metadata):
    raise NotImplementedError


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def optimizer():
    return keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5)


def plain_descent():
    return keras.optimizers.SGD(0.1)


def adam():
    return keras.optimizers.Adam(0.01)


def adamw():
    return keras.optimizers.AdamW(0.01, weight_decay=0.1, amsgrad=True)


def rmsprop():
    return keras.optimizers.RMSprop(0.01, momentum=0.5)


def adagrad():
    return keras.optimizers.Adagrad(0.05)


def nadam():
    return keras.optimizers.Nadam(0.01)  # none that parameter servers know


def averaged():
    return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01))


def cosine():
    return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10), momentum=0.9)


def of_torch(parameters):
    import torch

    return torch.optim.Adam(parameters, lr=0.01)


def callbacks():
    return []


def by_step():
    return [LearningRateScheduler(lambda step: 0.5 / (step + 1))]


def by_epoch():
    return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)]
