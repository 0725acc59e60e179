"""Jobs with --deterministic=false in real processes: sums in any order, and every record exactly once all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from elasticdl.api import state_files
from tests.processes import allreduce
from tests.processes.allreduce import Description

pytestmark = [pytest.mark.processes, pytest.mark.long]


@pytest.mark.parametrize(("model", "virtual"), [("pebble", 4), ("pebble", 8), ("pebble_keras", 4)])
def test_a_kill_while_gradients_are_on_their_way_loses_nothing_and_repeats_nothing(
    model: str, virtual: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four parts are more than a minibatch, and are computed one by one; of eight, two are computed together."""
    if virtual == 8:
        monkeypatch.setenv("PEBBLE_PLAIN", "1")
    data = allreduce.write_data(tmp_path / "data")
    plain = Description(model, workers=3, virtual=virtual, more={"deterministic": False})
    wanted, _ = allreduce.train_alone(Description(model, workers=3, virtual=virtual), data)
    fault, hits = "worker.in_exchange@elasticdl-plain-worker-1:9", tmp_path / "faults"
    hits.touch()
    faults = {"ELASTICDL_FAULTS": fault, "ELASTICDL_FAULT_LOG": str(hits)}
    job = allreduce.start(tmp_path, "plain", plain, data, part_seconds=0.05, **faults)
    job.wait_until(lambda s: hits.read_text().split() == [fault])
    allreduce.hurry(job)
    code, result = job.finish()
    assert code == 0 and result["outcome"] == "succeeded", f"{result}\n{job.story()}"
    status: Any = result["status"]
    assert status["audit"] == f"{plain.records} records, each trained exactly {plain.epochs} times"
    assert hits.read_text().split() == [fault]
    checkpoints = job.output.with_name("plain-checkpoints")
    state, _ = state_files.read(checkpoints / f"version-{plain.steps}", plain.steps)
    assert state.keys() == wanted.keys()
    # Adam makes steps of full length of gradients that are nothing but rounding: of biases in front of a batch norm.
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-2, atol=2e-2, msg=lambda m, n=name: f"{n}: {m}")
