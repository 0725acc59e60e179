"""Evaluation by a function of the user's own: means over records, which add up to the mean over all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from elasticdl.frameworks.determinism import random_state_kept

BATCH = 256  # records that the function is given at a time


class RecordEvaluation:
    """The validation data in as many parts as there are virtual workers, whoever computes them."""

    def __init__(
        self, evaluate: Callable[[npt.NDArray[np.int64]], Mapping[str, float]], records: int, virtual: int
    ) -> None:
        self._evaluate, self._records, self._virtual = evaluate, records, virtual

    def part(self, virtual: int, check: Callable[[], None]) -> bytes:
        first, last = (self._records * v // self._virtual for v in (virtual, virtual + 1))
        sums: dict[str, list[float]] = {}
        with random_state_kept():
            for start in range(first, last, BATCH):
                check()
                numbers = np.arange(start, min(start + BATCH, last), dtype=np.int64)
                for name, mean in self._evaluate(numbers).items():
                    total = sums.setdefault(name, [0.0, 0.0])
                    total[0] += float(mean) * len(numbers)
                    total[1] += len(numbers)
        return json.dumps(sums).encode()

    def merged(self, parts: Sequence[bytes]) -> Mapping[str, float]:
        sums: dict[str, list[float]] = {}
        for part in parts:
            for name, (total, count) in json.loads(part).items():
                held = sums.setdefault(name, [0.0, 0.0])
                held[0] += total
                held[1] += count
        return {name: total / count for name, (total, count) in sums.items()}
