"""A row source in memory: rows are created on first use as a function of table and id, and updated by SGD."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from elasticdl.job.parameters import ParametersSpec


class MemoryRows:
    def __init__(self, parameters: ParametersSpec, seed: int = 0) -> None:
        self._tables = {table.name: table for table in parameters.tables}
        self._seed = seed
        self.stored: dict[str, dict[int, np.ndarray]] = {name: {} for name in self._tables}
        self._unborn: dict[tuple[str, int], np.ndarray] = {}  # initial rows, kept since drawing them is slow
        self.chunk_rows = 7  # of an export
        self.asked: list[tuple[str, np.ndarray]] = []

    def rows(self, table: str, ids: np.ndarray) -> np.ndarray:
        assert ids.dtype == np.int64 and len(np.unique(ids)) == len(ids)
        self.asked.append((table, ids.copy()))
        stored = self.stored[table]
        return np.stack([stored[i] if i in stored else self._born(table, i) for i in ids.tolist()])

    def ids(self, table: str) -> np.ndarray:
        return np.array(sorted(self.stored[table]), np.int64)

    def chunks(self, table: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        ids = self.ids(table)[::-1]
        for start in range(0, len(ids), self.chunk_rows):
            part = ids[start : start + self.chunk_rows]
            yield part, self.rows(table, part)

    def descend(self, table: str, ids: np.ndarray, gradients: np.ndarray, rate: float) -> None:
        moved = self.rows(table, ids) - np.float32(rate) * gradients
        self.stored[table].update(zip((int(i) for i in ids), moved, strict=True))

    def _born(self, table: str, row: int) -> np.ndarray:
        if (table, row) not in self._unborn:
            dim, how = self._tables[table].dim, self._tables[table].initializer
            draw = np.random.default_rng([self._seed, row % 2**63, len(table)])
            kinds = {"constant": lambda a, b, n: np.full(n, a), "uniform": draw.uniform, "normal": draw.normal}
            self._unborn[table, row] = kinds[how.kind](how.a, how.b, dim).astype(np.float32)
        return self._unborn[table, row]
