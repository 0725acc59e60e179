"""Records that cannot be read in an all-reduce job: named, left out by any worker, and the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from elasticdl.api import state_files
from elasticdl.api.job import numbering
from elasticdl.core.steps import StepPlan
from elasticdl.data.reader import open_reader
from tests.processes import allreduce
from tests.processes.allreduce import KILL, Description
from tests.processes.harness import OURS

pytestmark = [pytest.mark.processes, pytest.mark.long]

RECORDS = 407


def touchy(most: int, **more: Any) -> Description:
    return Description("pebble_touchy", RECORDS, epochs=3, evaluation_steps=0, more={"max_bad_records": most, **more})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return allreduce.write_data(tmp_path / "ids", RECORDS)


@pytest.mark.parametrize("deterministic", [True, False])
def test_records_that_cannot_be_fed_are_left_out_alike_by_any_worker(
    deterministic: bool, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not deterministic:  # parts may be computed together then, of which batch norm and dropout would tell
        monkeypatch.setenv("PEBBLE_PLAIN", "1")
    description = touchy(6)
    spec = description.spec(data)
    part = StepPlan.of(spec, RECORDS).part(7, 3)
    numbers = numbering(spec, open_reader(str(data / "train"), {}, flag="").describe())
    whole_part = set(numbers(part.epoch, part.start, part.stop).tolist())  # nothing of it is left
    bad = whole_part | {111, 250}  # not the first ones, which are tried before the job starts
    assert len(whole_part) == 4 and len(bad) == 6
    monkeypatch.setenv("TOUCHY_RECORDS", ",".join(map(str, sorted(bad))))
    alone, evaluations = allreduce.train_alone(description, data)

    job = allreduce.start(tmp_path, "touchy", touchy(6, deterministic=deterministic), data, part_seconds=0.04)
    status = job.wait_until(lambda s: allreduce.together(s, 2) and s.version >= 5)
    assert job.kill(status.world[0], KILL)
    job.wait_until(lambda s: s.version >= 15)
    allreduce.hurry(job)
    code, result = job.finish()
    assert code == 0, job.story()
    told = result["status"]
    assert isinstance(told, dict)
    names = {f"record {i if i < 203 else i - 203} of part-{int(i >= 203)}.recordio" for i in bad}
    assert set(told["bad_records"]) == names and len(told["bad_records"]) == 6, "each is told once"
    assert told["audit"] == f"{RECORDS - 6} records, each trained exactly 3 times, 6 set aside"
    steps = description.steps
    state, _ = state_files.read(tmp_path / "touchy-checkpoints" / f"version-{steps}", steps)
    metrics = {int(e["version"]): e["metrics"] for e in told["evaluations"]}
    assert state.keys() == alone.keys() and metrics.keys() == evaluations.keys()
    rtol, atol = (0.0, 0.0) if deterministic else (1e-3, 1e-4)
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, alone[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
    for version, found in metrics.items():
        assert found == (evaluations[version] if deterministic else pytest.approx(evaluations[version], abs=0.02))


def test_a_record_too_many_ends_the_job_with_its_name_and_the_users_own_traceback(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOUCHY_RECORDS", "250")
    code, result = allreduce.start(tmp_path, "touchy", touchy(0), data).finish()
    reason = str(result["reason"])
    assert code == 1
    assert reason.startswith("record 47 of part-1.recordio cannot be trained, and --max_bad_records=0 allows no more")
    assert "ValueError: cannot read record 250" in reason and not OURS.search(reason)
