"""What the bits of a computation depend on beside the job's description: workers that differ in it do not mix."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

_LIBRARIES = ("torch", "numpy", "keras", "jax", "jaxlib", "tensorflow")


def fingerprint() -> str:
    """Library versions, processor, threads, devices and Keras backend of this process: JSON, equal means equal bits.

    Ask after the model file was imported: only libraries that this process uses count.
    """
    found: dict[str, Any] = {
        "libraries": {n: _version(n) for n in _LIBRARIES if n in sys.modules},
        "python": platform.python_version_tuple()[:2],
        "machine": platform.machine(),
        "processor": _vendor(),  # MKL chooses its code by maker and instruction set
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
    }
    if "keras" in sys.modules:
        found["keras_backend"] = sys.modules["keras"].backend.backend()
    return json.dumps(found, sort_keys=True)


def difference(mine: str, theirs: str) -> str:
    """What differs between two fingerprints, for a message: `threads: 1, not 2`."""
    ours, others = json.loads(mine), json.loads(theirs)
    keys = sorted(k for k in ours.keys() | others.keys() if ours.get(k) != others.get(k))
    return "; ".join(f"{key}: {_shown(ours.get(key))}, not {_shown(others.get(key))}" for key in keys)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _version(library: str) -> str:
    found = getattr(sys.modules[library], "__version__", None)
    return str(found or importlib.metadata.version(library))


def _vendor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # no Linux
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
