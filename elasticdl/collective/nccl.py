"""NCCL for the sums of members that have a GPU of their own each.

It only serves tensors that are on a GPU; everything small goes through Gloo, which every world has. Unlike Gloo it can
be aborted: its kernels end, whoever waits for them, and what they leave behind is worth nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, Store

# A group that fails is the loop's business: torch must not take the process down for it. Nor does it end what hangs
# then: a peer that is gone fails what goes through Gloo beside each sum, and whoever calls the group off, as the master
# says or for lack of one, aborts it. Sums have no limit of their own: a slow peer is waited for.
_SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


def device_name(device: torch.device) -> str:
    """What tells a GPU from every other one, of this machine or another; nothing where there is none."""
    if device.type != "cuda" or not torch.distributed.is_nccl_available():
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def usable(devices: Sequence[str]) -> bool:
    """Whether members with these devices can use it: two of its ranks cannot share one."""
    return len(devices) > 1 and all(devices) and len(set(devices)) == len(devices)


def connect(store: Store, prefix: str, rank: int, size: int, device: torch.device, timeout_seconds: float) -> Any:
    """The process group, which connects when it is first used."""
    from torch.distributed import ProcessGroupNCCL

    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_seconds)
    torch.cuda.set_device(device)  # of this thread
    return ProcessGroupNCCL(PrefixStore(f"{prefix}/nccl", store), rank, size, options)
