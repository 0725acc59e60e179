"""How many workers an all-reduce job may have: never fewer than its least, never more than its most, else as asked."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from elasticdl.wire import control_pb2 as pb
from tests.processes import allreduce
from tests.processes.allreduce import KILL, Description
from tests.processes.cuts import commits

pytestmark = pytest.mark.processes

PLAIN = Description()


def test_below_the_minimum_no_worker_trains_until_another_worker_comes(tmp_path: Path, data: Path) -> None:
    expected = allreduce.alone(PLAIN, data)
    job = allreduce.start(tmp_path, "least", PLAIN, data, "--min_workers=2", "--log_loss_steps=1", part_seconds=0.1)
    first = job.wait_until(lambda s: allreduce.together(s, 2) and s.version >= 3)
    victim, survivor = first.world
    assert job.kill(victim, KILL)
    killed_at = time.time()
    below = job.wait_until(lambda s: victim not in s.world)
    versions: list[int] = []

    def back_again(s: pb.Status) -> bool:
        versions.append(s.version)
        return allreduce.together(s, 2)

    back = job.wait_until(back_again)
    assert len(versions) > 1 and versions[-2] <= below.version + 1, "no worker trains; one step may have been under way"
    job.wait_until(lambda s: s.version >= back.version + 2)
    status = allreduce.check(job, PLAIN, expected)
    after = {c.step for c in commits(job) if c.at > killed_at and c.generation == first.generation}
    assert len(after) <= 1, "but for the step that was under way"
    told = allreduce.story_of(job, "elasticdl-least-master")
    assert set(re.findall(r"Generation \d+: (\d) workers? trains? from", told)) == {"2"}, told
    assert survivor in back.world and int(status.get("repeated_batches", 0)) == 0


@pytest.mark.long
def test_scale_waits_until_so_many_train_and_refuses_more_than_the_job_takes(tmp_path: Path, data: Path) -> None:
    expected = allreduce.alone(PLAIN, data)
    job = allreduce.start(tmp_path, "most", PLAIN, data, "--max_workers=3", part_seconds=0.1)
    first = job.wait_until(lambda s: allreduce.together(s, 2) and s.version >= 2)
    refused = allreduce.scaled(job, "--workers=4")
    assert refused.returncode == 2 and "the job takes at most 3 workers (--max_workers)" in refused.stderr, refused
    done = allreduce.scaled(job, "--workers=3")
    assert (done.returncode, done.stdout) == (0, "most: 3 workers train.\n"), f"{done}\n{job.story()}"
    more = job.wait_until(lambda s: True)
    assert allreduce.together(more, 3) and set(more.world) > set(first.world), "it did not wait"
    done = allreduce.scaled(job, "--workers=1")
    assert (done.returncode, done.stdout) == (0, "most: 1 worker trains.\n"), f"{done}\n{job.story()}"
    less = job.wait_until(lambda s: True)
    assert allreduce.together(less, 1) and less.version < PLAIN.steps, "it did not wait"
    status = allreduce.check(job, PLAIN, expected)
    assert int(status.get("repeated_batches", 0)) == 0
