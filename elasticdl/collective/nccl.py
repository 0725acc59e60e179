"""NCCL for the sums of members that each have their own GPU.

It serves only tensors on GPUs; small messages go through Gloo, which every world has. Unlike Gloo it can be aborted:
its kernels end, and their results are invalid.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, Store

# The loop handles a group that fails: torch must not end the process. Nor must it look for hangs: a lost peer breaks
# the messages through Gloo beside each sum, and the worker aborts the group when the master says so or is away for too
# long. Sums have no timeout: a slow peer is waited for.
_SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


def device_name(device: torch.device) -> str:
    """A name of this GPU that no other has, on any machine; empty where there is none."""
    if device.type != "cuda" or not torch.distributed.is_nccl_available():
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def usable(devices: Sequence[str]) -> bool:
    """Whether members with these devices can use NCCL: no two of its ranks can share a GPU."""
    return len(devices) > 1 and all(devices) and len(set(devices)) == len(devices)


def connect(store: Store, prefix: str, rank: int, size: int, device: torch.device, timeout_seconds: float) -> Any:
    """The process group; it connects when it is first used."""
    from torch.distributed import ProcessGroupNCCL

    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_seconds)
    torch.cuda.set_device(device)  # of this thread
    return ProcessGroupNCCL(PrefixStore(f"{prefix}/nccl", store), rank, size, options)
