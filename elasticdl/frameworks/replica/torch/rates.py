"""Learning rates for the user's torch optimizer, as functions of step and epoch alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from elasticdl.errors import ModelError
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.schedules import Schedule, SchedulerSteps, check_scheduler, read_schedule


class TorchRates:
    """Sets the options of a torch optimizer's groups for a step, from a torch scheduler or the user's callbacks."""

    def __init__(self, code: ModelFile, optimizer: Any, scheduler: Any, interval: str) -> None:
        self._code, self._optimizer = code, optimizer
        rates = {float(group["lr"]) for group in optimizer.param_groups}
        self._schedule: Schedule | None = read_schedule(code, optimizer, None, "", min(rates))
        self._mover: SchedulerSteps | None = None
        self._by_step = interval == "step"
        if scheduler is not None:
            name = check_scheduler(code, optimizer, scheduler)
            if self._schedule is not None:
                what = f"{name} and {self._schedule.name} all set the learning rate"
                raise ModelError(code.path, what, "Keep one of them.")
            self._mover = SchedulerSteps(optimizer, scheduler)
        if self._schedule is not None and len(rates) > 1:
            what = f"{self._schedule.name} gives one learning rate, but parameter groups have different ones"
            raise ModelError(code.path, what, 'Return a torch scheduler: (optimizer, scheduler, "step").')

    @contextmanager
    def at(self, step: int, epoch: int, scale: float) -> Iterator[None]:
        """Inside, the optimizer has the rates of this step."""
        groups = self._optimizer.param_groups
        if self._mover is not None:
            with self._code.running(f"setting the learning rate of step {step}, epoch {epoch}"):
                self._mover.to(step if self._by_step else epoch)
        elif self._schedule is not None:
            _set(groups, [self._schedule.rate(step, epoch)] * len(groups))
        with scaled(groups, scale):
            yield


@contextmanager
def scaled(groups: list[dict[str, Any]], scale: float) -> Iterator[None]:
    """Inside, the rates of an optimizer's groups are multiplied by `scale`."""
    if scale == 1.0:
        yield
        return
    rates = [float(group["lr"]) for group in groups]
    _set(groups, [rate * scale for rate in rates])
    try:
        yield
    finally:
        _set(groups, rates)


def _set(groups: list[dict[str, Any]], rates: list[float]) -> None:
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
