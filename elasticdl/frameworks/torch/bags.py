"""Look-ups of ids with torch, in every form that torch users pass ids, with a reduction per bag.

Used by ElasticDL's torch layer and by plain `torch.nn` embeddings whose rows moved to the servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from elasticdl.errors import ModelError
from elasticdl.frameworks.rows import gather
from elasticdl.job.parameters import TableSpec

Combiner = Literal["sum", "mean", "sqrtn"]
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class Bags:
    """Bags of different lengths: all ids, and the lengths of the bags."""

    ids: Any
    lengths: Any

    @property
    def owners(self) -> Any:
        """The number of the bag of each id."""
        return torch.repeat_interleave(torch.arange(len(self.lengths), device=self.ids.device), self.lengths)


def look_up(
    table: TableSpec,
    ids: Any,
    *,
    offsets: Any = None,
    weights: Any = None,
    combiner: Combiner | None = None,
    padding: int | None = None,
    last_offset: bool = False,
) -> Any:
    """The rows of ids, or with a combiner one value per bag; bags without ids are zeros.

    Ids are a tensor whose last axis is the bag, a list of bags, a pair (ids, offsets) or a nested tensor. Weights have
    the form of the ids: `mean` then divides by their sum, `sqrtn` by the root of the sum of their squares.
    """
    bags = _bags(table, ids, offsets, last_offset)
    flat = checked(table, ids if bags is None else bags.ids)
    if weights is not None:
        weights = _weights(table, weights, flat)
        if combiner is None:
            raise _wrong(table, "weights need a combiner", "Create the layer with combiner='sum', 'mean' or 'sqrtn'.")
    if bags is None and combiner is not None and not 2 <= flat.ndim <= 3:
        raise _wrong(
            table,
            f"ids have shape {tuple(flat.shape)}; combiner={combiner!r} reduces the last of 2 or 3 axes",
            "Pass ids [records, ids] or [records, fields, ids], or ids on one axis with offsets. For one id per record "
            "remove the combiner.",
        )
    rows = gather(table, flat, padding)
    if combiner is None:
        return rows if bags is None else list(rows.split(bags.lengths.tolist()))
    weights = _with_padding(flat, weights, padding, rows.dtype)
    if weights is not None:
        rows = rows * weights.unsqueeze(-1)
    total = _sum(rows, bags)
    if combiner == "sum":
        return total
    return total / _divisor(flat, weights, bags, combiner, rows.dtype)


def checked(table: TableSpec, ids: Any) -> Any:
    """Ids as a tensor of integers."""
    if not isinstance(ids, torch.Tensor):
        array = np.asarray(ids)
        if array.dtype.kind not in "iu":
            raise _wrong(table, f"ids have type {array.dtype} and shape {array.shape}", _INTEGER_REMEDY)
        ids = torch.from_numpy(array.astype(np.int64))
    if ids.dtype not in _INTEGERS:
        raise _wrong(table, f"ids have type {ids.dtype} and shape {tuple(ids.shape)}", _INTEGER_REMEDY)
    return ids


_INTEGER_REMEDY = (
    "Ids must be integers: create int64 ids in feed. Floats lose ids above 2**24; text needs a hash or a lookup."
)


def _wrong(table: TableSpec, what: str, remedy: str) -> ModelError:
    return ModelError(f"layer {table.name!r}", what, remedy)


def _bags(table: TableSpec, ids: Any, offsets: Any, last_offset: bool) -> Bags | None:
    if isinstance(ids, tuple) and len(ids) == 2 and offsets is None:
        ids, offsets = ids
    if isinstance(ids, torch.Tensor) and ids.is_nested:
        if ids.layout != torch.jagged or ids.dim() != 2:
            raise _wrong(
                table,
                f"ids are a nested tensor of layout {ids.layout}",
                "Create it from 1-d tensors with layout=torch.jagged.",
            )
        return Bags(ids.values(), ids.offsets().diff())
    if isinstance(ids, (list, tuple)):
        return _from_list(table, ids)
    if offsets is None:
        return None
    ids, offsets = checked(table, ids), checked(table, offsets)
    if ids.ndim != 1 or offsets.ndim != 1:
        raise _wrong(
            table,
            f"ids have shape {tuple(ids.shape)} and offsets have shape {tuple(offsets.shape)}",
            "Both need one axis: all ids in sequence, and the start of each bag.",
        )
    ends = offsets if last_offset else torch.cat([offsets, offsets.new_tensor([len(ids)])])
    lengths = ends.diff()
    good = len(ends) > 0 and int(ends[0]) == 0 and int(ends[-1]) == len(ids) and not bool((lengths < 0).any())
    if not good:
        raise _wrong(
            table,
            f"offsets {_shown(offsets)} do not split {len(ids)} ids into bags",
            "Offsets start with 0 and never decrease"
            + (" and end with the number of ids." if last_offset else "; each is the start of a bag."),
        )
    return Bags(ids, lengths)


def _from_list(table: TableSpec, bags: Any) -> Bags:
    parts = []
    for bag in bags:
        tensor = bag if isinstance(bag, torch.Tensor) else torch.from_numpy(np.array(bag))
        if tensor.ndim != 1:
            remedy = "A list of bags needs one 1-d array of ids per record."
            raise _wrong(table, f"a bag has shape {tuple(tensor.shape)}", remedy)
        parts.append(checked(table, tensor) if len(tensor) else tensor.to(torch.int64))  # an empty list becomes floats
    ids = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)
    return Bags(ids, torch.tensor([len(p) for p in parts], device=ids.device))


def _weights(table: TableSpec, weights: Any, ids: Any) -> Any:
    if isinstance(weights, (list, tuple)):
        weights = torch.cat([torch.as_tensor(w, dtype=torch.float32) for w in weights])
    if getattr(weights, "is_nested", False):
        weights = weights.values()
    if weights.shape != ids.shape:
        raise _wrong(
            table,
            f"weights have shape {tuple(weights.shape)}, but ids have shape {tuple(ids.shape)}",
            "Pass one weight per id.",
        )
    return weights.to(torch.float32)


def _with_padding(ids: Any, weights: Any, padding: int | None, dtype: Any) -> Any:
    if padding is None:
        return weights
    kept = (ids != padding).to(dtype)
    return kept if weights is None else weights * kept


def _sum(values: Any, bags: Bags | None) -> Any:
    if bags is None:
        return values.sum(dim=-2)
    return values.new_zeros(len(bags.lengths), values.shape[-1]).index_add(0, bags.owners, values)


def _divisor(ids: Any, weights: Any, bags: Bags | None, combiner: Combiner, dtype: Any) -> Any:
    """The divisor of the sum of each bag, with an axis for the row's values."""
    if weights is None:
        count = torch.tensor([ids.shape[-1]], device=ids.device) if bags is None else bags.lengths.unsqueeze(-1)
        sums = count.to(dtype)
    else:
        sums = _sum((weights if combiner == "mean" else weights * weights).unsqueeze(-1), bags)
    # For an empty bag both are zero. The root of 1 avoids the gradient of the root of 0.
    sums = torch.where(sums == 0, torch.ones_like(sums), sums)
    return sums if combiner == "mean" else sums.sqrt()


def _shown(numbers: Any) -> str:
    values = numbers.tolist()
    return str(values) if len(values) <= 8 else f"[{', '.join(map(str, values[:8]))}, ...]"
