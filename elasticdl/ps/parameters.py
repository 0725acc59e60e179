"""What one server holds: its slice of the dense variables, its rows of every table, and the views pinned of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from elasticdl.job.parameters import OptimizerSpec, ParametersSpec, TableSpec
from elasticdl.ps import _native
from elasticdl.ps.placement import gather_index, place

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
EXPORT_ROWS = 1 << 16
EVICT_ROWS = 20_000  # at most removed in one step: a few milliseconds
EVICT_STEPS = 1000  # at most between two searches for old rows


def table_seed(job_seed: int, table: str) -> int:
    """The seed of a table's rows: a function of the job's seed and the table's name, not of order or server."""
    digest = hashlib.blake2b(f"{job_seed}/{table}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def native_optimizer(spec: OptimizerSpec) -> _native.Optimizer:
    return _native.Optimizer(**spec.constants())


def _store(table: TableSpec, spec: OptimizerSpec, seed: int) -> _native.RowStore:
    start, optimizer = table.initializer, native_optimizer(spec)
    return _native.RowStore(
        table.dim, optimizer, start.kind, start.a, start.b, table_seed(seed, table.name),
        admit_after=table.admit_after or 0, aging=table.evict_after_steps is not None,
    )  # fmt: skip


class Parameters:
    """Owned by the thread that made it."""

    def __init__(
        self, spec: ParametersSpec, index: int, servers: int, seed: int, tables: list[_native.RowStore] | None = None
    ) -> None:
        self.spec, self.index, self.servers = spec, index, servers
        self.optimizer = native_optimizer(spec.optimizer)
        trainable = tuple(v for v in spec.variables if v.trainable)
        state = tuple(v for v in spec.variables if not v.trainable)
        self.trainable_index = gather_index(place(trainable, servers)[index])
        self.state_index = gather_index(place(state, servers)[index])
        n = len(self.trainable_index)
        self.weights: Floats = np.zeros(n, np.float32)
        self.slots: Floats = np.repeat(np.array(spec.optimizer.slot_starts, np.float32), n)
        self.state: Floats = np.zeros(len(self.state_index), np.float32)
        self.table_optimizers = [t.optimizer or spec.optimizer for t in spec.tables]
        self.tables = tables or [_store(t, o, seed) for t, o in zip(spec.tables, self.table_optimizers, strict=True)]
        self._evict_at = [0] * len(spec.tables)  # the step of the next search for old rows
        self._views: dict[int, tuple[Floats, Floats, list[int]]] = {}

    def pull(self, view: int = 0) -> tuple[Floats, Floats]:
        """Trainable values and state, live (a copy) or as pinned."""
        if view:
            weights, state, _ = self._view(view)
            return weights, state
        return self.weights.copy(), self.state.copy()

    @property
    def stores(self) -> list[_native.RowStore]:
        """The parts of the tables that a checkpoint needs: their rows, then the counts of ids without a row."""
        return self.tables + [t.candidates for t in self.tables if t.candidates is not None]

    def rows(self, table: int, ids: Ids, view: int = 0, create: bool = True) -> Floats:
        store = self.tables[table]
        with self._room(table):
            out = np.empty((len(ids), self.spec.tables[table].dim), np.float32)
            if view:
                store.peek(ids, out, self._view(view)[2][table])
            elif create:
                store.pull(ids, out)
            else:
                store.peek(ids, out)
        return out

    def apply(
        self, step: int, gradients: Floats, state: Floats, rows: Mapping[int, tuple[Ids, Floats]], rate: float = 0.0
    ) -> None:
        """Apply one batch. `state` is a difference, so that statistics of concurrent workers add up.

        `rate` replaces the learning rate of the model's optimizer, not that of a table's own optimizer.
        """
        rate = rate or self.spec.optimizer.learning_rate
        _native.update_dense(self.weights, self.slots, gradients, self.optimizer, rate, step)
        self.state += state
        self.apply_rows(step, rows, rate)

    def apply_rows(self, step: int, rows: Mapping[int, tuple[Ids, Floats]], rate: float) -> None:
        """Apply the rows' gradients; every table ages by the step."""
        for table, (ids, grads) in rows.items():
            own = self.spec.tables[table].optimizer
            with self._room(table):
                self.tables[table].push(ids, grads, own.learning_rate if own is not None else rate, step)
        for table in range(len(self.tables)):
            self._evict(table, step)

    def _evict(self, table: int, step: int) -> None:
        """Remove rows and counts that were not pushed for the table's `evict_after_steps`, some in each step.

        A pinned view delays it.
        """
        after = self.spec.tables[table].evict_after_steps
        if after is None or step < self._evict_at[table]:
            return
        stores = [s for s in (self.tables[table], self.tables[table].candidates) if s is not None]
        unfinished = [s.evict(step - after + 1, EVICT_ROWS) == EVICT_ROWS for s in stores]
        self._evict_at[table] = step + (1 if any(unfinished) else min(max(1, after // 10), EVICT_STEPS))

    @contextmanager
    def _room(self, table: int) -> Iterator[None]:
        """Add the table's name and the remedy to an error for lack of memory."""
        try:
            yield
        except (MemoryError, OverflowError) as error:
            remedy = "Give each server more memory (--ps_resource_request) or use more servers (--num_ps_pods)."
            raise type(error)(f"table {self.spec.tables[table].name}: {error}. {remedy}") from error

    def export(self, table: int, start: int) -> tuple[Ids, Floats]:
        """Ids and weights of some rows from row `start` on; none when there are no more."""
        ids, rows = self.tables[table].export_rows(start, EXPORT_ROWS)
        return ids, np.ascontiguousarray(rows[:, : self.spec.tables[table].dim])

    # Views.

    def pin(self, cut: int) -> None:
        """Keep the present values under the number of a cut.

        There is one evaluation at a time, so the release of an older view was lost with a master.
        """
        for old in [c for c in self._views if c < cut]:
            self.release(old)
        if cut not in self._views:
            self._views[cut] = (self.weights.copy(), self.state.copy(), [t.pin() for t in self.tables])

    def release(self, cut: int) -> None:
        view = self._views.pop(cut, None)
        if view is not None:
            for store, pinned in zip(self.tables, view[2], strict=True):
                store.release(pinned)

    def forget_views(self) -> None:
        for cut in list(self._views):
            self.release(cut)

    def _view(self, cut: int) -> tuple[Floats, Floats, list[int]]:
        if cut not in self._views:
            raise KeyError(f"this server has no view {cut}")
        return self._views[cut]
