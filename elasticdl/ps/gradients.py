"""The gradients of a push as a server reads them, and the average of a round's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elasticdl.ps.parameters import Floats, Ids, Parameters
from elasticdl.wire.frames import BadFrame, Push, floats, ids


@dataclass(frozen=True)
class Gradients:
    """The gradients of one batch, or of a round."""

    records: int  # the gradients are the mean over so many; of none, only summed tables change
    rate: float
    dense: Floats
    state: Floats  # a difference
    rows: dict[int, tuple[Ids, Floats]]

    @classmethod
    def read(cls, parameters: Parameters, push: Push, body: Sequence[memoryview]) -> Gradients:
        tables = parameters.spec.tables
        if len(body) != 2 + 2 * len(tables):
            raise BadFrame(f"the push has {len(body)} parts, expected {2 + 2 * len(tables)}")
        dense = floats(body[0], len(parameters.weights), "dense gradients")
        state = floats(body[1], len(parameters.state), "state difference")
        rows = {}
        for number, table in enumerate(tables):
            found = ids(body[2 + 2 * number], f"ids of {table.name}")
            grads = floats(body[3 + 2 * number], len(found) * table.dim, f"gradients of {table.name}")
            if len(found):
                rows[number] = (found, grads.reshape(len(found), table.dim))
        return cls(push.records, push.rate, dense, state, rows)

    def apply(self, parameters: Parameters, step: int, factor: float = 1.0) -> None:
        """Move the parameters; `factor` lowers the learning rate."""
        rate = (self.rate or parameters.spec.optimizer.learning_rate) * factor
        if self.records:
            parameters.apply(step, self.dense, self.state, self.rows, rate)
        else:
            summed = {t: r for t, r in self.rows.items() if parameters.spec.tables[t].summed}
            parameters.apply_rows(step, summed, rate)


def average(parameters: Parameters, batches: Sequence[Gradients]) -> Gradients:
    """The mean over all records of the batches, added in the order of the batches."""
    records = sum(b.records for b in batches)
    shares = [np.float32(b.records / records if records else 0.0) for b in batches]
    dense, state = np.zeros_like(parameters.weights), np.zeros_like(parameters.state)
    for batch, share in zip(batches, shares, strict=True):
        if batch.records:  # 0 times a non-finite value would not be 0
            dense += batch.dense * share
            state += batch.state * share
    rows = {}
    for number, table in enumerate(parameters.spec.tables):
        parts = []
        for batch, share in zip(batches, shares, strict=True):
            if number in batch.rows and (table.summed or batch.records):
                found, grads = batch.rows[number]
                parts.append((found, grads if table.summed else grads * share))
        if parts:
            rows[number] = (np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))
    return Gradients(records, batches[-1].rate, dense, state, rows)
