"""Ragged and sparse ids of TensorFlow, through the whole of a step."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

if os.environ.get("KERAS_BACKEND") != "tensorflow":
    pytest.skip("ragged tensors are TensorFlow's", allow_module_level=True)

import tensorflow as tf

from tests.frameworks.conftest import load
from tests.frameworks.memory_rows import MemoryRows

BAGS = [[3, 2**60, 3], [], [-(2**62)], [-1], [5, -1, 3]]  # -1 is padding


def features(kind: str) -> Any:
    ragged = tf.ragged.constant(BAGS, dtype=tf.int64)
    if kind == "ragged":
        return ragged
    cells = [(n, place, i) for n, bag in enumerate(BAGS) for place, i in enumerate(bag)]
    return tf.SparseTensor([c[:2] for c in cells], tf.constant([c[2] for c in cells], tf.int64), (len(BAGS), 3))


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_values_and_gradients_of_bags_of_different_lengths(kind: str, combiner: str) -> None:
    _, trainable = load("ragged_keras", lambda: features(kind), kind=kind, combiner=combiner)
    rows, weights = MemoryRows(trainable.parameters), np.array([2.0, -3.0], np.float32)
    trainable.assign(weights, np.zeros(0, np.float32))
    expected, gradients = np.zeros((len(BAGS), 1)), {}
    pulls = np.zeros((len(BAGS), 1))
    for n, bag in enumerate([[i for i in bag if i != -1] for bag in BAGS]):
        count = max(len(bag), 1)
        divisor = {"sum": 1.0, "mean": count, "sqrtn": np.sqrt(count)}[combiner]
        for i in bag:
            expected[n] += rows.rows("items", np.array([i]))[0] @ weights / divisor
        pulls[n] = 2 * expected[n] / len(BAGS)
        for i in bag:
            gradients[i] = gradients.get(i, 0) + pulls[n] * weights / divisor
    rows.asked.clear()
    np.testing.assert_allclose(trainable.predict(features(kind), rows), expected, rtol=1e-5, atol=1e-7)
    [(_, asked)] = rows.asked
    assert asked.tolist() == sorted(gradients)
    result = trainable.step(features(kind), np.zeros((len(BAGS), 1)), rows)
    ids, found = result.rows["items"]
    assert ids.tolist() == sorted(gradients)
    np.testing.assert_allclose(found, [gradients[i] for i in ids.tolist()], rtol=1e-4, atol=1e-7)
