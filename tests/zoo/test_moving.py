"""A whole job with a large plain embedding: its rows are on the servers, and plain weights in the exported model."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.processes.harness import start

pytestmark = pytest.mark.zoo
MODEL = """
import numpy as np, torch

class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.items = torch.nn.Embedding(100_000, 8)
        torch.nn.init.constant_(self.items.weight, 0.5)
        self.out = torch.nn.Linear(8, 1)

    def forward(self, ids):
        return self.out(self.items(ids))

def custom_model():
    return Wide()

def loss(labels, predictions):
    return torch.nn.functional.mse_loss(predictions, labels)

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)

def feed(records, mode, metadata):
    ids = np.array([int(r["id"]) for r in records])
    return ids if mode == "prediction" else (ids, np.array([[float(r["y"])] for r in records], np.float32))
"""


def test_a_large_plain_embedding_moves_to_the_servers_and_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="a torch model")
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "wide.py").write_text(MODEL)
    (tmp_path / "data").mkdir()
    ids = np.random.default_rng(0).permutation(100_000)[:640]
    with (tmp_path / "data" / "part.csv").open("w") as f:
        csv.writer(f).writerows([("id", "y"), *((i, 1.0) for i in ids.tolist())])
    job = start(
        tmp_path, "wide", f"--model_zoo={tmp_path / 'zoo'}", "--model_def=wide.custom_model",
        f"--training_data={tmp_path / 'data'}", "--minibatch_size=64", "--num_ps_pods=2", "--num_workers=1",
        f"--output={tmp_path / 'model'}",
    )  # fmt: skip
    code, _ = job.finish()
    assert code == 0, job.story()
    said = "Embedding 'items' (100,000 rows of 8, 3.1 MiB) moved to the parameter servers"
    assert said in job.output.read_text()
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert {name: w.shape for name, w in weights.items()} == {
        "items.weight": (100_000, 8),
        "out.weight": (1, 8),
        "out.bias": (1,),
    }
    moved = (weights["items.weight"] != 0.5).any(axis=1)
    assert sorted(np.flatnonzero(moved)) == sorted(ids)  # what was trained, and nothing else
