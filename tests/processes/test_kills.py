"""Workers and masters of real jobs killed with real signals: every record is trained exactly once all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl import faults
from tests.processes.harness import check_witness, start_witness
from tests.processes.kills import kill_run

pytestmark = pytest.mark.processes

RECORDS, EPOCHS, SERVERS = 960, 2, 2  # whole rounds of two batches
ROUNDS = "workers of rounds"
# Each entry names a point, a replica that dies there, and at which pass. It fires once; later ones hit replacements.
POINTS = {
    "workers": (
        "worker.between_pushes@worker-0:7",
        "worker.before_completion@worker-1:2",
        "worker.after_ack@worker-2:5",
        "worker.before_manifest@*:1",
    ),
    ROUNDS: (
        "worker.before_confirm@worker-0:4",
        "worker.between_confirms@worker-1:9",
        "worker.between_confirms@worker-2:8",
    ),
    "master": (
        "master.after_journal@master:15",
        "master.between_cut_phases@master:1",
        "master.before_publishing@master:1",
    ),
    "servers": (
        "server.before_freeze@ps-0:1",
        "server.writing@ps-1:1",
        "server.part_written@ps-0:3",  # by then there is a checkpoint to go back to
        "server.restoring@ps-1:1",
    ),
}


def test_every_fault_point_there_is_has_its_test() -> None:
    assert {entry.partition("@")[0] for entries in POINTS.values() for entry in entries} == set(faults.POINTS)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0])  # `make test-kills` runs twenty
def test_random_workers_are_killed_and_every_record_is_trained_exactly_once(tmp_path: Path, seed: int) -> None:
    report = kill_run(tmp_path, seed, worker_kills=4, master_kills=0)
    assert report.workers_killed == 4


def test_the_master_is_killed_too_and_every_record_is_trained_exactly_once(tmp_path: Path) -> None:
    report = kill_run(tmp_path, 100, worker_kills=2, master_kills=2)
    assert (report.workers_killed, report.masters_killed) == (2, 2)
    assert report.master_starts == 3


@pytest.mark.parametrize("case", [w if w != ROUNDS else pytest.param(w, marks=pytest.mark.long) for w in POINTS])
def test_replicas_die_at_named_points_and_every_record_is_trained_exactly_once(tmp_path: Path, case: str) -> None:
    entries = [e if "@*" in e else e.replace("@", "@elasticdl-fault-") for e in POINTS[case]]
    log = tmp_path / "faults"
    averaged = 2 if case == ROUNDS else 1
    job = start_witness(
        tmp_path, "fault", f"--validation_data={tmp_path / f'ids-{RECORDS}'}", "--evaluation_steps=100",
        "--checkpoint_steps=40", f"--grads_to_wait={averaged}", records=RECORDS, epochs=EPOCHS, servers=SERVERS,
        env={"ELASTICDL_FAULTS": ",".join(entries), "ELASTICDL_FAULT_LOG": str(log)},
    )  # fmt: skip
    check_witness(job, tmp_path / "fault-model", RECORDS, EPOCHS, SERVERS, averaged)
    assert sorted(log.read_text().split()) == sorted(entries), "not every point was hit"
