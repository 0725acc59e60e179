"""The native row store against its numpy oracle: whole histories, every vector tail, growth, views, memory, errors."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from numpy.typing import NDArray

from elasticdl.job.parameters import InitializerSpec
from elasticdl.ps import _native
from tests.ps.oracle import Oracle, initial_rows
from tests.ps.stores import OPTIMIZERS, UNIFORM, available_isas, native_optimizer, native_store

EXTREMES = [-(2**63), 2**63 - 1, -1, 0, 1, -(2**62), 2**32, -(2**32)]
ISAS = available_isas()


@pytest.fixture(autouse=True)
def best_isa_afterwards() -> Iterator[None]:
    yield
    _native.set_isa("best")


def ids_of(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def pulled(store: _native.RowStore, ids: NDArray[np.int64], dim: int) -> NDArray[np.float32]:
    out = np.full((len(ids), dim), np.nan, np.float32)
    store.pull(ids, out)
    return out


def peeked(store: _native.RowStore, ids: NDArray[np.int64], dim: int, view: int = 0) -> NDArray[np.float32]:
    out = np.full((len(ids), dim), np.nan, np.float32)
    store.peek(ids, out, view)
    return out


def changed_parts(
    store: _native.RowStore, view: int, limit: int
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """All that had changed in a marked view, as a server asks for it: a piece at a time."""
    parts, start = [], 0
    while start != -1:
        ids, rows, following = store.export_changed(view, start, limit)
        assert following == -1 or following > start
        parts.append((ids, rows))
        start = following
    return parts


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
    )
    def start(self, dim: int, name: str, isa: str, capacity: int, seed: int, init: InitializerSpec) -> None:
        _native.set_isa(isa)  # type: ignore[arg-type]
        self.dim, self.step, self.spec = dim, 0, OPTIMIZERS[name]
        self.random = np.random.default_rng(seed)
        self.store = native_store(dim, self.spec, init, seed, capacity=capacity)
        self.oracle = Oracle(dim, self.spec, init, seed)

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
        rows = np.abs(self.floats(len(ids), self.dim * (1 + self.spec.slots)))
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
        for view, changed in self.oracle.marks.items():
            ids, rows = self.oracle.export(view)
            mine = np.isin(ids, list(changed))
            parts = changed_parts(self.store, view, limit)
            assert all(len(part[0]) == limit for part in parts[:-1]) and len(parts[-1][0]) <= limit
            np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), ids[mine])
            np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), rows[mine])
            assert self.store.changed(view) == len(changed)

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


def test_any_history_of_calls_gives_the_bits_of_the_oracle() -> None:
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_dimension_and_instruction_set_gives_the_bits_of_the_oracle(name: str, isa: str) -> None:
    _native.set_isa(isa)  # type: ignore[arg-type]
    random = np.random.default_rng(5)
    for dim in [*range(1, 41), 64, 100]:
        store, oracle = native_store(dim, OPTIMIZERS[name]), Oracle(dim, OPTIMIZERS[name], UNIFORM, 1)
        for step in range(1, 4):
            ids = random.integers(0, 30, 50)
            grads = random.standard_normal((50, dim)).astype(np.float32)
            assert store.push(ids, grads, 0.05, step) == oracle.push(ids, grads, 0.05, step)
        for got, expected in zip(store.export_rows(0, 100), oracle.export(0), strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("isa", ISAS)
def test_a_store_grown_from_nothing_over_many_segments_finds_every_row(isa: str) -> None:
    _native.set_isa(isa)  # type: ignore[arg-type]
    random = np.random.default_rng(3)
    ids = np.unique(np.concatenate([random.integers(-(2**63), 2**63 - 1, 300_000), np.arange(100_000), EXTREMES]))
    random.shuffle(ids)
    store = native_store(3, OPTIMIZERS["keras adagrad"])
    expected = initial_rows(ids, 3, UNIFORM, 1)
    for part in np.array_split(np.arange(len(ids)), 50):
        np.testing.assert_array_equal(pulled(store, ids[part], 3), expected[part])
    assert len(store) == len(ids)
    np.testing.assert_array_equal(peeked(store, ids, 3), expected)
    order = random.permutation(len(ids))
    store.push_unique(ids[order], np.ones((len(ids), 3), np.float32), 0.5, 1)
    moved = expected - np.float32(0.5) / np.sqrt(np.float32(0.1) + np.float32(1) + np.float32(1e-7))
    exported, rows = store.export_rows(0, len(ids))
    np.testing.assert_array_equal(exported, ids)
    np.testing.assert_array_equal(rows[:, :3], moved)


def test_rows_of_many_slabs_are_found_moved_and_pinned() -> None:
    dim, ids = 8192, np.arange(1100, dtype=np.int64)
    store = native_store(dim, OPTIMIZERS["keras momentum"], InitializerSpec(kind="constant", a=1.0))
    pulled(store, ids, dim)
    view = store.pin()
    grads = np.repeat(ids.astype(np.float32)[:, None], dim, axis=1)
    store.push_unique(ids, grads, 1.0, 1)
    np.testing.assert_array_equal(peeked(store, ids, dim), 1 - grads)
    np.testing.assert_array_equal(store.export_rows(1000, 200)[1][:, dim:], -grads[1000:])
    assert (peeked(store, ids, dim, view) == 1).all()


def test_a_capacity_given_ahead_changes_nothing_but_the_index() -> None:
    ids = np.arange(200_000, dtype=np.int64)
    small, large = native_store(2, OPTIMIZERS["sgd"]), native_store(2, OPTIMIZERS["sgd"], capacity=1_000_000)
    before = large.nbytes()
    np.testing.assert_array_equal(pulled(small, ids, 2), pulled(large, ids, 2))
    assert before >= 1_000_000 * 64 // 5 * 2
    assert len(small) == len(large) == 200_000


def test_values_depend_on_seed_and_id_alone() -> None:
    ids = np.array([*EXTREMES, *range(2, 100)], np.int64)
    forward, backward = native_store(7, OPTIMIZERS["keras adam"]), native_store(7, OPTIMIZERS["keras adam"])
    first = pulled(forward, ids, 7)
    np.testing.assert_array_equal(first, pulled(backward, ids[::-1].copy(), 7)[::-1])
    np.testing.assert_array_equal(first, _native.initial_rows(ids, 7, "uniform", -0.05, 0.05, 1))
    assert not np.array_equal(first, _native.initial_rows(ids, 7, "uniform", -0.05, 0.05, 2))
    assert len(np.unique(first)) > 0.99 * first.size


def test_normal_rows_have_the_moments_and_tails_of_a_normal_distribution() -> None:
    init = InitializerSpec(kind="normal", a=0.25, b=2.0)
    rows = _native.initial_rows(np.arange(-50_000, 50_000), 5, "normal", init.a, init.b, 9)
    np.testing.assert_allclose(rows, initial_rows(np.arange(-50_000, 50_000), 5, init, 9), rtol=2e-7, atol=2e-7)
    sample = np.sort((rows.ravel().astype(float) - init.a) / init.b)
    expected = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in sample])
    distance = np.abs(expected - np.arange(len(sample)) / len(sample)).max()
    assert distance < 2.2 / math.sqrt(len(sample))  # Kolmogorov and Smirnov: one seed in ten thousand lies beyond
    assert np.abs(np.corrcoef(rows.T) - np.eye(5)).max() < 0.02


def test_uniform_rows_stay_inside_their_half_open_range_and_fill_it() -> None:
    rows = _native.initial_rows(np.arange(200_000), 4, "uniform", -1.0, 1e-3, 3)
    assert rows.min() >= -1.0
    assert rows.max() < 1e-3
    histogram, _ = np.histogram(rows, bins=50)
    assert abs(histogram / histogram.mean() - 1).max() < 0.05
    one_step = float(np.nextafter(np.float32(1), np.float32(2)))
    assert (_native.initial_rows(np.arange(100), 2, "uniform", 1.0, one_step, 3) == 1).all()
    assert (_native.initial_rows(np.arange(3), 2, "uniform", 0.5, 0.5, 3) == 0.5).all()


def test_slots_start_at_the_optimizers_value_and_not_at_the_embeddings() -> None:
    store = native_store(4, OPTIMIZERS["keras adagrad"], InitializerSpec(kind="constant", a=0.7))
    pulled(store, ids_of(1), 4)
    _, rows = store.export_rows(0, 1)
    np.testing.assert_array_equal(rows[0], np.array([0.7] * 4 + [0.1] * 4, np.float32))


def test_only_touched_rows_move_and_adam_uses_the_global_step() -> None:
    store, spec = native_store(2, OPTIMIZERS["torch adam"]), OPTIMIZERS["torch adam"]
    before = pulled(store, ids_of(1, 2), 2)
    store.push(ids_of(1), np.ones((1, 2), np.float32), 0.1, 50)
    after = pulled(store, ids_of(1, 2), 2)
    m, v = 1 - spec.beta_1, 1 - spec.beta_2
    moved = 0.1 * (m / (1 - spec.beta_1**50)) / (np.sqrt(v / (1 - spec.beta_2**50)) + spec.epsilon)
    np.testing.assert_allclose(before[0] - after[0], moved, rtol=1e-5)
    np.testing.assert_array_equal(before[1], after[1])


def test_a_view_shows_the_table_as_it_was_and_its_memory_goes_back() -> None:
    store = native_store(16, OPTIMIZERS["keras adagrad"])
    ids = np.arange(50_000, dtype=np.int64)
    at_pin = pulled(store, ids, 16)
    unpinned = store.nbytes()
    view = store.pin()
    store.push_unique(ids, np.ones((len(ids), 16), np.float32), 0.1, 1)
    pulled(store, ids + 50_000, 16)
    assert store.nbytes() >= unpinned + 50_000 * 128
    np.testing.assert_array_equal(peeked(store, ids, 16, view), at_pin)
    assert len(store.export_rows(0, 10**9, view)[0]) == 50_000
    assert not np.array_equal(peeked(store, ids, 16), at_pin)
    assert len(store) == 100_000
    held = store.nbytes()
    store.release(view)
    assert store.nbytes() <= held - 50_000 * 128


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_views_keep_their_own_moments_in_whatever_order_they_go(order: tuple[int, ...]) -> None:
    store = native_store(5, OPTIMIZERS["keras adagrad"])
    ids, one = np.arange(8, dtype=np.int64), np.ones((1, 5), np.float32)
    pulled(store, ids, 5)
    pinned: dict[int, NDArray[np.float32]] = {}
    for moment in range(3):  # row 0 is written after every pin, row 1 by an import, rows 2, 3 and 4 after one pin each
        pinned[store.pin()] = store.export_rows(0, 100)[1]
        store.push(ids_of(0), one, 0.1, 1)
        store.import_rows(ids_of(1), np.full((1, 10), moment, np.float32))
        store.push(ids_of(2 + moment), one, 0.1, 1)
        pulled(store, ids_of(100 + moment), 5)
    views = list(pinned)
    for position in order:
        for view, rows in pinned.items():
            np.testing.assert_array_equal(store.export_rows(0, 100, view)[1], rows)
        store.release(views[position])
        del pinned[views[position]]


def test_peeking_never_creates_a_row() -> None:
    store = native_store(3, OPTIMIZERS["sgd"])
    np.testing.assert_array_equal(peeked(store, ids_of(5, -5), 3), initial_rows(ids_of(5, -5), 3, UNIFORM, 1))
    assert len(store) == 0


def test_empty_batches_are_fine() -> None:
    store = native_store(3, OPTIMIZERS["keras adam"])
    none, no_rows = np.empty(0, np.int64), np.empty((0, 3), np.float32)
    store.pull(none, no_rows)
    store.peek(none, no_rows)
    assert store.push(none, no_rows, 0.1, 1) == 0
    store.push_unique(none, no_rows, 0.1, 1)
    store.import_rows(none, np.empty((0, 9), np.float32))
    ids, rows = store.export_rows(0, 10)
    assert (ids.shape, rows.shape, len(store)) == ((0,), (0, 9), 0)


def test_read_only_arrays_serve_as_input() -> None:
    store = native_store(2, OPTIMIZERS["sgd"])
    ids = np.frombuffer(np.arange(4, dtype=np.int64).tobytes(), np.int64)
    grads = np.frombuffer(np.ones((4, 2), np.float32).tobytes(), np.float32).reshape(4, 2)
    assert store.push(ids, grads, 0.1, 1) == 4


def test_resident_bytes_of_a_million_rows_stay_within_half_again_of_their_payload() -> None:
    program = """
        import resource, numpy as np
        from elasticdl.ps import _native
        from tests.ps.stores import OPTIMIZERS, native_store
        out = np.zeros((100_000, 16), np.float32)
        store = native_store(16, OPTIMIZERS["keras adagrad"])
        store.pull(np.arange(10), out[:10])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for start in range(0, 1_000_000, 100_000):
            store.pull(np.arange(start, start + 100_000), out)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        print(store.nbytes() / 128e6, grown / 128e6)
    """
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    ).stdout
    told, real = map(float, said.split())
    assert told <= 1.5
    assert real <= 1.6  # what the kernel counts, with the batch's own arrays


def test_out_of_memory_says_how_many_rows_and_bytes_there_were() -> None:
    program = """
        import resource, numpy as np
        from tests.ps.stores import OPTIMIZERS, native_store
        store = native_store(16, OPTIMIZERS["keras adagrad"])
        out = np.zeros((100_000, 16), np.float32)
        store.pull(np.arange(100_000), out)
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + (80 << 20), resource.RLIM_INFINITY))
        start, kept = 0, None
        try:
            for start in range(100_000, 3_000_000, 100_000):
                kept = len(store)
                store.push(np.arange(start, start + 100_000), out, 0.1, 1)
        except MemoryError as error:
            assert len(store) >= kept
            store.peek(np.arange(100_000), out)
            print(error)
    """
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    ).stdout
    assert "out of memory in a row store of " in said
    assert " rows of 128 bytes, " in said
    assert "the system refused " in said


def test_the_row_limit_refuses_the_birth_that_would_pass_it_and_moves_nothing() -> None:
    store = native_store(2, OPTIMIZERS["sgd"], max_rows=3)
    before = pulled(store, ids_of(1, 2), 2)
    with pytest.raises(OverflowError, match="no room for id 9: the store holds its limit of 3 rows"):
        store.push(ids_of(1, 8, 9), np.ones((3, 2), np.float32), 0.1, 1)
    np.testing.assert_array_equal(peeked(store, ids_of(1, 2), 2), before)
    assert len(store) == 3


ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("ids", "grads", "error", "message"),
    [
        (
            np.zeros(2, np.int32),
            ONES,
            TypeError,
            "ids: expected a C-contiguous int64 array of shape (n,), got elements of",
        ),
        (
            np.zeros(2, ">i8"),
            ONES,
            TypeError,
            "ids: expected a C-contiguous int64 array of shape (n,), got elements of",
        ),
        ([1, 2], ONES, TypeError, "ids: expected a C-contiguous int64 array of shape (n,), got an object of type list"),
        (
            np.zeros((2, 1), np.int64),
            ONES,
            ValueError,
            "ids: expected a C-contiguous int64 array of shape (n,), got shape (2, 1)",
        ),
        (np.zeros(4, np.int64)[::2], ONES, ValueError, "got one with gaps between its elements"),
        (np.zeros(3, np.int64), ONES, ValueError, "float32 array of shape (3, 3), got shape (2, 3)"),
        (
            np.zeros(2, np.int64),
            ONES.astype(float),
            TypeError,
            "grads: expected a C-contiguous float32 array of shape (2, 3)",
        ),
        (np.zeros(2, np.int64), np.asfortranarray(np.ones((2, 3), np.float32)), ValueError, "got one with gaps"),
        (np.zeros(2, np.int64), np.ones((2, 4), np.float32), ValueError, "shape (2, 3), got shape (2, 4)"),
    ],
)
def test_a_wrong_array_is_refused_with_what_was_expected_and_what_came(
    ids: object, grads: object, error: type[Exception], message: str
) -> None:
    store = native_store(3, OPTIMIZERS["sgd"])
    with pytest.raises(error) as raised:
        store.push(ids, grads, 0.1, 1)  # type: ignore[arg-type]
    assert message in str(raised.value)
    assert len(store) == 0


def test_an_output_that_cannot_be_written_is_refused() -> None:
    out = np.ones((2, 3), np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"writable float32 array of shape .2, 3., got a read-only one"):
        native_store(3, OPTIMIZERS["sgd"]).pull(ids_of(1, 2), out)


@pytest.mark.parametrize("call", ["peek", "export_rows", "release"])
def test_a_view_that_is_not_pinned_is_refused_by_number(call: str) -> None:
    store = native_store(2, OPTIMIZERS["sgd"])
    store.release(store.pin())
    arguments = {"peek": (ids_of(1), np.zeros((1, 2), np.float32), 1), "export_rows": (0, 1, 1), "release": (1,)}
    with pytest.raises(ValueError, match="view 1 is not pinned"):
        getattr(store, call)(*arguments[call])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 0}, "dim: expected 1 to"),
        ({"initializer": "ones"}, "expected constant, uniform or normal, got 'ones'"),
        ({"a": 2.0}, "a must not be above b"),
        ({"initializer": "normal", "b": -1.0}, "standard deviation b must not be negative"),
        ({"b": float("inf")}, "must be finite"),
        ({"capacity": 2**32}, "capacity: at most 4294967295 rows, got 4294967296"),
    ],
)
def test_a_wrong_table_setting_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    optimizer = native_optimizer(OPTIMIZERS["sgd"])
    good: dict[str, Any] = {"dim": 2, "optimizer": optimizer, "initializer": "uniform", "a": 0.0, "b": 1.0, "seed": 0}
    with pytest.raises(ValueError, match=message):
        _native.RowStore(**{**good, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "lion"}, "expected kind sgd, adagrad, adam, rmsprop or ftrl, got 'lion'"),
        ({"flavour": "jax"}, "expected flavour keras or torch, got 'jax'"),
        ({"momentum": -0.5}, "momentum must be from 0 to 1"),
        ({"kind": "adam", "beta_2": 1.0}, "beta_2 must be from 0 to below 1"),
        ({"kind": "adagrad", "initial_accumulator": -1.0}, "initial_accumulator must be"),
        ({"epsilon": float("nan")}, "epsilon must be"),
    ],
)
def test_a_wrong_optimizer_setting_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.Optimizer(**{**OPTIMIZERS["sgd"].constants(), **changes})


def test_a_wrong_step_rate_or_instruction_set_is_refused() -> None:
    store = native_store(2, OPTIMIZERS["keras adam"])
    with pytest.raises(ValueError, match="the first applied batch is step 1, got 0"):
        store.push(ids_of(1), np.ones((1, 2), np.float32), 0.1, 0)
    with pytest.raises(ValueError, match="learning rate must be a finite number, got nan"):
        store.push(ids_of(1), np.ones((1, 2), np.float32), float("nan"), 1)
    with pytest.raises(ValueError, match="isa: expected"):
        _native.set_isa("mmx")  # type: ignore[arg-type]


def test_a_call_from_a_second_thread_is_an_error_and_not_a_race() -> None:
    store = native_store(16, OPTIMIZERS["keras adagrad"])
    ids = np.arange(100_000, dtype=np.int64)
    refusals: list[str] = []

    def work() -> None:
        out = np.empty((len(ids), 16), np.float32)
        for _ in range(40):
            try:
                store.pull(ids, out)
            except RuntimeError as error:
                refusals.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refusals
    assert set(refusals) == {"a row store belongs to one thread: another call on it is still running"}
    np.testing.assert_array_equal(pulled(store, ids, 16), initial_rows(ids, 16, UNIFORM, 1))
