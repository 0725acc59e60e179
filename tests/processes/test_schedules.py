"""Whole jobs whose learning rate changes: the final weights are the sums of the rates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.processes.harness import OURS, RunningJob, start_witness

pytestmark = pytest.mark.processes

BATCH = 8  # of every witness job
RATES_BY_VERSION = [1.0] * 10 + [0.5] * 10 + [0.0] * 10 + [0.125] * 20


def _model(job: RunningJob, tmp: Path, name: str) -> tuple[dict[int, float], dict[str, float]]:
    """The rows by id and the scalars of a job that ended well."""
    code, _ = job.finish()
    assert code == 0, job.story()
    table = load_file(tmp / f"{name}-model" / "seen.safetensors")
    rows = dict(zip(table["ids"].tolist(), table["rows"].reshape(-1).tolist(), strict=True))
    dense = load_file(tmp / f"{name}-model" / "model.safetensors")
    return rows, {k: float(v.reshape(())) for k, v in dense.items()}


@pytest.mark.long
def test_every_step_takes_the_rate_of_its_version(tmp_path: Path) -> None:
    """One worker: versions 0 to 49, one batch each. A rate of 0 is one too."""
    job = start_witness(
        tmp_path, "versions", "--callbacks=by_version", model="scheduled", records=50 * BATCH, epochs=1, workers=1
    )
    rows, scalars = _model(job, tmp_path, "versions")
    total = BATCH * sum(RATES_BY_VERSION)
    assert set(scalars.values()) == {-total}
    assert sum(rows.values()) == -total
    moved, times = np.unique(list(rows.values()), return_counts=True)
    assert dict(zip(moved.tolist(), times.tolist(), strict=True)) == {-1.0: 80, -0.5: 80, 0.0: 80, -0.125: 160}
    logs = "\n".join(path.read_text() for path in job.paths.logs.glob("*worker*.log"))
    assert "Learning rate: LearningRateScheduler(rate_of)" in logs


@pytest.mark.long
def test_every_record_is_trained_at_the_rate_of_each_epoch(tmp_path: Path) -> None:
    job = start_witness(tmp_path, "epochs", "--callbacks=by_epoch", model="scheduled", records=200, epochs=3)
    rows, scalars = _model(job, tmp_path, "epochs")
    assert len(rows) == 200 and set(rows.values()) == {-1.75}
    assert set(scalars.values()) == {-1.75 * 200}


def test_a_schedule_that_raises_ends_the_job_with_its_name_and_lines(tmp_path: Path) -> None:
    job = start_witness(tmp_path, "broken", "--callbacks=breaking", model="scheduled", records=400, epochs=1, servers=1)
    code, result = job.finish()
    assert code == 1
    reason = str(result["reason"])
    assert "ValueError while computing the learning rate of version 1" in reason
    assert "with LearningRateScheduler(broken)" in reason
    assert "scheduled.py" in reason and "no rate for you" in reason and not OURS.search(reason)
