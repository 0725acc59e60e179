"""A row source in memory: rows are born on first use as a function of table and id, and moved by SGD."""

from __future__ import annotations

import numpy as np

from elasticdl.job.parameters import ParametersSpec, TableSpec


class MemoryRows:
    def __init__(self, parameters: ParametersSpec, seed: int = 0) -> None:
        self._tables = {table.name: table for table in parameters.tables}
        self._seed = seed
        self.stored: dict[str, dict[int, np.ndarray]] = {name: {} for name in self._tables}
        self.asked: list[tuple[str, np.ndarray]] = []

    def rows(self, table: str, ids: np.ndarray) -> np.ndarray:
        assert ids.dtype == np.int64 and len(np.unique(ids)) == len(ids)
        self.asked.append((table, ids.copy()))
        found = [self.stored[table].get(int(i), self._born(self._tables[table], int(i))) for i in ids]
        return np.stack(found)

    def ids(self, table: str) -> np.ndarray:
        return np.array(sorted(self.stored[table]), np.int64)

    def descend(self, table: str, ids: np.ndarray, gradients: np.ndarray, rate: float) -> None:
        moved = self.rows(table, ids) - np.float32(rate) * gradients
        self.stored[table].update(zip((int(i) for i in ids), moved, strict=True))

    def _born(self, table: TableSpec, row: int) -> np.ndarray:
        how = table.initializer
        if how.kind == "constant":
            return np.full(table.dim, how.a, np.float32)
        draw = np.random.default_rng([self._seed, row % 2**63, len(table.name)])
        values = (
            draw.uniform(how.a, how.b, table.dim) if how.kind == "uniform" else draw.normal(how.a, how.b, table.dim)
        )
        return values.astype(np.float32)
