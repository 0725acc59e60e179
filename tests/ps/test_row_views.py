"""Pinned and marked views: a table as it was, and what changed in it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.ps.stores import OPTIMIZERS, changed_parts, ids_of, native_store, peeked, pulled


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


def test_a_mark_takes_what_changed_since_the_one_before_it() -> None:
    store = native_store(2, OPTIMIZERS["sgd"])
    pulled(store, np.arange(100, dtype=np.int64), 2)
    first = store.mark()
    store.push(ids_of(7, 3, 7), np.ones((3, 2), np.float32), 0.1, 1)
    pulled(store, ids_of(5, 200), 2)
    second = store.mark()
    store.import_rows(ids_of(9), np.zeros((1, 2), np.float32))
    assert (store.changed(first), store.changed(second)) == (100, 3)
    [(ids, rows)] = changed_parts(store, second, 10)
    assert ids.tolist() == [3, 7, 200]
    np.testing.assert_array_equal(rows, peeked(store, ids, 2))
    assert [part[0].tolist() for part in changed_parts(store, second, 2)] == [[3, 7], [200]]
    store.release(first)
    third = store.mark()
    assert [part[0].tolist() for part in changed_parts(store, third, 10)] == [[9]]
    store.release(third)
    assert store.changed(store.mark()) == 0


def test_what_a_failed_snapshot_took_counts_as_changed_again() -> None:
    store = native_store(2, OPTIMIZERS["sgd"])
    pulled(store, np.arange(70, dtype=np.int64), 2)
    store.release(store.mark())
    store.push(ids_of(1, 69), np.ones((2, 2), np.float32), 0.1, 1)
    failed = store.mark()
    store.push(ids_of(2), np.ones((1, 2), np.float32), 0.1, 1)
    store.unmark(failed)
    assert changed_parts(store, store.mark(), 100)[0][0].tolist() == [1, 2, 69]


@pytest.mark.parametrize("call", ["changed", "removed", "unmark", "export_changed"])
def test_a_view_that_was_only_pinned_does_not_know_what_changed(call: str) -> None:
    store = native_store(2, OPTIMIZERS["sgd"])
    view = store.pin()
    with pytest.raises(ValueError, match=f"view {view} is not a marked one"):
        getattr(store, call)(view, *((0, 1) if call == "export_changed" else ()))
    store.release(view)


def test_asking_for_no_rows_at_a_time_is_refused() -> None:
    store = native_store(2, OPTIMIZERS["sgd"])
    with pytest.raises(ValueError, match="limit: expected at least 1 row, got 0"):
        store.export_changed(store.mark(), 0, 0)


def test_views_that_come_and_go_keep_little_memory() -> None:
    store = native_store(16, OPTIMIZERS["keras adagrad"])
    ids, grads = np.arange(300_000, dtype=np.int64), np.ones((300_000, 16), np.float32)
    store.push_unique(ids, grads, 0.1, 1)
    before = store.nbytes()
    for _ in range(5):
        view = store.mark()
        store.push_unique(ids, grads, 0.1, 1)
        assert store.nbytes() > before + 300_000 * 128
        store.release(view)
        assert store.nbytes() < before + 300_000 * 128 / 12
