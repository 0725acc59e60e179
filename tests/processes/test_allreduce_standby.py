"""Workers kept warm: they take the place of a lost one at once, and others are started to stand by."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.wire import control_pb2 as pb
from tests.processes import allreduce, harness
from tests.processes.allreduce import KILL, TERM, Description
from tests.processes.harness import RunningJob

pytestmark = pytest.mark.processes

PLAIN = Description(epochs=12, evaluation_steps=150)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return allreduce.write_data(tmp_path_factory.mktemp("ids"))


def standbys(status: pb.Status) -> list[str]:
    return [r.name for r in status.replicas if r.state == "standby"]


def standing_by(job: RunningJob, but: str = "", version: int = 0) -> tuple[pb.Status, str]:
    """The first status with two that train, further than this, and one that stands by."""
    status = job.wait_until(
        lambda s: len(s.world) == 2 and s.version > version and bool(set(standbys(s)) - {but, *s.world})
    )
    (found,) = set(standbys(status)) - {but}
    return status, found


def test_a_standby_takes_a_lost_workers_place_at_once_and_another_is_started(tmp_path: Path, data: Path) -> None:
    job = allreduce.start(tmp_path, "warm", PLAIN, data, "--num_standby=1", part_seconds=0.03)
    first, standby = standing_by(job, version=3)
    before = allreduce.worker_pids(job)
    shown = subprocess.run(
        [sys.executable, "-m", "elasticdl", "status", "warm", f"--state_dir={tmp_path / 'state'}"],
        cwd=harness.ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    short = standby.removeprefix("elasticdl-warm-")
    assert re.search(rf"^{short} +standby ", shown, re.M), shown

    victim, survivor = first.world  # rank 0 is like any other
    assert job.kill(victim, KILL)
    full = job.wait_until(lambda s: victim not in s.world and s.version > first.version)
    assert set(full.world) == {survivor, standby} and full.generation == first.generation + 1
    after = allreduce.worker_pids(job)
    assert {n: after[n] for n in full.world} == {n: before[n] for n in full.world}, "a process was started again"

    second, other = standing_by(job, but=standby, version=full.version)
    assert job.kill(other, KILL), "nobody trains with it"
    third, next_one = standing_by(job, but=other, version=second.version)
    assert third.generation == second.generation, "the loss of a standby disturbs no world"
    assert job.kill(survivor, TERM)
    left = job.wait_until(lambda s: survivor not in s.world)
    assert set(left.world) == {standby, next_one} and left.generation == third.generation + 1

    allreduce.hurry(job)
    status = allreduce.check(job, PLAIN, allreduce.train_alone(PLAIN, data))
    told = allreduce.story_of(job, "elasticdl-warm-master")
    assert re.search(rf"generation {full.generation}: without {victim}, with {standby} .* in all$", told, re.M), told
    assert "1 worker trains" not in told, "the job was never below its strength"
    assert int(status.get("repeated_batches", 0)) == 0
