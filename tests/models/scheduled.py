"""The witness model with a learning rate that changes: for tests that a job follows its schedule.

Every rate is a power of two, so that sums of them are exact.
"""

from __future__ import annotations

import keras
from witness import custom_model, eval_metrics_fn, feed, loss, optimizer  # noqa: F401

from elasticdl.callbacks import LearningRateScheduler

BY_VERSION = {0: 1.0, 10: 0.5, 20: 0.0, 30: 0.125}  # from this version on
BY_EPOCH = [1.0, 0.25, 0.5]


def rate_of(version):
    return BY_VERSION[max(start for start in BY_VERSION if start <= version)]


def by_version():
    return [LearningRateScheduler(rate_of)]


def by_epoch():
    return [keras.callbacks.LearningRateScheduler(lambda epoch: BY_EPOCH[epoch])]


def broken(version):
    if version >= 10:
        raise ValueError("no rate for you")
    return 0.1


def breaking():
    return [LearningRateScheduler(broken)]
