"""The types of tensors that a state may hold: all that both workers and safetensors files know."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from elasticdl.errors import ModelError

# By their names in safetensors files, which have none for complex128.
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def refuse_unknown(path: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """At the start, rather than when the first newcomer or the first checkpoint is due."""
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            what = f"{name!r} is {tensor.dtype}, which can neither be handed to other workers nor saved"
            other = "complex64, or its two parts as real tensors" if tensor.is_complex() else "another type"
            raise ModelError(path, what, f"Keep it as {other}.")
