"""The contract suite again with Keras on JAX and on TensorFlow, each in its own process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.backend
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_the_contract_holds_on(backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        assert os.environ.get("KERAS_BACKEND") != backend, f"{backend} is asked for but not installed"
        pytest.skip(f"{backend} is not installed; `pip install elasticdl[{backend}]` brings it")
    names = ("contract", "export", "model_file", "moving", "ragged", "replica", "replica_keras")
    suite = [f"tests/frameworks/test_{name}.py" for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not backend", *suite, "tests/zoo/test_models.py"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | {"KERAS_BACKEND": backend}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:]
