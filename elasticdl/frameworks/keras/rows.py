"""Rows for Keras backends that compile a step: ids are collected first, rows and positions are arguments.

A first compiled function runs the model only for its ids (the compiler drops the rest). The worker then pulls the rows
of the unique ids, and the step takes them as arguments. Both functions run the same model code, so their look-ups have
the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt

from elasticdl.frameworks.arrays import FloatArray, IdArray
from elasticdl.frameworks.rows import ZeroLookup, check_range, without
from elasticdl.frameworks.trainable import RowSource
from elasticdl.job.parameters import TableSpec


class Asked(NamedTuple):
    """One look-up of a pass."""

    table: str
    padding: int | None


class IdRecorder(ZeroLookup):
    """Records the ids that layers look up, and gives them zeros."""

    def __init__(self) -> None:
        super().__init__(keras.ops)
        self.asked: list[Asked] = []
        self.ids: list[Any] = []

    def gather(self, table: TableSpec, ids: Any, padding: int | None = None) -> Any:
        self.asked.append(Asked(table.name, padding))
        self.ids.append(ids)
        return super().gather(table, ids, padding)


class ArgumentLookup:
    """Gives layers rows, which are arguments of the compiled step together with their positions."""

    def __init__(self, rows: dict[str, Any], positions: list[Any]) -> None:
        self._rows, self._positions = rows, iter(positions)

    def gather(self, table: TableSpec, ids: Any, padding: int | None = None) -> Any:
        return keras.ops.take(self._rows[table.name], next(self._positions), axis=0)


@dataclass(frozen=True)
class PulledRows:
    """The rows of one batch: unique ids per table, their rows, and for each look-up the positions of its ids."""

    ids: dict[str, IdArray]
    rows: dict[str, FloatArray]
    positions: list[npt.NDArray[np.int32]]

    def gradients(self, gradients: dict[str, Any]) -> dict[str, tuple[IdArray, FloatArray]]:
        """Per table the ids and the gradients of their rows, without padding."""
        return {t: (ids, np.array(gradients[t], np.float32)[: len(ids)]) for t, ids in self.ids.items() if len(ids)}


def pull(
    tables: tuple[TableSpec, ...], asked: list[Asked], found: list[Any], source: RowSource, padded: bool
) -> PulledRows:
    """Pull the rows of the recorded ids, once per table. A row of zeros follows them, for the padding.

    With `padded` the number of rows is rounded up to a power of two, so that a compiler that needs fixed shapes
    compiles few of them.
    """
    arrays = [np.asarray(ids).astype(np.int64) for ids in found]
    unique: dict[str, IdArray] = {}
    rows: dict[str, FloatArray] = {}
    positions: list[npt.NDArray[np.int32]] = [np.zeros(0, np.int32)] * len(arrays)
    for table in tables:
        mine = [i for i, look_up in enumerate(asked) if look_up.table == table.name]
        parts = [np.unique(arrays[i]) for i in mine]
        wanted = [without(asked[i].padding, part)[0] for i, part in zip(mine, parts, strict=True)]
        ids = np.unique(np.concatenate(wanted)) if wanted else np.zeros(0, np.int64)
        check_range(table, ids)
        unique[table.name] = ids
        size = 1 << len(ids).bit_length() if padded else len(ids) + 1
        rows[table.name] = np.zeros((size, table.dim), np.float32)
        if len(ids):
            rows[table.name][: len(ids)] = source.rows(table.name, ids)
        for i in mine:
            places = np.searchsorted(ids, arrays[i])
            if asked[i].padding is not None:
                places[arrays[i] == asked[i].padding] = len(ids)
            positions[i] = places.astype(np.int32)
    return PulledRows(unique, rows, positions)
