"""The README's model file and commands, run as they are written, on less data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl.data.example import encode_example
from elasticdl.data.recordio import RecordIOWriter
from tests.docs import pages
from tests.docs.pages import ROOT

README = ROOT / "README.md"
RECORDS = 512


def _write_images(folder: Path) -> None:
    """Images as MNIST's, whose brightness is their label."""
    folder.mkdir(parents=True)
    with RecordIOWriter(folder / "part-0.recordio") as writer:
        for i in range(RECORDS):
            label = i % 10
            image = np.full(784, 25 * label, np.uint8)
            writer.write(encode_example({"image": image, "label": np.array([label])}))


@pytest.mark.timeout(120)
def test_the_readmes_model_is_trained_by_its_command(tmp_path: Path) -> None:
    [model] = [text for language, text in pages.blocks(README) if language == "python"]
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "digits.py").write_text(model)
    data, train = (c.words for c in pages.commands(README) if c.words[0] in ("data", "train"))
    assert data == ("data", "mnist", "data/mnist")
    for part in ("train", "test"):
        _write_images(tmp_path / "data" / "mnist" / part)
    environment = {**os.environ, "ELASTICDL_STATE_DIR": str(tmp_path / "jobs"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "elasticdl", *train]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "jobs" / "test-mnist" / "result.json").read_text())
    assert int(result["status"]["records_done"]) == 2 * RECORDS
    assert 0 <= result["status"]["evaluations"][-1]["metrics"]["accuracy"] <= 1
    assert (tmp_path / "digits-model" / "model.safetensors").is_file()
