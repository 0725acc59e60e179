"""How an embedding layer reaches its rows in the middle of a forward pass, and how their gradients come back.

The layer knows its table; a trainable puts a `Lookup` into the context for the length of one pass. So a layer may be
called anywhere in the user's code, any number of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from elasticdl.errors import ModelError
from elasticdl.frameworks.trainable import FloatArray, IdArray
from elasticdl.job.parameters import TableSpec


class TableLayer:
    """Mixed into the embedding layers of `elasticdl.layers`, so that a trainable finds them in a model."""

    def table(self, name: str) -> TableSpec:
        """The layer's table; `name` is how the model calls the layer."""
        raise NotImplementedError

    def bind(self, table: TableSpec) -> None:
        """From now on the layer asks for rows of this table."""
        raise NotImplementedError

    def plain(self) -> Any:
        """The framework's own layer that computes the same, its rows still to be set."""
        raise NotImplementedError


class Lookup(Protocol):
    """Answers the embedding layers during one forward pass."""

    def gather(self, table: TableSpec, ids: Any) -> Any:
        """The rows of `ids`, a framework tensor of any shape: a tensor of shape ids.shape + (dim,)."""
        ...


_lookup: ContextVar[Lookup | None] = ContextVar("elasticdl_lookup", default=None)


@contextmanager
def answered_by(lookup: Lookup) -> Iterator[None]:
    """Embedding layers called inside are answered by `lookup`."""
    token = _lookup.set(lookup)
    try:
        yield
    finally:
        _lookup.reset(token)


def gather(table: TableSpec, ids: Any) -> Any:
    """What an embedding layer calls in its forward pass."""
    lookup = _lookup.get()
    if lookup is None:
        raise ModelError(
            f"layer {table.name!r}",
            "an elasticdl Embedding was called outside a job; its rows live on the job's parameter servers",
            "Run the model with `elasticdl train`, or use the framework's own Embedding layer where the table fits "
            "into memory.",
        )
    return lookup.gather(table, ids)


class NoRows:
    """A row source of zeros, for passes that only find out shapes."""

    def __init__(self, tables: Sequence[TableSpec]) -> None:
        self._dims = {table.name: table.dim for table in tables}

    def rows(self, table: str, ids: IdArray) -> FloatArray:
        return np.zeros((len(ids), self._dims[table]), np.float32)


def summed(parts: Sequence[tuple[IdArray, FloatArray]]) -> tuple[IdArray, FloatArray]:
    """One gradient per id, from the gradients of several calls of one layer (ids unique within each)."""
    if len(parts) == 1:
        return parts[0]
    ids = np.concatenate([ids for ids, _ in parts])
    gradients = np.concatenate([gradients for _, gradients in parts])
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    return ids[starts], np.add.reduceat(gradients[order], starts, axis=0)


class ZeroLookup:
    """Answers every layer with zeros, in terms of `keras.ops`: for passes that only find out shapes or ids."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def gather(self, table: TableSpec, ids: Any) -> Any:
        # By multiplication, since a traced batch may have no known size.
        return self._ops.expand_dims(self._ops.cast(ids, "float32"), -1) * self._ops.zeros((table.dim,))
