"""What the master and the parameter server import: no deep-learning framework, ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("torch", "keras", "tensorflow", "jax")


@pytest.mark.parametrize("module", ["elasticdl.master.main", "elasticdl.ps.main"])
def test_no_deep_learning_framework_is_imported(module: str) -> None:
    program = f"import sys, {module}; print([m for m in {FRAMEWORKS} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
