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

PLAIN = Description(epochs=4, evaluation_steps=50)


def standbys(status: pb.Status) -> list[str]:
    return [r.name for r in status.replicas if r.state == "standby"]


def standing_by(job: RunningJob, but: str = "", version: int = 0) -> tuple[pb.Status, str]:
    """The first status with two that train, further than this, and one that stands by."""
    status = job.wait_until(
        lambda s: allreduce.together(s, 2) and s.version > version and bool(set(standbys(s)) - {but, *s.world})
    )
    (found,) = set(standbys(status)) - {but}
    return status, found


def test_a_standby_takes_a_lost_workers_place_at_once_and_another_is_started(tmp_path: Path, data: Path) -> None:
    job = allreduce.start(tmp_path, "warm", PLAIN, data, "--num_standby=1", part_seconds=0.1)
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
    assert set(full.world) == {survivor, standby}
    after = allreduce.worker_pids(job)
    assert {n: after[n] for n in full.world} == {n: before[n] for n in full.world}, "a process was started again"

    job.wait_until(lambda s: len(s.replicas) == 4 and s.version > full.version)
    allreduce.hurry(job)
    status = allreduce.check(job, PLAIN, allreduce.train_alone(PLAIN, data))
    told = allreduce.story_of(job, "elasticdl-warm-master")
    assert re.search(rf"Generation \d+: without {victim}, with {standby} .* in total$", told, re.M), told
    begun = re.findall(r"Generation (\d+): (\d) workers? trains? from", told)
    assert {size for generation, size in begun if int(generation) > first.generation} == {"2"}, "never below strength"
    assert int(status.get("repeated_batches", 0)) == 0


@pytest.mark.long
def test_a_standby_that_dies_disturbs_no_worker_and_another_takes_the_place_of_a_worker_that_leaves(
    tmp_path: Path, data: Path
) -> None:
    job = allreduce.start(tmp_path, "warm", PLAIN, data, "--num_standby=1", part_seconds=0.2)
    first, standby = standing_by(job, version=3)
    assert job.kill(standby, KILL)
    second, other = standing_by(job, but=standby, version=first.version)
    assert second.generation == first.generation
    leaver, stays = second.world
    assert job.kill(leaver, TERM)
    left = job.wait_until(lambda s: leaver not in s.world)
    assert set(left.world) == {stays, other} and left.generation == second.generation + 1
    allreduce.hurry(job)
    allreduce.check(job, PLAIN, allreduce.train_alone(PLAIN, data))
    for name in (stays, other):
        assert allreduce.BROKE not in allreduce.story_of(job, name), "a leave at the end of a step breaks nothing"
