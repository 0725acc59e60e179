"""Evaluation during training: the workers of a world share it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from elasticdl.api.terms import Hooks
from elasticdl.api.world import World
from elasticdl.collective.control import SharedSession
from elasticdl.frameworks.determinism import random_state_kept

BATCH = 256  # records of one call of the user's function


class RecordEvaluation:
    """By a user's function of record numbers that gives mean metrics: each virtual worker has a part of the records."""

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


class Evaluations:
    """Which versions are evaluated, and the evaluation that is running.

    Each member measures its share of the parts. When the world changes, it keeps what it measured.
    """

    def __init__(self, control: SharedSession, hooks: Hooks, parts: int, every: int) -> None:
        self._control, self._hooks, self._parts, self._every = control, hooks, parts, every
        self._done: set[int] = set()
        self._measured: dict[int, bytes] = {}

    def due(self, version: int, finished: bool) -> bool:
        due = finished or bool(self._every and version and version % self._every == 0)
        return self._hooks.evaluation is not None and due and version not in self._done

    def entered(self, world: World) -> None:
        """A world was formed: its members exchanged what they know."""
        self._done = set(world.evaluated)

    def reset(self) -> None:
        """The model has changed."""
        self._measured.clear()

    def evaluate(self, world: World, version: int) -> None:
        """Together with the other members. Raises CalledOff or GroupBroken."""
        evaluation = self._hooks.evaluation
        assert evaluation is not None
        mine = range(*world.share(self._parts))
        for part in mine:
            if part not in self._measured:
                self._measured[part] = evaluation.part(part, self._proceed)
        self._control.doing("exchange")
        with self._control.interruptible(world.group.abort):
            gathered = world.gather(_pack([self._measured[part] for part in mine]))
        self._control.doing("evaluate")
        parts = [part for packed in gathered for part in _unpack(packed)]  # the shares are in the order of the ranks
        metrics = dict(evaluation.merged(parts))
        self._done.add(version)
        self.reset()
        self._control.send(lambda s: s.evaluated(version, json.dumps(metrics), send=world.rank == 0))
        self._control.doing("program")
        self._hooks.evaluated(version, metrics)

    def _proceed(self) -> None:
        """Between two batches of a part: report progress, and stop if it is called off."""
        self._control.check()
        self._control.doing("evaluate")


def _pack(parts: Sequence[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _unpack(data: bytes) -> list[bytes]:
    parts, place = [], 0
    while place < len(data):
        size = int.from_bytes(data[place : place + 8], "little")
        parts.append(data[place + 8 : place + 8 + size])
        place += 8 + size
    return parts
