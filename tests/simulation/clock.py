"""A virtual clock: what should happen later happens in order, at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, action))

    def run(self, until: Callable[[], bool], deadline: float) -> None:
        """Run until the condition holds, nothing is left to do, or the deadline passes."""
        while self._heap and not until():
            at, _, action = heapq.heappop(self._heap)
            if at > deadline:
                return
            self.now = max(self.now, at)
            action()
