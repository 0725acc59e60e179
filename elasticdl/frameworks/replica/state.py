"""The state that workers of an all-reduce job share: names, types of tensors, and whether it matches a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from elasticdl.errors import ModelError

# Prefixes of the names in a state.
MODEL, OPTIMIZER = "model/", "optimizer/"
# All types that workers can exchange, by their names in safetensors files, which have none for complex128.
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def refuse_unknown(path: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise ModelError at the start, rather than at the first new worker or the first checkpoint."""
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            what = f"{name!r} is {tensor.dtype}, which cannot be sent to other workers or saved"
            other = "complex64, or its two parts as real tensors" if tensor.is_complex() else "another type"
            raise ModelError(path, what, f"Use {other}.")


def check_state(path: str, expected: Mapping[str, Any], given: Mapping[str, torch.Tensor]) -> None:
    """Raise ModelError unless both have the same names with the same shapes and types; `expected` are tensors."""
    if missing := sorted(expected.keys() - given.keys()):
        raise misfit(path, f"the state has no {_some(missing)}")
    if unknown := sorted(given.keys() - expected.keys()):
        raise misfit(path, f"the model has no {_some(unknown)}")
    for name, tensor in expected.items():
        check_shape(path, name, tensor, given[name])


def check_shape(path: str, name: str, mine: Any, theirs: torch.Tensor) -> None:
    if tuple(mine.shape) != tuple(theirs.shape) or mine.dtype != theirs.dtype:
        wants = f"{str(mine.dtype).removeprefix('torch.')} {list(mine.shape)}"
        holds = f"{str(theirs.dtype).removeprefix('torch.')} {list(theirs.shape)}"
        raise misfit(path, f"{name} is {holds} in the state and {wants} in the model")


def misfit(path: str, what: str) -> ModelError:
    remedy = "Use the model file and the --aux_params that the state was saved with."
    return ModelError(path, f"the state does not match this model: {what}", remedy)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
