"""Which records of a part cannot be read or fed, found by halving it: every worker finds the same ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from elasticdl.errors import DataError, ModelError


@dataclass
class Sieve:
    """The good records of some positions, and the bad ones: their numbers, with what is wrong with each.

    It remembers nothing between parts: what is left out of a part must not depend on which parts this worker has seen.
    """

    read: Callable[[int, int], tuple[list[Any], Any]]  # records at positions [start, stop), and their numbers
    feed: Callable[[list[Any]], object]
    number: Callable[[int], int]  # of the record at a position
    records: list[Any] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)

    def sift(self, start: int, stop: int) -> None:
        """Halve what fails until single records do."""
        error = self._try(start, stop)
        if error and stop - start == 1:
            self.bad[self.number(start)] = error
        elif error:
            middle = (start + stop) // 2
            self.sift(start, middle)
            self.sift(middle, stop)

    def _try(self, start: int, stop: int) -> str:
        """Keep them all, or say what is wrong."""
        try:
            records, numbers = self.read(start, stop)
            self.feed(records)
        except (ModelError, DataError) as error:
            return str(error)
        self.records += records
        self.numbers += [int(n) for n in numbers]
        return ""
