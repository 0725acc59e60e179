"""How many of its parts a worker computes in one pass, without determinism (--deterministic=false).

Large passes read the weights less often, small ones fit the caches better: which is faster depends on model and
machine. So the first steps of each world try some widths in turn, and the fastest is used for the rest of the world.
The measure is the CPU time of the training thread, which other processes on the machine disturb least.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from elasticdl.core import steps

log = logging.getLogger(__name__)

TURNS = 6  # steps of each width; the first does not count, since caches and memory are cold
LIKELY = 0.97  # the widest is chosen unless another is this much faster: it has the least overhead


class PassWidth:
    """The width is the number of neighbouring parts that are computed together."""

    def __init__(self, most_records: int, measured: bool, clock: Callable[[], float] = time.thread_time) -> None:
        """No pass of several parts has more than `most_records` records, as many as a pass of DDP. Without measuring,
        the widest is chosen."""
        self._most, self._measured, self._clock = most_records, measured, clock
        self.enter((0, 1), 1, 1)

    def enter(self, run: tuple[int, int], batch: int, virtual: int) -> None:
        """A world with this worker's run of virtual workers; a step of `batch` records has `virtual` parts."""
        self._first, parts = run[0], run[1] - run[0]
        widest = max(1, min(parts, self._most * virtual // batch))
        self._widths = sorted({-(-widest // n) for n in (1, 2, 4)}, reverse=True)
        self._took: dict[int, list[float]] = {width: [] for width in self._widths}
        self._parts, self._turn, self._spent = parts, 0, 0.0
        self._chosen = 0 if self._measured and len(self._widths) > 1 else self._widths[0]

    def width(self, ahead: int = 0) -> int:
        """In the current step, or so many steps later."""
        return self._chosen or self._widths[(self._turn + ahead) % len(self._widths)]

    def next_pass(self, step: steps.Step, missing: Sequence[int], ahead: int = 0) -> list[int]:
        """The missing virtual workers to compute next, in one pass: their records are neighbours."""
        width, found = self.width(ahead), [missing[0]]
        start = step.part(missing[0]).start
        for virtual in missing[1:]:
            part = step.part(virtual)
            apart = (virtual - self._first) // width != (missing[0] - self._first) // width
            if apart or part.start != step.part(found[-1]).stop or part.stop - start > self._most:
                break
            found.append(virtual)
        return found

    # The time of the steps.

    def begin(self) -> None:
        """A pass begins."""
        self._began = self._clock()

    def end(self) -> None:
        self._spent += self._clock() - self._began

    def committed(self, usual: bool) -> None:
        """A step is over; its time counts only if it has the usual size."""
        spent, self._spent = self._spent, 0.0
        if self._chosen or not usual:
            return
        self._took[self.width()].append(spent)
        self._turn += 1
        if self._turn == TURNS * len(self._widths):
            self._choose()

    def _choose(self) -> None:
        best = {width: min(took[1:]) for width, took in self._took.items()}  # disturbances only make it longer
        widest = self._widths[0]
        self._chosen = min(best, key=lambda width: best[width] * (LIKELY if width == widest else 1.0))
        times = [f"{1e3 * seconds:.1f} ms in {self._passes(width)}" for width, seconds in best.items()]
        log.info("Computing the %d parts of a step in %s (measured: %s)", self._parts, self._passes(self._chosen),
                 ", ".join(times))  # fmt: skip

    def _passes(self, width: int) -> str:
        count = -(-self._parts // width)
        return "one pass" if count == 1 else f"{count} passes"


def combined(step: steps.Step, virtuals: Sequence[int]) -> steps.Part:
    """What neighbouring virtual workers compute together; it has the number of the first one."""
    return replace(step.part(virtuals[0]), stop=step.part(virtuals[-1]).stop)
