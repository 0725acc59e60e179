"""A Keras optimizer that takes the steps of a model replica, on any backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from elasticdl.errors import ModelError
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.optimizers import keras_rate
from elasticdl.frameworks.replica.state import OPTIMIZER
from elasticdl.frameworks.schedules import check_scheduler, is_keras_schedule, read_schedule


class KerasSteps:
    """The optimizer with all its variables, and its learning rate, which a schedule sets for each step."""

    def __init__(
        self, code: ModelFile, variables: Sequence[Any], optimizer: Any, scheduler: Any, interval: str
    ) -> None:
        self.code, self.optimizer, self.variables = code, optimizer, list(variables)
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            what = f"optimizer() returned {type(optimizer).__name__} for a Keras model"
            raise ModelError(code.path, what, "Return an optimizer of keras.optimizers.")
        if scheduler is not None:
            check_scheduler(code, optimizer, scheduler)
        inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
        scheduled = is_keras_schedule(inner._learning_rate)
        first = keras_rate(inner, code.path, f"Keras {type(inner).__name__}")
        self._schedule = read_schedule(code, inner, None, "", None if scheduled else first)
        self._first, self._last = first, None if self._schedule else first
        if scheduled:
            _hold_rate(inner)
        self._rate = inner._learning_rate
        with code.running(f"building {type(optimizer).__name__}"):
            optimizer.build(self.variables)
        self.named = _named(optimizer.variables)
        self.scales_loss = hasattr(optimizer, "dynamic_scale") or bool(getattr(optimizer, "loss_scale_factor", None))

    @contextmanager
    def rate_of(self, step: int, epoch: int, scale: float) -> Iterator[None]:
        """Inside, the optimizer has the rate of this step. Afterwards it has, and saves, the rate without the scale."""
        rate = self._first if self._schedule is None else self._schedule.rate(step, epoch)
        self._set(rate * scale)
        try:
            yield
        finally:
            self._set(rate)

    def _set(self, rate: float) -> None:
        if rate != self._last:
            self._rate.assign(rate)
            self._last = rate

    def forget_rate(self) -> None:
        """Call this after other code changed the variable of the rate."""
        self._last = None

    def loss_scale(self) -> float:
        """The factor of the loss before it is differentiated; the optimizer divides gradients by it."""
        return float(self.optimizer.scale_loss(1.0)) if self.scales_loss else 1.0

    @contextmanager
    def final_values(self) -> Iterator[None]:
        """Inside, variables are replaced by their moving averages, if the optimizer keeps them."""
        if not getattr(self.optimizer, "use_ema", False):
            yield
            return
        before = [keras.ops.copy(v.value) for v in self.variables]
        self.optimizer.finalize_variable_values(self.variables)
        try:
            yield
        finally:
            for variable, value in zip(self.variables, before, strict=True):
                variable.assign(value)


def _hold_rate(optimizer: Any) -> None:
    """Give the optimizer a variable for the rate, as without a schedule: the job's step number sets it."""
    with keras.name_scope(optimizer.name):
        rate = keras.Variable(0.0, dtype="float32", trainable=False, name="learning_rate")
    optimizer._track_variable(rate)
    optimizer._learning_rate = rate


def _named(variables: Sequence[Any]) -> dict[str, Any]:
    """Variables by their paths. Of two with the same path (`a/b` and `a_b` can clash) the second gets a number."""
    named: dict[str, Any] = {}
    for variable in variables:
        name, number = f"{OPTIMIZER}{variable.path}", 1
        while name in named:
            number += 1
            name = f"{OPTIMIZER}{variable.path}#{number}"
        named[name] = variable
    return named
