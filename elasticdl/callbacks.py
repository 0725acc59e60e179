"""Callbacks that a model file's `callbacks()` may return. This module imports no framework."""

from __future__ import annotations

from collections.abc import Callable


class LearningRateScheduler:
    """The learning rate of every step: `schedule(version)`, where version counts the optimizer's steps so far.

    For a rate per epoch use `keras.callbacks.LearningRateScheduler`.
    """

    def __init__(self, schedule: Callable[[int], float]) -> None:
        if not callable(schedule):
            raise TypeError(f"LearningRateScheduler: schedule is {type(schedule).__name__}, not a function")
        self.schedule = schedule
