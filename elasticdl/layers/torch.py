"""The torch embedding layer whose rows live on the parameter servers."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from elasticdl.errors import ModelError
from elasticdl.frameworks.rows import TableLayer, gather
from elasticdl.frameworks.trainable import FloatArray
from elasticdl.job.parameters import InitializerSpec, TableSpec

Combiner = Literal["sum", "mean", "sqrtn"]
_INITIALIZERS = {
    "normal": InitializerSpec(kind="normal", a=0.0, b=1.0),
    "uniform": InitializerSpec(kind="uniform", a=-0.05, b=0.05),
    "zeros": InitializerSpec(kind="constant", a=0.0),
}


class Embedding(TableLayer, torch.nn.Module):  # type: ignore[misc]
    """Like `torch.nn.Embedding`, for tables of any size: ids are 64-bit integers, rows are born on first use.

    `num_embeddings` may be left out (hashed ids); with it the exported model holds a plain weight matrix.
    `padding_idx` marks ids that count as nothing: zeros, and no gradient. `combiner` reduces the last axis
    of the ids, as `torch.nn.EmbeddingBag` does.
    """

    def __init__(
        self,
        embedding_dim: int,
        num_embeddings: int | None = None,
        padding_idx: int | None = None,
        combiner: Combiner | None = None,
        initializer: str | InitializerSpec = "normal",
    ) -> None:
        super().__init__()
        if combiner not in (None, "sum", "mean", "sqrtn"):
            raise ModelError("Embedding", f"combiner={combiner!r} is not known", "Use sum, mean, sqrtn or None.")
        if isinstance(initializer, str) and initializer not in _INITIALIZERS:
            known = ", ".join(_INITIALIZERS)
            raise ModelError(
                "Embedding", f"initializer={initializer!r} is not known", f"Use {known}, or InitializerSpec."
            )
        self.embedding_dim, self.num_embeddings = embedding_dim, num_embeddings
        self.padding_idx, self.combiner = padding_idx, combiner
        self._initializer = _INITIALIZERS[initializer] if isinstance(initializer, str) else initializer
        self._table = self.table("embedding")

    def table(self, name: str) -> TableSpec:
        return TableSpec(
            name=name, dim=self.embedding_dim, initializer=self._initializer, input_dim=self.num_embeddings
        )

    def bind(self, table: TableSpec) -> None:
        self._table = table

    def forward(self, ids: Any) -> Any:
        if ids.is_floating_point():
            raise TypeError(f"ids of layer {self._table.name!r} are {ids.dtype}; they must be integers")
        if self.combiner is not None and ids.ndim == 0:
            raise ValueError(
                f"layer {self._table.name!r} has combiner={self.combiner!r}: its ids need at least one axis"
            )
        values = gather(self._table, ids)
        kept = None
        if self.padding_idx is not None:
            kept = (ids != self.padding_idx).unsqueeze(-1).to(values.dtype)
            values = values * kept
        if self.combiner is None:
            return values
        total = values.sum(dim=-2)
        if self.combiner == "sum":
            return total
        if kept is None:
            count = max(ids.shape[-1], 1)
            return total / (count if self.combiner == "mean" else math.sqrt(count))
        count = kept.sum(dim=-2).clamp(min=1.0)
        return total / (count if self.combiner == "mean" else count.sqrt())

    def plain_weights(self, rows: FloatArray) -> FloatArray:
        """The weight matrix of the plain layer that computes the same."""
        if self.padding_idx is not None:
            rows[self.padding_idx] = 0.0
        return rows

    def plain_code(self) -> str:
        """The plain layer that computes the same, as code."""
        arguments = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.padding_idx is not None:
            arguments += f", padding_idx={self.padding_idx}"
        if self.combiner in ("sum", "mean"):
            return f'`torch.nn.EmbeddingBag({arguments}, mode="{self.combiner}")`'
        plain = f"`torch.nn.Embedding({arguments})`"
        return plain if self.combiner is None else f"{plain}, summed and divided by the square root of the count"

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, combiner={self.combiner}"
