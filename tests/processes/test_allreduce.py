"""All-reduce jobs whose workers are killed, told to go, added and taken away: the same bytes come out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import allreduce
from tests.processes.allreduce import KILL, TERM, Description

pytestmark = pytest.mark.processes

PLAIN = Description()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return allreduce.write_data(tmp_path_factory.mktemp("ids"))


@pytest.fixture(scope="module")
def alone(data: Path):
    return allreduce.train_alone(PLAIN, data)


def test_a_kill_a_leave_and_more_workers_change_nothing(tmp_path: Path, data: Path, alone) -> None:
    job = allreduce.start(tmp_path, "churn", PLAIN, data, "--max_workers=4", part_seconds=0.03)
    first = job.wait_until(lambda s: s.version >= 5)
    survivor, victim = first.world[0], first.world[1]
    before = allreduce.worker_pids(job)
    assert job.kill(victim, KILL)
    job.wait_until(lambda s: s.generation > first.generation and len(s.world) == 1 and s.version > first.version)
    back = job.wait_until(lambda s: len(s.world) == 2 and s.version > first.version)
    assert survivor in back.world
    assert allreduce.worker_pids(job)[survivor] == before[survivor], "the survivor was started again"
    assert job.kill(survivor, TERM)
    job.wait_until(lambda s: survivor not in s.world)
    status = allreduce.check(job, PLAIN, alone)
    assert "Broken" not in allreduce.story_of(job, survivor)
    assert status["rollbacks" if "rollbacks" in status else "job"] in ("churn", 0)
