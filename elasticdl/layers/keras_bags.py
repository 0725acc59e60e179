"""Rows reduced per bag of ids, with `keras.ops`; ragged and sparse tensors with TensorFlow."""

from __future__ import annotations

from typing import Any, Literal

import keras

Combiner = Literal["sum", "mean", "sqrtn"]


def combined(values: Any, ids: Any, weights: Any, combiner: Combiner | None, padding: int | None) -> Any:
    """Rows reduced over the last axis of the ids; bags without ids, or only with padding, are zeros."""
    ops = keras.ops
    weights = _with_padding(ids, weights, padding, values.dtype)
    if weights is None:
        total = ops.sum(values, axis=-2)
        count = max(ids.shape[-1] or 0, 1) if ids.shape[-1] is not None else ops.cast(ops.shape(ids)[-1], values.dtype)
        return total if combiner == "sum" else total / (count if combiner == "mean" else count**0.5)
    total = ops.sum(values * ops.expand_dims(weights, -1), axis=-2)
    if combiner == "sum":
        return total
    return _divided(total, ops.sum(_measure(weights, combiner), axis=-1, keepdims=True), combiner)


def _with_padding(ids: Any, weights: Any, padding: int | None, dtype: Any) -> Any:
    ops = keras.ops
    weights = None if weights is None else ops.cast(weights, dtype)
    if padding is None:
        return weights
    kept = ops.cast(ops.not_equal(ids, padding), dtype)
    return kept if weights is None else weights * kept


def _measure(weights: Any, combiner: Combiner | None) -> Any:
    return weights if combiner == "mean" else weights * weights


def _divided(total: Any, sums: Any, combiner: Combiner | None) -> Any:
    ops = keras.ops
    # For an empty bag both are zero. The root of 1 avoids the gradient of the root of 0.
    sums = ops.where(ops.equal(sums, 0), ops.ones_like(sums), sums)
    return total / (sums if combiner == "mean" else ops.sqrt(sums))


def is_ragged(ids: Any) -> bool:
    """Whether these are ragged or sparse ids of TensorFlow, or a Keras input for such ids."""
    if isinstance(ids, keras.KerasTensor):
        return bool(getattr(ids, "ragged", False) or getattr(ids, "sparse", False))
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return isinstance(ids, (tf.RaggedTensor, tf.SparseTensor))


def ragged_rows(ids: Any, rows: Any) -> Any:
    """Rows in the bags of the ids."""
    return ids.with_values(rows)


def combined_ragged(rows: Any, ids: Any, weights: Any, combiner: Combiner | None, padding: int | None) -> Any:
    """Rows [all ids, dim] of ragged or sparse ids, reduced per bag."""
    import tensorflow as tf

    if isinstance(ids, tf.RaggedTensor):
        owners, bags = ids.value_rowids(), ids.nrows()
    else:
        owners, bags = ids.indices[:, 0], ids.dense_shape[0]
    given = None if weights is None else getattr(weights, "values", weights)
    found = _with_padding(ids.values, given, padding, rows.dtype)
    if found is None:
        found = keras.ops.ones(keras.ops.shape(ids.values), dtype=rows.dtype)
    total = tf.math.unsorted_segment_sum(rows * found[:, None], owners, bags)
    if combiner == "sum":
        return total
    return _divided(total, tf.math.unsorted_segment_sum(_measure(found, combiner), owners, bags)[:, None], combiner)
