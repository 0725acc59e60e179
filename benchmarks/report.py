"""What every result says of the machine and the versions it was measured with, and how it is written down."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def machine() -> str:
    model = platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def about(*packages: str) -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in ("numpy", *packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "versions": versions}


def write(out: Path | None, result: dict[str, Any]) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
