"""Random state and algorithms of a process, so that every worker computes the same bits for the same part of a step."""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def use_deterministic_algorithms() -> None:
    """From now on an operation gives the same bits each time, or raises if the framework has no such algorithm.

    torch could also fill new memory, so that reading it before writing is deterministic. That costs a pass over every
    tensor, so it is off.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    if "jax" not in sys.modules and "xla_gpu_deterministic_ops" not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true".strip()
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.config.experimental.enable_op_determinism()


def set_random_state(seed: int) -> None:
    """Seed all generators that layers, losses and feeds use by default."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    seed_torch(seed)


def seed_torch(seed: int) -> None:
    """Seed torch's generators of all devices.

    torch.manual_seed also prepares devices that are initialized later, and records where it was called. Without devices
    that takes a hundred times as long as the seeding.
    """
    if _has_devices():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@functools.cache
def _has_devices() -> bool:
    return bool(torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available())


@contextmanager
def random_state_kept(seed: int = 0) -> Iterator[None]:
    """Code inside draws from `seed`; afterwards the random state is as before."""
    python, numpy, devices = random.getstate(), np.random.get_state(), _devices()
    with torch.random.fork_rng(devices):
        set_random_state(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _devices() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
