"""How many of its parts a worker computes in one pass, where nothing asks for one pass each (--deterministic=false).

Large passes read the weights less often, small ones fit the caches better: which is faster depends on model and
machine. So each world's first steps try some widths in turn, and the fastest is kept for as long as the world lasts.
What counts is the training thread's own time: whatever else runs on the machine would blur any other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from elasticdl.core import steps

log = logging.getLogger(__name__)

TURNS = 6  # steps of each width; the first of them does not count: it finds caches and memory cold
LIKELY = 0.97  # the widest is taken unless another is this much faster: it also has the least to do besides


class PassWidth:
    """Of one worker. The width is the number of neighbouring parts that are computed together."""

    def __init__(self, most_records: int, measured: bool, clock: Callable[[], float] = time.thread_time) -> None:
        """No pass of several parts has more records than `most_records`, which is what DDP computes at once. Unless it
        is measured, the widest is taken."""
        self._most, self._measured, self._clock = most_records, measured, clock
        self.enter((0, 1), 1, 1)

    def enter(self, run: tuple[int, int], batch: int, virtual: int) -> None:
        """A world in which this worker has a run of the virtual workers; a step of `batch` records is cut into so many
        parts."""
        self._first, parts = run[0], run[1] - run[0]
        widest = max(1, min(parts, self._most * virtual // batch))
        self._widths = sorted({-(-widest // n) for n in (1, 2, 4)}, reverse=True)
        self._took: dict[int, list[float]] = {width: [] for width in self._widths}
        self._parts, self._turn, self._spent = parts, 0, 0.0
        self._chosen = 0 if self._measured and len(self._widths) > 1 else self._widths[0]

    def width(self, ahead: int = 0) -> int:
        """Of the present step, or of one that comes so many later."""
        return self._chosen or self._widths[(self._turn + ahead) % len(self._widths)]

    def together(self, step: steps.Step, missing: Sequence[int], ahead: int = 0) -> list[int]:
        """The virtual workers among the missing ones that are computed next, in one pass: their records follow each
        other."""
        width, found = self.width(ahead), [missing[0]]
        start = step.part(missing[0]).start
        for virtual in missing[1:]:
            part = step.part(virtual)
            apart = (virtual - self._first) // width != (missing[0] - self._first) // width
            if apart or part.start != step.part(found[-1]).stop or part.stop - start > self._most:
                break
            found.append(virtual)
        return found

    # What the steps took.

    def begin(self) -> None:
        """A pass begins."""
        self._began = self._clock()

    def end(self) -> None:
        self._spent += self._clock() - self._began

    def committed(self, usual: bool) -> None:
        """A step is over; one that is not as large as usual says nothing."""
        spent, self._spent = self._spent, 0.0
        if self._chosen or not usual:
            return
        self._took[self.width()].append(spent)
        self._turn += 1
        if self._turn == TURNS * len(self._widths):
            self._choose()

    def _choose(self) -> None:
        best = {width: min(took[1:]) for width, took in self._took.items()}  # what disturbs a pass makes it longer
        widest = self._widths[0]
        self._chosen = min(best, key=lambda width: best[width] * (LIKELY if width == widest else 1.0))
        told = [f"{1e3 * seconds:.1f} ms in {self._passes(width)}" for width, seconds in best.items()]
        log.info("This worker computes its %d parts of a step in %s: %s", self._parts, self._passes(self._chosen),
                 ", ".join(told))  # fmt: skip

    def _passes(self, width: int) -> str:
        count = -(-self._parts // width)
        return "one pass" if count == 1 else f"{count} passes"


def covering(step: steps.Step, virtuals: Sequence[int]) -> steps.Part:
    """What some neighbouring virtual workers compute together: it is known by the first of them."""
    return replace(step.part(virtuals[0]), stop=step.part(virtuals[-1]).stop)
