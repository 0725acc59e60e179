"""The torch embedding layer whose rows are on the parameter servers."""

from __future__ import annotations

from typing import Any

import torch

from elasticdl.errors import ModelError
from elasticdl.frameworks.rows import TableLayer
from elasticdl.frameworks.torch.bags import Combiner, look_up
from elasticdl.job.parameters import InitializerSpec, TableSpec

_INITIALIZERS = {
    "normal": InitializerSpec(kind="normal", a=0.0, b=1.0),
    "uniform": InitializerSpec(kind="uniform", a=-0.05, b=0.05),
    "zeros": InitializerSpec(kind="constant", a=0.0),
}


class Embedding(TableLayer, torch.nn.Module):  # type: ignore[misc]
    """Like `torch.nn.Embedding`, for tables of any size: ids are 64-bit integers, rows are created on first use.

    `num_embeddings` is optional (hashed ids); with it the exported model has a plain weight matrix. `padding_idx` (any
    integer, also -1) is an id to ignore: it gets zeros and no gradient, and has no row on the servers. `combiner`
    reduces each bag of ids to one row, as `torch.nn.EmbeddingBag` does: the last axis of a tensor, or bags of different
    lengths as a list of 1-d tensors, as ids and offsets, or as a nested tensor.

    Servers keep a row from its `admit_after`-th push on, and drop it after `evict_after_steps` steps without a push.
    """

    def __init__(
        self,
        embedding_dim: int,
        num_embeddings: int | None = None,
        padding_idx: int | None = None,
        combiner: Combiner | None = None,
        initializer: str | InitializerSpec = "normal",
        include_last_offset: bool = False,
        admit_after: int | None = None,
        evict_after_steps: int | None = None,
    ) -> None:
        super().__init__()
        if combiner not in (None, "sum", "mean", "sqrtn"):
            raise ModelError("Embedding", f"combiner={combiner!r} is not supported", "Use sum, mean, sqrtn or None.")
        if isinstance(initializer, str) and initializer not in _INITIALIZERS:
            known = ", ".join(_INITIALIZERS)
            raise ModelError(
                "Embedding", f"initializer={initializer!r} is not supported", f"Use {known} or InitializerSpec."
            )
        self.embedding_dim, self.num_embeddings = embedding_dim, num_embeddings
        self.padding_idx, self.combiner = padding_idx, combiner
        self.include_last_offset = include_last_offset
        self.admit_after, self.evict_after_steps = admit_after, evict_after_steps
        self._initializer = _INITIALIZERS[initializer] if isinstance(initializer, str) else initializer
        self._table = self.table("embedding")

    def table(self, name: str) -> TableSpec:
        return self.described(
            name=name,
            dim=self.embedding_dim,
            initializer=self._initializer,
            input_dim=self.num_embeddings,
            admit_after=self.admit_after,
            evict_after_steps=self.evict_after_steps,
        )

    def bind(self, table: TableSpec) -> None:
        self._table = table

    def forward(self, ids: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        return look_up(
            self._table,
            ids,
            offsets=offsets,
            weights=per_sample_weights,
            combiner=self.combiner,
            padding=self.padding_idx,
            last_offset=self.include_last_offset,
        )

    @property
    def zero_row(self) -> int | None:
        """The row of the plain weight matrix that is zeros."""
        return self.padding_idx if self._padding_is_a_row else None

    @property
    def _padding_is_a_row(self) -> bool:
        return self.padding_idx is not None and 0 <= self.padding_idx < (self.num_embeddings or 0)

    def plain_code(self) -> str:
        """The plain layer that computes the same, as code."""
        arguments = f"{self.num_embeddings}, {self.embedding_dim}"
        if self._padding_is_a_row:
            arguments += f", padding_idx={self.padding_idx}"
        if self.include_last_offset:
            arguments += ", include_last_offset=True"
        if self.combiner in ("sum", "mean"):
            plain = f'`torch.nn.EmbeddingBag({arguments}, mode="{self.combiner}")`'
        else:
            plain = f"`torch.nn.Embedding({arguments})`"
        if self.combiner == "sqrtn":
            plain += ", summed and divided by the square root of the count"
        if self.padding_idx is not None and not self._padding_is_a_row:
            plain += f", without the ids {self.padding_idx}, which are padding"
        return plain

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, combiner={self.combiner}"
