"""Learning-rate schedules of the model file, as a rate for each model version and epoch.

A worker computes the rate of the version that it pulled and sends it with the push. So only workers run the user's
code, and the rate continues correctly after a restore, since the version comes from the servers.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticdl.callbacks import LearningRateScheduler
from elasticdl.errors import ModelError, ScheduleError
from elasticdl.frameworks.arrays import to_numpy
from elasticdl.frameworks.model_file import ModelFile

# In a push 0 means the optimizer's own rate. This number is 0 as a float32, and so is any fraction of it.
NO_RATE = 1e-300
SUPPORTED = "keras.callbacks.LearningRateScheduler (by epoch) or elasticdl.callbacks.LearningRateScheduler (by step)"
# The options that torch schedulers change in an optimizer's groups, and values that they store there.
SCHEDULED = frozenset(
    ("lr", "initial_lr", "max_lr", "min_lr", "momentum", "base_momentum", "max_momentum", "betas", "swa_lr")
)


@dataclass(frozen=True)
class Schedule:
    """A learning rate that changes; `name` is its name in messages."""

    name: str
    code: ModelFile
    function: Callable[[int, int], Any]  # of version and epoch

    def rate(self, version: int, epoch: int) -> float:
        """The rate of the step from this version of the model, in this epoch (both count from 0)."""
        where = f"version {version}, epoch {epoch}"
        try:
            with self.code.running(f"computing the learning rate of {where} with {self.name}"):
                found = float(np.asarray(to_numpy(self.function(version, epoch))).reshape(()))
        except ModelError as error:
            raise ScheduleError(error.path, error.what, error.remedy, error.traceback) from error
        if not (math.isfinite(found) and found >= 0):
            what = f"{self.name} returned {found} as the learning rate of {where}"
            raise ScheduleError(self.code.path, what, "Return a finite number that is not negative.")
        return found

    def to_send(self, version: int, epoch: int) -> float:
        """The rate in the form of a push."""
        return self.rate(version, epoch) or NO_RATE


def read_schedule(
    code: ModelFile, optimizer: Any, scheduler: Any, interval: str, first: float | None
) -> Schedule | None:
    """The one schedule of optimizer, torch scheduler and callbacks; None for a constant rate.

    `first` is the optimizer's own rate, if it has one. The schedule is called for the first two versions, so that most
    of its errors show before a job starts.
    """
    found = [*_of_optimizer(code, optimizer), *_of_torch(code, optimizer, scheduler, interval)]
    found += [_of_callback(code, callback, first) for callback in code.callbacks()]
    if len(found) > 1:
        names = " and ".join(s.name for s in found)
        raise ModelError(code.path, f"{names} all set the learning rate", "Keep one of them.")
    for schedule in found:
        for version in (0, 1):
            schedule.rate(version, 0)
    return found[0] if found else None


def is_keras_schedule(rate: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)


def _of_optimizer(code: ModelFile, optimizer: Any) -> list[Schedule]:
    rate: Any = getattr(optimizer, "_learning_rate", None)
    if not is_keras_schedule(rate):
        return []
    ops = sys.modules["keras"].ops

    def of_version(version: int, _epoch: int) -> Any:
        return rate(ops.convert_to_tensor(version, "int32"))  # as Keras passes its step counter

    return [Schedule(f"the schedule {type(rate).__name__}", code, of_version)]


def _of_callback(code: ModelFile, callback: Any, first: float | None) -> Schedule:
    keras = sys.modules.get("keras")
    if type(callback) is LearningRateScheduler:
        return Schedule(f"LearningRateScheduler({_named(callback.schedule)})", code, lambda v, _: callback.schedule(v))
    if keras is not None and type(callback) is keras.callbacks.LearningRateScheduler:
        name = f"Keras LearningRateScheduler({_named(callback.schedule)})"
        if first is None:
            raise ModelError(code.path, f"{name}: the optimizer has its own schedule", "Keep one of them.")
        return Schedule(name, code, _ByEpoch(callback.schedule, first))
    what = f"{code.request.callbacks}(): {kind_of(callback)} is not supported"
    raise ModelError(code.path, what, f"Use {SUPPORTED}.")


class _ByEpoch:
    """As in Keras: a function of the epoch, or of the epoch and the rate of the previous epoch."""

    def __init__(self, schedule: Callable[..., Any], first: float) -> None:
        self._schedule, self._first = schedule, first
        self._rates: list[float] = []
        try:
            inspect.signature(schedule).bind(0, first)
            self._takes_rate = True
        except TypeError:
            self._takes_rate = False

    def __call__(self, _version: int, epoch: int) -> float:
        while len(self._rates) <= epoch:
            before = self._rates[-1] if self._rates else self._first
            arguments = (len(self._rates), before) if self._takes_rate else (len(self._rates),)
            # Keras keeps the rate in float32 from one epoch to the next.
            self._rates.append(float(np.float32(to_numpy(self._schedule(*arguments)))))
        return self._rates[epoch]


def _of_torch(code: ModelFile, optimizer: Any, scheduler: Any, interval: str) -> list[Schedule]:
    if scheduler is None:
        return []
    name = check_scheduler(code, optimizer, scheduler)
    moving = _ServerRate(code, optimizer, scheduler, name)
    if interval == "step":
        return [Schedule(f"{name} by step", code, lambda version, _: moving.at(version))]
    return [Schedule(f"{name} by epoch", code, lambda _, epoch: moving.at(epoch))]


def check_scheduler(code: ModelFile, optimizer: Any, scheduler: Any) -> str:
    """The scheduler's name; ModelError unless it depends on a count alone and belongs to this optimizer."""
    torch = sys.modules["torch"]
    name = f"torch {type(scheduler).__name__}"
    symbol = code.request.optimizer
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        remedy = "Use a schedule that depends on the step or the epoch alone."
        raise ModelError(code.path, f"{symbol}(): {name} is not supported: it depends on a metric", remedy)
    if scheduler.optimizer is not optimizer:
        raise ModelError(
            code.path,
            f"{symbol}(): {name} belongs to another optimizer",
            "Create it with the optimizer that you return.",
        )
    return name


