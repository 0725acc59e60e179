"""Jobs that prove that every record was trained exactly once, even with lost pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster_jobs import ROOT, ClusterJob, in_pods
from tests.processes import harness


def witness(shared: Path, name: str, workers: int = 2, seconds: float = 0.5) -> list[str]:
    """The model that proves that every record was trained exactly once; a batch takes this time while the file
    NAME-slow exists."""
    (shared / f"{name}-slow").touch()
    data = harness.write_ids(shared / "ids", 400)
    return [
        f"--model_zoo={ROOT / 'tests/models'}", "--model_def=witness.custom_model", f"--training_data={data}",
        "--num_epochs=2", "--minibatch_size=8", "--num_minibatches_per_task=4", "--num_ps_pods=2",
        f"--num_workers={workers}", "--aux_params=num_servers=2", f"--output={shared / name}-model",
        "--checkpoint_seconds=3",
        *in_pods(shared, PEBBLE_SECONDS=str(seconds), PEBBLE_SLOW=str(shared / f"{name}-slow")),
    ]  # fmt: skip


async def proven(job: ClusterJob, shared: Path) -> dict[str, Any]:
    """Let it continue fast and succeed, with every record trained once per epoch. Returns its last status."""
    (shared / f"{job.name}-slow").unlink()
    result = await job.result()
    assert result["outcome"] == "succeeded", f"{result}\n{job.story()}"
    harness.audit_witness(shared / f"{job.name}-model", records=400, epochs=2, servers=2)
    status: dict[str, Any] = result["status"]
    return status


def is_another(than: Mapping[str, str], short: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a pod of this name is a new one and runs."""
    return lambda pod: pod["metadata"]["uid"] != than[short] and pod["status"].get("phase") == "Running"
