"""The Keras embedding layer whose rows live on the parameter servers."""

from __future__ import annotations

import os
from typing import Any, Literal

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras

from elasticdl.errors import ModelError
from elasticdl.frameworks.rows import TableLayer, gather
from elasticdl.job.parameters import InitializerSpec, TableSpec

Combiner = Literal["sum", "mean", "sqrtn"]


class Embedding(TableLayer, keras.layers.Layer):  # type: ignore[misc]
    """Like `keras.layers.Embedding`, for tables of any size: ids are integers, rows are born on first use.

    `input_dim` may be left out (hashed ids); with it the exported model holds a plain Embedding layer. `combiner`
    reduces the last axis of the ids. With `mask_zero` id 0 is padding: it counts as nothing for the combiner, and
    without one it becomes the mask of later layers, as in Keras.
    """

    def __init__(
        self,
        output_dim: int,
        input_dim: int | None = None,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        combiner: Combiner | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if combiner not in (None, "sum", "mean", "sqrtn"):
            raise ModelError("Embedding", f"combiner={combiner!r} is not known", "Use sum, mean, sqrtn or None.")
        self.output_dim, self.input_dim = output_dim, input_dim
        self.mask_zero, self.combiner = mask_zero, combiner
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.initializer = read_initializer(self.embeddings_initializer)
        self.supports_masking = mask_zero
        self.autocast = False  # ids are not to be made floats
        self._table = self.table(self.name)

    def table(self, name: str) -> TableSpec:
        return TableSpec(name=name, dim=self.output_dim, initializer=self.initializer, input_dim=self.input_dim)

    def bind(self, table: TableSpec) -> None:
        self._table = table

    def build(self, input_shape: Any) -> None:
        self._ids_shape = tuple(input_shape)  # nothing to make: the rows are elsewhere
        self.built = True

    def call(self, inputs: Any) -> Any:
        if not keras.backend.is_int_dtype(inputs.dtype):
            raise ModelError(
                f"layer {self.name!r}",
                f"its ids are {keras.backend.standardize_dtype(inputs.dtype)}; they must be integers",
                'Give the input an integer type: keras.Input(..., dtype="int64").',
            )
        values = keras.ops.cast(gather(self._table, inputs), self.compute_dtype)
        return combined(values, inputs, self.combiner, self.mask_zero)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        if not self.mask_zero or self.combiner is not None:
            return None
        return keras.ops.not_equal(inputs, 0)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        kept = input_shape[:-1] if self.combiner is not None else input_shape
        return (*kept, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "input_dim": self.input_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "mask_zero": self.mask_zero,
            "combiner": self.combiner,
        }

    def plain(self) -> Any:
        """Plain Keras that computes the same once the variable `embeddings` of the layer of this name is set."""
        name = self.name if self.combiner is None else f"{self.name}_rows"
        rows = keras.layers.Embedding(
            self.input_dim, self.output_dim, name=name, mask_zero=self.mask_zero and self.combiner is None
        )
        if self.combiner is None:
            return rows
        ids = keras.Input(batch_shape=self._ids_shape, dtype="int32")
        return keras.Model(ids, combined(rows(ids), ids, self.combiner, self.mask_zero), name=self.name)


def combined(values: Any, ids: Any, combiner: Combiner | None, mask_zero: bool) -> Any:
    """Rows reduced over the last axis of the ids."""
    ops = keras.ops
    if combiner is None:
        return values
    if not mask_zero:
        if combiner == "sum":
            return ops.sum(values, axis=-2)
        mean = ops.mean(values, axis=-2)
        return mean if combiner == "mean" else mean * float(ids.shape[-1]) ** 0.5
    kept = ops.cast(ops.expand_dims(ops.not_equal(ids, 0), -1), values.dtype)
    total = ops.sum(values * kept, axis=-2)
    if combiner == "sum":
        return total
    count = ops.maximum(ops.sum(kept, axis=-2), 1.0)
    return total / (count if combiner == "mean" else ops.sqrt(count))


def read_initializer(initializer: Any) -> InitializerSpec:
    """The description of a Keras initializer that a parameter server can draw a single row from."""
    config = initializer.get_config()
    kind = type(initializer)
    if kind is keras.initializers.Zeros:
        return InitializerSpec(kind="constant", a=0.0)
    if kind is keras.initializers.Ones:
        return InitializerSpec(kind="constant", a=1.0)
    if kind is keras.initializers.Constant:
        return InitializerSpec(kind="constant", a=float(config["value"]))
    if kind is keras.initializers.RandomUniform:
        return InitializerSpec(kind="uniform", a=float(config["minval"]), b=float(config["maxval"]))
    if kind is keras.initializers.RandomNormal:
        return InitializerSpec(kind="normal", a=float(config["mean"]), b=float(config["stddev"]))
    raise ModelError(
        "Embedding",
        f"embeddings_initializer {kind.__name__} is not supported: rows are born one by one",
        "Use RandomUniform, RandomNormal, Constant, Zeros or Ones.",
    )
