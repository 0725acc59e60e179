"""The native row store against its numpy oracle: every vector tail, growth, limits, threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from elasticdl.job.parameters import InitializerSpec
from elasticdl.ps import _native
from tests.ps.oracle import Oracle, initial_rows
from tests.ps.stores import EXTREMES, ISAS, OPTIMIZERS, UNIFORM, ids_of, native_store, peeked, pulled


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


def test_only_touched_rows_move_and_adam_uses_the_global_step() -> None:
    store, spec = native_store(2, OPTIMIZERS["torch adam"]), OPTIMIZERS["torch adam"]
    before = pulled(store, ids_of(1, 2), 2)
    store.push(ids_of(1), np.ones((1, 2), np.float32), 0.1, 50)
    after = pulled(store, ids_of(1, 2), 2)
    m, v = 1 - spec.beta_1, 1 - spec.beta_2
    moved = 0.1 * (m / (1 - spec.beta_1**50)) / (np.sqrt(v / (1 - spec.beta_2**50)) + spec.epsilon)
    np.testing.assert_allclose(before[0] - after[0], moved, rtol=1e-5)
    np.testing.assert_array_equal(before[1], after[1])


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


def test_the_row_limit_refuses_the_birth_that_would_pass_it_and_moves_nothing() -> None:
    store = native_store(2, OPTIMIZERS["sgd"], max_rows=3)
    before = pulled(store, ids_of(1, 2), 2)
    with pytest.raises(OverflowError, match="no room for id 9: the store holds its limit of 3 rows"):
        store.push(ids_of(1, 8, 9), np.ones((3, 2), np.float32), 0.1, 1)
    np.testing.assert_array_equal(peeked(store, ids_of(1, 2), 2), before)
    assert len(store) == 3


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
