"""What a worker's arithmetic depends on: where two workers differ in it, their results may differ in some bits."""

from __future__ import annotations

import os
import sys

import torch

from elasticdl import __version__


def fingerprint(device: torch.device) -> str:
    """Library versions, CPU or GPU type, and number of threads."""
    parts = [f"elasticdl {__version__}", f"torch {torch.__version__}"]
    for name in ("keras", "jax", "tensorflow"):
        module = sys.modules.get(name)
        if module is not None:
            parts.append(f"{name} {getattr(module, '__version__', '?')}")
    if "keras" in sys.modules:
        parts.append(f"backend {os.environ.get('KERAS_BACKEND', 'unknown')}")
    if device.type == "cuda":
        parts.append(f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}")
    else:
        parts.append(f"CPU {torch.backends.cpu.get_cpu_capability()}")
    threads = torch.get_num_threads()
    return ", ".join([*parts, f"{threads} thread{'s' if threads != 1 else ''}"])
