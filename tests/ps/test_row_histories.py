"""Whole histories of calls: the native row store and its numpy oracle agree, bit for bit, after every one."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from numpy.typing import NDArray

from elasticdl.job.parameters import InitializerSpec
from elasticdl.ps import _native
from tests.ps.oracle import Oracle
from tests.ps.stores import EXTREMES, ISAS, OPTIMIZERS, UNIFORM, changed_parts, native_store, peeked, pulled

keys = st.lists(
    st.one_of(st.integers(-3, 40), st.sampled_from(EXTREMES), st.integers(-(2**63), 2**63 - 1)), max_size=60
).map(lambda values: np.array(values, np.int64))


class Histories(RuleBasedStateMachine):
    """Any sequence of calls leaves the store and the oracle with the same bits."""

    @initialize(
        dim=st.integers(1, 40),
        name=st.sampled_from(sorted(OPTIMIZERS)),
        isa=st.sampled_from(ISAS),
        capacity=st.sampled_from([0, 1, 5000]),
        seed=st.integers(0, 2**64 - 1),
        init=st.sampled_from([UNIFORM, InitializerSpec(kind="constant", a=0.5)]),
        admit_after=st.sampled_from([0, 0, 1, 2, 3]),
        aging=st.booleans(),
    )
    def start(
        self, dim: int, name: str, isa: str, capacity: int, seed: int, init: InitializerSpec,
        admit_after: int, aging: bool,
    ) -> None:  # fmt: skip
        _native.set_isa(isa)  # type: ignore[arg-type]
        self.dim, self.step, self.spec = dim, 0, OPTIMIZERS[name]
        self.random = np.random.default_rng(seed)
        self.store = native_store(dim, self.spec, init, seed, capacity=capacity, admit_after=admit_after, aging=aging)
        self.oracle = Oracle(dim, self.spec, init, seed, admit_after, aging)

    def floats(self, rows: int, width: int) -> NDArray[np.float32]:
        return self.random.standard_normal((rows, width)).astype(np.float32)

    @rule(ids=keys)
    def pull(self, ids: NDArray[np.int64]) -> None:
        np.testing.assert_array_equal(pulled(self.store, ids, self.dim), self.oracle.pull(ids))

    @rule(start=st.integers(-1000, 1000), count=st.integers(100, 600))
    def pull_many(self, start: int, count: int) -> None:
        self.pull(np.arange(start, start + count, dtype=np.int64) * 7)

    @rule(ids=keys, live=st.booleans())
    def peek(self, ids: NDArray[np.int64], live: bool) -> None:
        for view in [0] if live else [0, *self.oracle.views]:
            np.testing.assert_array_equal(peeked(self.store, ids, self.dim, view), self.oracle.peek(ids, view))

    @rule(ids=keys, rate=st.sampled_from([0.0, 0.01, 1.0]))
    def push(self, ids: NDArray[np.int64], rate: float) -> None:
        self.step += 1
        grads = self.floats(len(ids), self.dim)
        assert self.store.push(ids, grads, rate, self.step) == self.oracle.push(ids, grads, rate, self.step)

    @rule(ids=keys)
    def push_unique(self, ids: NDArray[np.int64]) -> None:
        self.step += 1
        ids = np.unique(ids)
        grads = self.floats(len(ids), self.dim)
        self.store.push_unique(ids, grads, 0.1, self.step)
        self.oracle.push(ids, grads, 0.1, self.step)

    @rule(ids=keys)
    def import_rows(self, ids: NDArray[np.int64]) -> None:
        rows = np.abs(self.floats(len(ids), self.store.width))
        if self.oracle.aging:
            rows[:, -1] = self.random.integers(0, self.step + 2, len(ids), np.uint32).view(np.float32)
        self.store.import_rows(ids, rows)
        self.oracle.put(ids, rows)

    @rule(count=st.integers(1, 3))
    def pin_and_move(self, count: int) -> None:
        for _ in range(count):
            if len(self.oracle.views) < 5:
                self.oracle.pin(self.store.pin())
            self.push(self.random.integers(0, 12, 6), 0.1)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.oracle.views:
            view = data.draw(st.sampled_from(sorted(self.oracle.views)))
            self.store.release(view)
            self.oracle.release(view)

    @rule(count=st.integers(1, 2))
    def mark_and_move(self, count: int) -> None:
        for _ in range(count):
            if len(self.oracle.views) < 5:
                self.oracle.mark(self.store.mark())
            self.push(self.random.integers(0, 12, 6), 0.1)

    @rule(data=st.data())
    def unmark(self, data: st.DataObject) -> None:
        if self.oracle.marks:
            view = data.draw(st.sampled_from(sorted(self.oracle.marks)))
            self.store.unmark(view)
            self.oracle.unmark(view)

    @rule(limit=st.integers(1, 40))
    def export_changed(self, limit: int) -> None:
        for view, (changed, removed) in self.oracle.marks.items():
            ids, rows = self.oracle.export(view)
            mine = np.isin(ids, list(changed))
            parts = changed_parts(self.store, view, limit)
            assert all(len(part[0]) == limit for part in parts[:-1]) and len(parts[-1][0]) <= limit
            np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), ids[mine])
            np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), rows[mine])
            assert self.store.changed(view) == len(changed)
            gone = sorted(removed - set(ids.tolist()))
            np.testing.assert_array_equal(self.store.removed(view), np.array(gone, np.int64))

    @rule(back=st.integers(0, 6))
    def evict(self, back: int) -> None:
        if self.oracle.aging:
            assert self.store.evict(self.step - back) == self.oracle.evict(self.step - back)

    @rule(start=st.integers(0, 80), limit=st.integers(0, 200))
    def export(self, start: int, limit: int) -> None:
        for view in [0, *self.oracle.views]:
            ids, rows = self.oracle.export(view)
            got_ids, got_rows = self.store.export_rows(start, limit, view)
            np.testing.assert_array_equal(got_ids, ids[start : start + limit])
            np.testing.assert_array_equal(got_rows, rows[start : start + limit])

    @invariant()
    def every_view_agrees(self) -> None:
        if hasattr(self, "oracle"):
            assert len(self.store) == len(self.oracle.rows)
            self.export(0, 10_000)
            self.export_changed(10_000)
            candidates = self.store.candidates
            assert (candidates is None) == (self.oracle.admit_after < 2)
            if candidates is not None:
                ids, counts = candidates.export_rows(0, 10_000)
                seen = zip(counts[:, 0].tolist(), counts[:, 1].view(np.uint32).tolist(), strict=True)
                told = {key: (n, last) for key, (n, last) in zip(ids.tolist(), seen, strict=True) if n}
                assert told == self.oracle.counts


def test_any_history_of_calls_gives_the_bits_of_the_oracle() -> None:
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
