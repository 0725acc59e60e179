"""All-reduce jobs whose workers are killed, told to go, added and taken away: the same bytes come out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.processes import allreduce, harness
from tests.processes.allreduce import KILL, TERM, Description

pytestmark = pytest.mark.processes

PLAIN = Description()


def test_a_kill_a_leave_and_more_workers_change_nothing(tmp_path: Path, data: Path) -> None:
    expected = allreduce.alone(PLAIN, data)
    # The one that is left needs minutes for the rest, another one less than that to come.
    job = allreduce.start(tmp_path, "churn", PLAIN, data, "--max_workers=4", part_seconds=0.2)
    first = job.wait_until(lambda s: allreduce.together(s, 2) and s.version >= 5)
    survivor, victim = first.world[0], first.world[1]
    before = allreduce.worker_pids(job)
    assert job.kill(victim, KILL)
    job.wait_until(lambda s: s.generation > first.generation and len(s.world) == 1 and s.version > first.version)
    back = job.wait_until(lambda s: allreduce.together(s, 2) and s.version > first.version)
    assert survivor in back.world
    assert allreduce.worker_pids(job)[survivor] == before[survivor], "the survivor was started again"
    assert job.kill(survivor, TERM)
    job.wait_until(lambda s: survivor not in s.world)
    status = allreduce.check(job, PLAIN, expected)
    (newcomer,) = set(back.world) - {survivor}
    assert allreduce.BROKE not in allreduce.story_of(job, newcomer), "a leave at the end of a step breaks nothing"
    assert allreduce.story_of(job, survivor).count(allreduce.BROKE) <= 1, "only the kill breaks a world"
    assert int(status.get("repeated_batches", 0)) == 0


@pytest.mark.long
def test_all_workers_are_killed_and_the_master_too(tmp_path: Path, data: Path) -> None:
    """The job goes on from the newest checkpoint, and repeats only what came after it."""
    expected = allreduce.alone(PLAIN, data)
    job = allreduce.start(tmp_path, "all", PLAIN, data, part_seconds=0.03, checkpoint_seconds=2)
    # Some steps beyond the newest checkpoint, so that there is something to repeat.
    saved = job.wait_until(lambda s: s.checkpoint and s.version >= int(s.checkpoint.rsplit("-", 1)[1]) + 2)
    for name in saved.world:
        assert job.kill(name, KILL)
    assert job.kill("elasticdl-all-master", KILL)
    status = allreduce.check(job, PLAIN, expected)
    assert int(status["master_starts"]) == 2
    assert 0 < int(status["repeated_batches"]) < PLAIN.steps, allreduce.show(status)


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    ["worker.building", "worker.copying", "worker.in_exchange", "worker.before_commit", "worker.after_commit"],
)
def test_a_death_at_the_worst_moment_changes_nothing(point: str, tmp_path: Path, data: Path) -> None:
    expected = allreduce.alone(PLAIN, data)
    count = {"worker.building": 1, "worker.copying": 1}.get(point, 20)
    fault, hits = f"{point}@elasticdl-fault-worker-1:{count}", tmp_path / "faults"
    hits.touch()
    job = allreduce.start(
        tmp_path, "fault", PLAIN, data, part_seconds=0.06, ELASTICDL_FAULTS=fault, ELASTICDL_FAULT_LOG=str(hits)
    )
    job.wait_until(lambda s: hits.read_text().split() == [fault])  # slow until then: the worker may come late
    allreduce.check(job, PLAIN, expected)
    assert hits.read_text().split() == [fault]


@pytest.mark.long
def test_a_loop_of_ones_own_is_trained_by_a_job_whose_workers_die(tmp_path: Path) -> None:
    """The zoo's example, as the program of the workers: what comes out is what it makes alone."""
    knobs = ("--minibatch_size=32", "--num_workers=2", "--virtual_workers=4", "--num_epochs=3")
    program = f"{sys.executable} model_zoo/own_loop/rings.py"
    hashes = []
    for name, kills in (("rings-alone", 0), ("rings-killed", 1)):
        job = harness.start(
            tmp_path, name, f"--job_command={program}", "--distribution_strategy=AllreduceStrategy", *knobs,
            "--training_records=8000", "--validation_records=1000", "--evaluation_steps=100", "--audit=true",
            f"--output={tmp_path / name}",
            env={"PYTHONPATH": str(harness.ROOT)},
        )  # fmt: skip
        if kills:
            first = job.wait_until(lambda s: s.version >= 20)
            assert job.kill(first.world[0], KILL)
        code, result = job.finish()
        assert code == 0, job.story()
        status = result["status"]
        assert isinstance(status, dict) and status["audit"] == "8000 records, each trained exactly 3 times"
        assert float(status["evaluations"][-1]["metrics"]["accuracy"]) > 0.95
        hashes.append((tmp_path / name / "model.safetensors").read_bytes())
    assert hashes[0] == hashes[1]
