"""Which ids get a row and which rows have to go: admission by frequency, eviction by age."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from elasticdl.job.parameters import InitializerSpec
from elasticdl.ps import _native
from tests.ps.oracle import initial_rows
from tests.ps.stores import OPTIMIZERS, UNIFORM, ids_of, native_store, peeked, pulled

ZERO = InitializerSpec(kind="constant", a=0.0)
CANDIDATES = 1 << 20


def ones(ids: NDArray[np.int64], dim: int = 2) -> NDArray[np.float32]:
    return np.ones((len(ids), dim), np.float32)


def counts_of(store: _native.RowStore) -> dict[int, float]:
    assert store.candidates is not None
    ids, rows = store.candidates.export_rows(0, 1 << 21)
    return dict(zip(ids.tolist(), rows[:, 0].tolist(), strict=True))


def restored(store: _native.RowStore, **policy: int) -> _native.RowStore:
    """Another store with all that the first one can be asked for."""
    other = native_store(2, OPTIMIZERS["sgd"], ZERO, **policy)
    for source, target in ((store, other), (store.candidates, other.candidates)):
        if source is not None and target is not None:
            target.import_rows(*source.export_rows(0, 1 << 21))
    return other


@pytest.mark.parametrize("push", ["push", "push_unique"])
def test_a_row_is_born_by_the_third_push_of_its_id_and_moves_from_that_one_on(push: str) -> None:
    store = native_store(2, OPTIMIZERS["sgd"], admit_after=3)
    ids, start = ids_of(7, -1), initial_rows(ids_of(7, -1), 2, UNIFORM, 1)
    for step in (1, 2):
        getattr(store, push)(ids, ones(ids), 0.5, step)
        np.testing.assert_array_equal(pulled(store, ids, 2), start)
        assert len(store) == 0
    getattr(store, push)(ids[:1], ones(ids[:1]), 0.5, 3)
    assert store.export_rows(0, 10)[0].tolist() == [7]
    np.testing.assert_array_equal(pulled(store, ids, 2), start - np.array([[0.5], [0]], np.float32))
    assert counts_of(store) == {-1: 2}


def test_a_push_counts_once_however_often_an_id_is_in_it_and_is_applied_whole() -> None:
    store = native_store(2, OPTIMIZERS["sgd"], ZERO, admit_after=2)
    thrice = ids_of(5, 9, 5, 5)
    assert store.push(thrice, ones(thrice), 1.0, 1) == 0
    assert store.push(thrice[[0, 2, 3]], ones(thrice[:3]), 1.0, 2) == 1
    np.testing.assert_array_equal(peeked(store, ids_of(5, 9), 2), [[-3, -3], [0, 0]])


def test_admitted_after_one_push_means_that_pulls_create_nothing() -> None:
    store = native_store(2, OPTIMIZERS["sgd"], ZERO, admit_after=1)
    assert not pulled(store, ids_of(1, 2), 2).any() and len(store) == 0
    store.push(ids_of(2), ones(ids_of(2)), 1.0, 1)
    assert len(store) == 1 and store.candidates is None


def test_candidates_beyond_their_bound_lose_the_rare_ones_and_keep_the_frequent() -> None:
    store = native_store(2, OPTIMIZERS["sgd"], ZERO, admit_after=4)
    frequent = np.arange(1000, dtype=np.int64)
    for step in (1, 2):
        store.push(frequent, ones(frequent), 1.0, step)
    rare = np.arange(10_000, 10_000 + CANDIDATES, dtype=np.int64)
    store.push(rare, ones(rare), 1.0, 3)
    assert counts_of(store) == dict.fromkeys(range(1000), 1.0)
    small = store.nbytes()
    store.push(rare, ones(rare), 1.0, 4)
    assert store.nbytes() < small + 64 * CANDIDATES


def test_candidates_are_not_forgotten_while_a_snapshot_of_them_is_taken() -> None:
    store = native_store(2, OPTIMIZERS["sgd"], ZERO, admit_after=2)
    one, candidates = ids_of(1), store.candidates
    assert candidates is not None
    store.push(one, ones(one), 1.0, 1)
    view = candidates.mark()
    store.push(one, ones(one), 1.0, 2)
    assert candidates.export_rows(0, 10, view)[1][0, 0] == 1, "as it was"
    assert counts_of(store) == {1: 0}, "it has its row"
    candidates.release(view)
    store.push(one, ones(one), 1.0, 3)
    assert counts_of(store) == {}
    assert candidates.removed(candidates.mark()).tolist() == [1]


def test_rows_that_no_push_moved_for_long_are_evicted_and_the_others_stay_as_they_are() -> None:
    store = native_store(2, OPTIMIZERS["keras adagrad"], aging=True)
    ids = np.arange(100, dtype=np.int64)
    for step, part in enumerate(np.array_split(ids, 10), 1):
        store.push(part, ones(part), 0.1, step)
    pulled(store, ids_of(500), 2)  # born at step 10
    pulled(store, ids_of(3), 2)  # a pull does not reset the age
    kept, before = np.append(ids[60:], 500), peeked(store, np.append(ids[60:], 500), 2)
    assert store.evict(7) == 60
    assert sorted(store.export_rows(0, 1000)[0].tolist()) == kept.tolist()
    np.testing.assert_array_equal(peeked(store, kept, 2), before)
    np.testing.assert_array_equal(pulled(store, ids[:60], 2), initial_rows(ids[:60], 2, UNIFORM, 1))
    assert store.evict(7) == 0


def test_an_index_that_lost_half_of_its_ids_finds_all_the_others() -> None:
    """Many times as many ids as buckets: most removals pull others back along their way."""
    random = np.random.default_rng(1)
    ids = np.unique(random.integers(-(2**63), 2**63 - 1, 300_000))
    store = native_store(1, OPTIMIZERS["sgd"], aging=True)
    for step in range(1, 9):
        old, young = np.array_split(random.permutation(ids), 2)
        store.push_unique(ids, ones(ids, 1), 1.0, 2 * step)
        store.push_unique(young, ones(young, 1), 1.0, 2 * step + 1)
        expected = peeked(store, young, 1)
        assert store.evict(2 * step + 1) == len(old)
        assert len(store) == len(young)
        np.testing.assert_array_equal(peeked(store, young, 1), expected)
        np.testing.assert_array_equal(peeked(store, old, 1), initial_rows(old, 1, UNIFORM, 1))


def test_rows_are_removed_by_id_and_absent_ones_passed_over() -> None:
    store = native_store(2, OPTIMIZERS["sgd"])
    pulled(store, np.arange(50, dtype=np.int64), 2)
    store.release(store.mark())
    assert store.remove(ids_of(3, 99, 49, 3)) == 2
    assert sorted(store.export_rows(0, 99)[0].tolist()) == [i for i in range(49) if i != 3]
    view = store.mark()
    assert (store.removed(view).tolist(), store.changed(view)) == ([3, 49], 0)
    with pytest.raises(ValueError, match="remove: a view is pinned"):
        store.remove(ids_of(1))


def test_an_eviction_in_pieces_goes_on_where_it_stopped() -> None:
    store = native_store(2, OPTIMIZERS["sgd"], aging=True)
    old, young = np.arange(100, dtype=np.int64), np.arange(100, 150, dtype=np.int64)
    store.push(old, ones(old), 1.0, 1)
    store.push(young, ones(young), 1.0, 2)
    assert [store.evict(2, 40) for _ in range(3)] == [40, 40, 20]
    assert sorted(store.export_rows(0, 1000)[0].tolist()) == young.tolist()


def test_beyond_the_steps_that_can_be_counted_rows_stop_ageing() -> None:
    store = native_store(2, OPTIMIZERS["sgd"], aging=True)
    store.push(ids_of(1), ones(ids_of(1)), 1.0, 5)
    store.push(ids_of(2), ones(ids_of(2)), 1.0, 2**32 + 5)
    assert store.evict(2**32 + 9) == 1
    assert store.export_rows(0, 9)[0].tolist() == [2]


def test_nothing_is_evicted_while_a_view_is_pinned() -> None:
    store = native_store(2, OPTIMIZERS["sgd"], aging=True)
    store.push(ids_of(1), ones(ids_of(1)), 1.0, 1)
    view = store.pin()
    assert store.evict(9) == 0 and len(store) == 1
    store.release(view)
    assert store.evict(9) == 1 and len(store) == 0


def test_the_memory_of_evicted_rows_goes_back_but_for_some() -> None:
    store = native_store(512, OPTIMIZERS["keras adagrad"], aging=True)
    for step in range(1, 6):
        ids = np.arange(step * 20_000, (step + 1) * 20_000, dtype=np.int64)
        store.push_unique(ids, ones(ids, 512), 0.1, step)
    full = store.nbytes()
    assert store.evict(5) == 80_000
    assert store.nbytes() < full / 2


def test_ages_and_counts_survive_an_export_and_an_import() -> None:
    store = native_store(2, OPTIMIZERS["sgd"], ZERO, admit_after=2, aging=True)
    for step, id in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 4), (7, 4)]:
        store.push(ids_of(id), ones(ids_of(id)), 1.0, step)
    other = restored(store, admit_after=2, aging=True)
    assert other.width == store.width == 3
    np.testing.assert_array_equal(
        other.export_rows(0, 9)[1].view(np.uint32), store.export_rows(0, 9)[1].view(np.uint32)
    )
    for each in (store, other):
        assert each.evict(4) == 1
        assert sorted(each.export_rows(0, 9)[0].tolist()) == [2, 4]
        assert each.push(ids_of(3), ones(ids_of(3)), 1.0, 8) == 1, "it was pushed once before"
        assert each.push(ids_of(1), ones(ids_of(1)), 1.0, 9) == 0, "its count began again with its row"


def test_increments_with_evictions_and_failures_add_up_to_the_table() -> None:
    """What a server that saves only changes would restore."""
    random, step = np.random.default_rng(2), 0
    store = native_store(2, OPTIMIZERS["keras adagrad"], aging=True)
    saved: dict[int, bytes] = {}
    for turn in range(40):
        for _ in range(3):
            step += 1
            ids = random.integers(0, 300, 20)
            store.push(ids, random.standard_normal((20, 2)).astype(np.float32), 0.1, step)
        store.evict(step - 12)
        view = store.mark()
        ids, rows, _ = store.export_changed(view, 0, 10_000)
        gone, whole = store.removed(view).tolist(), store.export_rows(0, 10_000, view)
        store.push(ids_of(turn), ones(ids_of(turn)), 0.1, step)
        if turn % 3 == 1:
            store.unmark(view)
            continue
        store.release(view)
        for id in gone:
            saved.pop(id, None)
        saved.update({id: row.tobytes() for id, row in zip(ids.tolist(), rows, strict=True)})
        assert saved == {id: row.tobytes() for id, row in zip(whole[0].tolist(), whole[1], strict=True)}
        assert not set(gone) & set(ids.tolist())


def test_a_store_without_ages_refuses_to_evict() -> None:
    with pytest.raises(ValueError, match="evict: the rows of this store have no age"):
        native_store(2, OPTIMIZERS["sgd"]).evict(1)


def test_more_pushes_than_can_be_counted_are_refused() -> None:
    with pytest.raises(ValueError, match="admit_after: at most 16777216 pushes, got 16777217"):
        native_store(2, OPTIMIZERS["sgd"], admit_after=(1 << 24) + 1)
