"""The Keras embedding layer whose rows are on the parameter servers."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from elasticdl.errors import ModelError
from elasticdl.frameworks.keras.initializers import KNOWN, SCALED, describe
from elasticdl.frameworks.rows import TableLayer, ZeroLookup, gather
from elasticdl.job.parameters import InitializerSpec, TableSpec
from elasticdl.layers.keras_bags import Combiner, combined, combined_ragged, is_ragged, ragged_rows

_COMBINERS = "Create the layer with combiner='sum', 'mean' or 'sqrtn'."


class Embedding(TableLayer, keras.layers.Layer):  # type: ignore[misc]
    """Like `keras.layers.Embedding`, for tables of any size: ids are integers, rows are created on first use.

    `input_dim` is optional (hashed ids); with it the exported model has a plain Embedding layer. `combiner` reduces the
    last axis of the ids to one row; `layer(ids, weights=w)`, with weights of the ids' shape, reduces to a weighted row.
    The id `mask_value` (any integer, also -1) is padding: the combiner ignores it, it gets zeros and has no row on the
    servers. Without a combiner it becomes the mask of later layers. `mask_zero=True` means `mask_value=0`. With
    TensorFlow, ids may be ragged or sparse tensors.

    Servers keep a row from its `admit_after`-th push on, and drop it after `evict_after_steps` steps without a push.
    """

    def __init__(
        self,
        output_dim: int,
        input_dim: int | None = None,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        combiner: Combiner | None = None,
        mask_value: int | None = None,
        admit_after: int | None = None,
        evict_after_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if combiner not in (None, "sum", "mean", "sqrtn"):
            raise ModelError("Embedding", f"combiner={combiner!r} is not supported", "Use sum, mean, sqrtn or None.")
        if mask_zero and mask_value not in (None, 0):
            raise self._wrong(f"both mask_zero and mask_value={mask_value} are set", "Use one of them.")
        self.output_dim, self.input_dim = output_dim, input_dim
        self.mask_value, self.combiner = 0 if mask_zero else mask_value, combiner
        self.admit_after, self.evict_after_steps = admit_after, evict_after_steps
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.initializer = self._describe_initializer()
        self.supports_masking = self.mask_value is not None
        self.autocast = False  # ids must not become floats
        self._table = self.table(self.name)
        self._plain_form = True  # whether plain Keras layers can do the same

    def _describe_initializer(self) -> InitializerSpec:
        found = describe(self.embeddings_initializer, self.input_dim, self.output_dim)
        if isinstance(found, InitializerSpec):
            return found
        name = type(self.embeddings_initializer).__name__
        raise ModelError(
            f"layer {self.name!r}",
            f"embeddings_initializer {name} is not supported: {found}",
            f"Use {KNOWN}, or with input_dim also {SCALED}.",
        )

    def table(self, name: str) -> TableSpec:
        return self.described(
            name=name,
            dim=self.output_dim,
            initializer=self.initializer,
            input_dim=self.input_dim,
            admit_after=self.admit_after,
            evict_after_steps=self.evict_after_steps,
        )

    def bind(self, table: TableSpec) -> None:
        self._table = table

    def build(self, input_shape: Any) -> None:
        self._ids_shape = tuple(input_shape)  # no variables: the rows are on the servers
        self.built = True

    def call(self, inputs: Any, weights: Any = None) -> Any:
        self._check(inputs, weights)
        if is_ragged(inputs):
            rows = keras.ops.cast(self._gather(inputs.values), self.compute_dtype)
            if self.combiner is None:
                return ragged_rows(inputs, rows)
            return combined_ragged(rows, inputs, weights, self.combiner, self.mask_value)
        rows = keras.ops.cast(self._gather(inputs), self.compute_dtype)
        return rows if self.combiner is None else combined(rows, inputs, weights, self.combiner, self.mask_value)

    def _gather(self, ids: Any) -> Any:
        if in_symbolic_scope():  # Keras determines the output shape of a user's layer
            return ZeroLookup(keras.ops).gather(self._table, ids)
        return gather(self._table, ids, self.mask_value)

    def _check(self, ids: Any, weights: Any) -> None:
        dtype, shape = keras.backend.standardize_dtype(ids.dtype), tuple(ids.shape)
        if not keras.backend.is_int_dtype(dtype):
            raise self._wrong(
                f"ids have type {dtype} and shape {shape}; they must be integers",
                'Use an input of integers: keras.Input(..., dtype="int64"). Floats lose ids above 2**24; text needs a '
                "hash or a lookup in feed.",
            )
        ragged = is_ragged(ids)
        if ragged and len(shape) != 2:
            raise self._wrong(f"ragged ids have shape {shape}", "Ragged and sparse ids need two axes: [records, ids].")
        if ragged and self.combiner is None and not hasattr(ids, "with_values") and not _symbolic(ids):
            raise self._wrong("sparse ids need a combiner", _COMBINERS)
        if self.combiner is not None and not 2 <= len(shape) <= 3:
            raise self._wrong(
                f"ids have shape {shape}; combiner={self.combiner!r} reduces the last of 2 or 3 axes",
                "Pass ids [records, ids] or [records, fields, ids]. For one id per record remove the combiner.",
            )
        if weights is not None and self.combiner is None:
            raise self._wrong("weights need a combiner", _COMBINERS)
        if weights is not None and not ragged and not _fit(tuple(weights.shape), shape):
            raise self._wrong(
                f"weights have shape {tuple(weights.shape)}, but ids have shape {shape}", "Pass one weight per id."
            )
        if weights is not None or ragged:
            self._plain_form = False

    def _wrong(self, what: str, remedy: str) -> ModelError:
        return ModelError(f"layer {self.name!r}", what, remedy)

    def compute_output_spec(self, inputs: Any, weights: Any = None) -> Any:
        self._check(inputs, weights)
        ragged = getattr(inputs, "ragged", False) and self.combiner is None
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype, ragged=ragged)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        if self.mask_value is None or self.combiner is not None or is_ragged(inputs):
            return None
        return keras.ops.not_equal(inputs, self.mask_value)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        kept = input_shape[:-1] if self.combiner is not None else input_shape
        return (*kept, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "input_dim": self.input_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "combiner": self.combiner,
            "mask_value": self.mask_value,
            "admit_after": self.admit_after,
            "evict_after_steps": self.evict_after_steps,
        }

    @property
    def has_plain(self) -> bool:
        """Whether this layer has a plain form."""
        return self.input_dim is not None and self._plain_form

    def plain(self) -> Any:
        """Plain Keras layers that compute the same once the variable `embeddings` of the layer of this name is set."""
        assert self.input_dim is not None
        padding = self.mask_value
        if self.combiner is None and padding in (None, 0):
            # The row of id 0 is zeros, as for padding.
            return keras.layers.Embedding(self.input_dim, self.output_dim, name=self.name, mask_zero=padding == 0)
        ids = keras.Input(batch_shape=self._ids_shape, dtype="int32")
        rows = keras.layers.Embedding(self.input_dim, self.output_dim, name=f"{self.name}_rows")
        if padding is None:
            return keras.Model(ids, combined(rows(ids), ids, None, self.combiner, None), name=self.name)
        values = rows(keras.ops.where(keras.ops.equal(ids, padding), 0, ids))
        if self.combiner is not None:
            return keras.Model(ids, combined(values, ids, None, self.combiner, padding), name=self.name)
        kept = keras.ops.cast(keras.ops.expand_dims(keras.ops.not_equal(ids, padding), -1), values.dtype)
        return keras.Model(ids, values * kept, name=self.name)

    def plain_code(self) -> str:
        """The plain layer that computes the same, as code."""
        masked = ", mask_zero=True" if self.mask_value == 0 and self.combiner is None else ""
        plain = f'`keras.layers.Embedding({self.input_dim}, {self.output_dim}{masked}, name="{self.name}")`'
        if self.combiner is not None:
            how = {"sum": "summed", "mean": "averaged", "sqrtn": "summed and divided by the square root of the count"}
            plain += f", {how[self.combiner]} over the last axis of the ids"
        if self.mask_value is not None and not masked:
            plain += f", without the ids {self.mask_value}, which are padding"
        return plain

    @property
    def zero_row(self) -> int | None:
        """The row of the plain weight matrix that is zeros."""
        return self.mask_value if self.mask_value is not None and 0 <= self.mask_value < (self.input_dim or 0) else None


def _symbolic(tensor: Any) -> bool:
    return isinstance(tensor, keras.KerasTensor)


def _fit(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(one) == len(other) and all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))