class SchedulerSteps:
    """A torch scheduler as a function of a count. To go back, it starts again from 0."""

    def __init__(self, optimizer: Any, scheduler: Any) -> None:
        self._optimizer, self._scheduler = optimizer, scheduler
        self._start = copy.deepcopy(scheduler.state_dict())
        self._first = [
            {key: copy.deepcopy(value) for key, value in group.items() if key in SCHEDULED}
            for group in optimizer.param_groups
        ]
        self._at = 0

    def to(self, count: int) -> None:
        """Set the options of the optimizer's groups as after this many steps of the scheduler."""
        if count < self._at:
            self._scheduler.load_state_dict(copy.deepcopy(self._start))
            for group, first in zip(self._optimizer.param_groups, self._first, strict=True):
                group.update(copy.deepcopy(first))
            self._at = 0
        self._optimizer._opt_called = True  # else torch warns about a scheduler that steps before its optimizer
        while self._at < count:
            self._scheduler.step()
            self._at += 1


class _ServerRate:
    """The learning rate of a torch scheduler, as parameter servers take it: one rate, and no other option changes."""

    def __init__(self, code: ModelFile, optimizer: Any, scheduler: Any, name: str) -> None:
        self._code, self._optimizer, self._name = code, optimizer, name
        self._steps = SchedulerSteps(optimizer, scheduler)
        self._options = self._others()

    def at(self, count: int) -> float:
        """The rate after this many steps of the scheduler."""
        self._steps.to(count)
        for option, value in self._others().items():
            if value != self._options[option]:
                what = f"{self._name} also changes {option}, which parameter servers do not support"
                raise ModelError(self._code.path, what, "Set cycle_momentum=False.")
        rates = {float(group["lr"]) for group in self._optimizer.param_groups}
        if len(rates) > 1:
            raise ModelError(
                self._code.path, f"{self._name} gives parameter groups different rates", "Use one rate for all groups."
            )
        return rates.pop()

    def _others(self) -> dict[str, Any]:
        group = self._optimizer.param_groups[0]
        return {option: group.get(option) for option in ("momentum", "betas", "weight_decay", "alpha", "eps")}


def kind_of(thing: Any) -> str:
    """The class of an object as messages name it: with its library, unless it is Python's own."""
    kind = type(thing)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.split('.')[0]}'s {kind.__name__}"


def _named(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
