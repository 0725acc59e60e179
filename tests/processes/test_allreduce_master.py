"""All-reduce jobs whose master is away: workers train on in their world, and changes to it wait."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import allreduce
from tests.processes.allreduce import CONT, KILL, STOP, Description
from tests.processes.cuts import Commit, check_one_world_at_a_time, commits
from tests.processes.harness import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.long]

PLAIN = Description(epochs=4, evaluation_steps=50)
AWAY_SECONDS = 40.0  # below --master_grace_seconds
STANDSTILL_SECONDS = 2.0  # many steps


def start(tmp: Path, name: str, data: Path) -> RunningJob:
    return allreduce.start(tmp, name, PLAIN, data, "--log_loss_steps=1", part_seconds=0.03)


def kill_master(job: RunningJob) -> float:
    """When it died; the launcher stands still, so that it does not bring it back yet."""
    master = job.replicas()[f"elasticdl-{job.paths.job_name}-master"]
    job.process.send_signal(STOP)
    master.send_signal(KILL)
    return time.time()


def wait_for(condition: Callable[[], bool], job: RunningJob) -> None:
    until = time.monotonic() + AWAY_SECONDS
    while not condition():
        assert time.monotonic() < until, job.story()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.process.wait(0.1)


def since(job: RunningJob, at: float) -> list[Commit]:
    return [c for c in commits(job) if c.at > at]


def test_while_the_master_is_away_steps_go_on(tmp_path: Path, data: Path) -> None:
    expected = allreduce.alone(PLAIN, data)
    job = start(tmp_path, "away", data)
    before = job.wait_until(lambda s: allreduce.together(s, 2) and s.version >= 3)
    pids = allreduce.worker_pids(job)
    died = kill_master(job)
    wait_for(lambda: min(Counter(c.worker for c in since(job, died)).values(), default=0) >= 10, job)
    found = since(job, died)
    assert {c.worker for c in found} == set(before.world)
    assert {c.generation for c in found} == {before.generation}, "ten steps each, of the same world"
    job.process.send_signal(CONT)
    after = job.wait_until(lambda s: s.master_starts == 2 and s.version > found[-1].step)
    assert after.generation == before.generation and allreduce.worker_pids(job) == pids
    status = allreduce.check(job, PLAIN, expected)
    assert int(status["generation"]) == int(before.generation), "no worker left, so no world changed"
    assert int(status.get("repeated_batches", 0)) == 0


def test_a_worker_that_dies_while_the_master_is_away_is_replaced_once_it_is_back(tmp_path: Path, data: Path) -> None:
    expected = allreduce.alone(PLAIN, data)
    job = start(tmp_path, "wait", data)
    before = job.wait_until(lambda s: allreduce.together(s, 2) and s.version >= 3)
    pids = allreduce.worker_pids(job)
    survivor, victim = before.world
    died = kill_master(job)
    wait_for(lambda: bool(since(job, died)), job)
    assert job.kill(victim, KILL)
    wait_for(lambda: allreduce.BROKE in allreduce.story_of(job, survivor), job)
    last = commits(job)[-1]
    with pytest.raises(subprocess.TimeoutExpired):
        job.process.wait(STANDSTILL_SECONDS)
    assert since(job, last.at) == [], "no process can tell which workers train on"
    back = time.time()
    job.process.send_signal(CONT)
    job.wait_until(lambda s: allreduce.together(s, 2) and s.version > last.step)
    assert allreduce.worker_pids(job)[survivor] == pids[survivor]
    status = allreduce.check(job, PLAIN, expected)
    first = since(job, last.at)[0]
    assert first.at > back and first.worker == survivor and first.generation > before.generation
    assert int(status.get("repeated_batches", 0)) == 0 and int(status["master_starts"]) == 2
    check_one_world_at_a_time(job)
