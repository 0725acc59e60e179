"""What rows are born as: a function of seed and id, with the distribution that was asked for."""

from __future__ import annotations

import math

import numpy as np

from elasticdl.job.parameters import InitializerSpec
from elasticdl.ps import _native
from tests.ps.oracle import initial_rows
from tests.ps.stores import EXTREMES, OPTIMIZERS, ids_of, native_store, pulled


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
