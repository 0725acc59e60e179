"""Where a worker's time goes: seconds by phase, each without the phases inside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class Phases:
    """Of one thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {}
        self._inside: list[float] = []  # of the phases that are open: what those inside them took

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = self._clock()
        self._inside.append(0.0)
        try:
            yield
        finally:
            took = self._clock() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + took - self._inside.pop()
            if self._inside:
                self._inside[-1] += took

    def line(self, batches: int) -> str:
        """`Time per batch of 120: 31.2 ms compute, 8.1 ms push, 2.0 ms pull rows`, the longest first."""
        return time_line(self.seconds, batches, "batch")


def time_line(seconds: Mapping[str, float], count: int, what: str) -> str:
    """Where the time of so many batches or steps went, the longest phase first."""
    longest = sorted(seconds.items(), key=lambda item: -item[1])
    return f"Time per {what} of {count}: " + ", ".join(f"{1e3 * s / count:.1f} ms {n}" for n, s in longest)
