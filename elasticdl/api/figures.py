"""The figures of a step: its loss, and whether anything in it is not finite."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch

log = logging.getLogger(__name__)


class Reading:
    """Some figures of a step: at once where they are in this process's memory, later where a GPU is still at it."""

    def __init__(self, step: int, figures: torch.Tensor) -> None:
        self.step, self.at_once = step, not figures.is_cuda
        self._figures, self._event = figures, None
        if figures.is_cuda:
            self._figures = torch.empty(figures.shape, pin_memory=True).copy_(figures, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def values(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        found: list[float] = self._figures.tolist()
        return found


class Figures:
    """Of the last step. Where one that is not finite fails the job, that may be seen a step later: no GPU waits."""

    def __init__(self, skip: bool, committed: Callable[[int, float], None], unfit: Callable[[str], None]) -> None:
        """`skip`: a step that is not finite moves nothing, else it makes the job `unfit`. `committed` hears of losses
        that come late."""
        self._skip, self._committed, self._unfit = skip, committed, unfit
        self._reading: Reading | None = None  # on their way
        self.loss: float | None = None  # of the last step whose figures are here
        self.skipped_steps = 0

    @property
    def late(self) -> bool:
        """Whether the last step's are still on their way."""
        return self._reading is not None

    def take(self, step: int, means: torch.Tensor, loss: torch.Tensor) -> bool:
        """The means of a step, its loss among them; whether they may be applied."""
        self.settle()
        self._reading = Reading(step, torch.stack([*torch.aminmax(means), loss]))
        return self.settle() if self._reading.at_once or self._skip else True

    def settle(self) -> bool:
        """Look at them, if that has yet to be done; whether they are finite."""
        reading, self._reading = self._reading, None
        if reading is None:
            return True
        lowest, highest, loss = reading.values()
        self.loss = loss
        finite = math.isfinite(lowest) and math.isfinite(highest)
        if not finite:
            self._not_finite(reading.step, loss)
        elif not reading.at_once and not self._skip:
            self._committed(reading.step + 1, loss)
        return finite

    def _not_finite(self, step: int, loss: float) -> None:
        """All workers see the same sum, so that all decide alike."""
        what = "the loss" if not math.isfinite(loss) else "a gradient, or a value that the model keeps,"
        if not self._skip:
            self._unfit(f"not finite: {what} of step {step}. --nonfinite_gradients=skip leaves such steps out.")
        log.warning("Not finite: %s of step %d, which moves nothing", what, step)
        self.skipped_steps += 1
