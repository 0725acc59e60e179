"""The metrics of a step: its loss, and whether all of its numbers are finite."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch

log = logging.getLogger(__name__)


class PendingMetrics:
    """Numbers of a step: available at once in main memory, later where a GPU is still computing them."""

    def __init__(self, step: int, numbers: torch.Tensor) -> None:
        self.step, self.at_once = step, not numbers.is_cuda
        self._numbers, self._event = numbers, None
        if numbers.is_cuda:
            self._numbers = torch.empty(numbers.shape, pin_memory=True).copy_(numbers, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def values(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        found: list[float] = self._numbers.tolist()
        return found


class StepMetrics:
    """Of the last step. Where a non-finite one fails the job, a GPU's is checked a step later, to not wait for it."""

    def __init__(self, skip: bool, committed: Callable[[int, float], None], unfit: Callable[[str], None]) -> None:
        """`skip`: a non-finite step is skipped, else `unfit` ends the job. `committed` is called with late losses."""
        self._skip, self._committed, self._unfit = skip, committed, unfit
        self._pending: PendingMetrics | None = None
        self.loss: float | None = None  # of the last step whose metrics are known
        self.skipped_steps = 0

    @property
    def late(self) -> bool:
        """Whether the last step's are not known yet."""
        return self._pending is not None

    def take(self, step: int, means: torch.Tensor, loss: torch.Tensor) -> bool:
        """Take the means of a step and its loss; whether they may be applied."""
        self.settle()
        self._pending = PendingMetrics(step, torch.stack([*torch.aminmax(means), loss]))
        return self.settle() if self._pending.at_once or self._skip else True

    def settle(self) -> bool:
        """Check the pending ones, if there are any; whether they are finite."""
        pending, self._pending = self._pending, None
        if pending is None:
            return True
        lowest, highest, loss = pending.values()
        self.loss = loss
        finite = math.isfinite(lowest) and math.isfinite(highest)
        if not finite:
            self._not_finite(pending.step, loss)
        elif not pending.at_once and not self._skip:
            self._committed(pending.step + 1, loss)
        return finite

    def _not_finite(self, step: int, loss: float) -> None:
        """All workers have the same sum, and so decide alike."""
        what = "loss" if not math.isfinite(loss) else "gradients or buffers"
        if not self._skip:
            self._unfit(f"non-finite {what} in step {step}; --nonfinite_gradients=skip would skip such steps")
        log.warning("Skipped step %d: non-finite %s", step, what)
        self.skipped_steps += 1
