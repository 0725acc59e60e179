"""Workers and masters of real jobs killed with real signals: every record is trained exactly once all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl import faults
from tests.processes.harness import audit_witness, start_witness
from tests.processes.kills import kill_run

pytestmark = pytest.mark.processes

RECORDS, EPOCHS, SERVERS = 1000, 2, 2
POINTS = {
    "worker.between_pushes": "worker-0:7",
    "worker.after_ack": "worker-0:5",
    "worker.before_completion": "worker-1:2",
    "worker.before_manifest": "*:1",
    "master.after_journal": "master:40",
    "master.between_cut_phases": "master:1",
}


def test_every_fault_point_there_is_has_its_test() -> None:
    assert set(POINTS) == set(faults.POINTS)


@pytest.mark.parametrize("seed", range(3))
def test_random_workers_are_killed_and_every_record_is_trained_exactly_once(tmp_path: Path, seed: int) -> None:
    report = kill_run(tmp_path, seed, worker_kills=4, master_kills=0)
    assert report.workers_killed == 4


def test_the_master_is_killed_too_and_every_record_is_trained_exactly_once(tmp_path: Path) -> None:
    report = kill_run(tmp_path, 100, worker_kills=2, master_kills=2)
    assert (report.workers_killed, report.masters_killed) == (2, 2)
    assert report.master_starts == 3


@pytest.mark.parametrize("point", POINTS)
def test_a_replica_dies_at_a_named_point_and_every_record_is_trained_exactly_once(tmp_path: Path, point: str) -> None:
    who = POINTS[point] if POINTS[point].startswith("*") else f"elasticdl-fault-{POINTS[point]}"
    log = tmp_path / "faults"
    job = start_witness(
        tmp_path, "fault", f"--validation_data={tmp_path / f'ids-{RECORDS}'}", "--evaluation_steps=40",
        records=RECORDS, epochs=EPOCHS, servers=SERVERS,
        env={"ELASTICDL_FAULTS": f"{point}@{who}", "ELASTICDL_FAULT_LOG": str(log)},
    )  # fmt: skip
    code, result = job.finish()
    assert code == 0, job.story()
    assert result["outcome"] == "succeeded"
    assert log.read_text().split() == [f"{point}@{who}"], "the point was not hit"
    audit_witness(tmp_path / "fault-model", RECORDS, EPOCHS, SERVERS)
