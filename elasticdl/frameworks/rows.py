"""How an embedding layer gets its rows during a forward pass, and how their gradients are collected.

The layer knows its table. A trainable puts a `Lookup` into a context variable for one pass. So the user's code may call
a layer anywhere and any number of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np
from pydantic import ValidationError

from elasticdl.errors import ModelError
from elasticdl.frameworks.arrays import FloatArray, IdArray
from elasticdl.job.parameters import TableSpec


class TableLayer:
    """A base of the embedding layers of `elasticdl.layers`, by which a trainable finds them in a model."""

    def table(self, name: str) -> TableSpec:
        """The layer's table; `name` is the layer's name in the model."""
        raise NotImplementedError

    @staticmethod
    def described(**fields: Any) -> TableSpec:
        """The table that the layer's arguments describe, or an error that names the layer and the argument."""
        try:
            return TableSpec(**fields)
        except ValidationError as error:
            wrong = [f"{e['loc'][0]}={e['input']!r}: {e['msg'].lower()}" for e in error.errors()]
            raise ModelError(
                f"layer {fields['name']!r}", "; ".join(wrong), "Correct the arguments of the layer."
            ) from None

    def bind(self, table: TableSpec) -> None:
        """Use the rows of this table from now on."""
        raise NotImplementedError

    def plain(self) -> Any:
        """The framework's own layer that computes the same. Its rows are not set yet."""
        raise NotImplementedError


class Lookup(Protocol):
    """Gives embedding layers their rows during one forward pass."""

    def gather(self, table: TableSpec, ids: Any, padding: int | None = None) -> Any:
        """The rows of `ids`, a framework tensor of any shape: a tensor of shape ids.shape + (dim,).

        The id `padding` has no row: it gets zeros, and no gradient.
        """
        ...


_lookup: ContextVar[Lookup | None] = ContextVar("elasticdl_lookup", default=None)


@contextmanager
def answered_by(lookup: Lookup) -> Iterator[None]:
    """Inside, embedding layers get their rows from `lookup`."""
    token = _lookup.set(lookup)
    try:
        yield
    finally:
        _lookup.reset(token)


def gather(table: TableSpec, ids: Any, padding: int | None = None) -> Any:
    """The rows of these ids; embedding layers call this in their forward pass."""
    lookup = _lookup.get()
    if lookup is None:
        raise ModelError(
            f"layer {table.name!r}",
            "an elasticdl Embedding was called outside a job; its rows live on the job's parameter servers",
            "Run the model with `elasticdl train`, or use the Embedding layer of Keras or PyTorch if the table fits "
            "into memory.",
        )
    return lookup.gather(table, ids, padding)


def without(padding: int | None, ids: IdArray) -> tuple[IdArray, int | None]:
    """Sorted unique ids without the padding, and the position that it had; None if it is not among them."""
    if padding is None or not len(ids):
        return ids, None
    place = int(np.searchsorted(ids, padding))
    if place == len(ids) or ids[place] != padding:
        return ids, None
    return np.delete(ids, place), place


def check_range(table: TableSpec, ids: IdArray) -> None:
    """Raise ModelError for ids outside the range of a table with a known number of ids."""
    if table.input_dim is None or not len(ids) or (ids.min() >= 0 and ids.max() < table.input_dim):
        return
    wrong = ids.min() if ids.min() < 0 else ids.max()
    raise ModelError(
        f"layer {table.name!r}",
        f"it was called with id {wrong}, but it is declared with {table.input_dim:,} ids: 0 to {table.input_dim - 1:,}",
        "Declare it larger, map ids into this range in feed (id % size), or use ElasticDL's Embedding without a "
        "number of ids, which accepts any 64-bit id.",
    )


class NoRows:
    """A row source of zeros, for passes that only determine shapes."""

    def __init__(self, tables: Sequence[TableSpec]) -> None:
        self._dims = {table.name: table.dim for table in tables}

    def rows(self, table: str, ids: IdArray) -> FloatArray:
        return np.zeros((len(ids), self._dims[table]), np.float32)

    def chunks(self, table: str) -> Iterator[tuple[IdArray, FloatArray]]:
        return iter(())


def summed(parts: Sequence[tuple[IdArray, FloatArray]]) -> tuple[IdArray, FloatArray]:
    """One gradient per id, from the gradients of several calls of one layer (ids are unique within each)."""
    if len(parts) == 1:
        return parts[0]
    ids = np.concatenate([ids for ids, _ in parts])
    gradients = np.concatenate([gradients for _, gradients in parts])
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    return ids[starts], np.add.reduceat(gradients[order], starts, axis=0)


class ZeroLookup:
    """Gives every layer zeros, with `keras.ops`: for passes that only determine shapes or ids."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def gather(self, table: TableSpec, ids: Any, padding: int | None = None) -> Any:
        # By multiplication: the size of a traced batch may be unknown.
        return self._ops.expand_dims(self._ops.cast(ids, "float32"), -1) * self._ops.zeros((table.dim,))
