"""One of four workers is killed: every other one notices at once, those that have no link to it too, and lives on."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.processes import allreduce
from tests.processes.allreduce import KILL, Description
from tests.processes.harness import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.long]

FOUR = Description(epochs=8, workers=4, minibatch=8, evaluation_steps=1000)
NOTICED = re.compile(
    r"^\[(\S+ \S+)\] \[\w+\] \[\S+\] (?:The world broke|Abandoned step \d+|World (\d+): rank)", re.MULTILINE
)


def noticed_at(job: RunningJob, worker: str, generation: int) -> float | None:
    """When the worker abandoned its step in the world of this generation, in seconds since the epoch; by its log.

    A worker that was called off between two exchanges only logs that it is in the next world.
    """
    inside = False
    for when, entered in NOTICED.findall(allreduce.story_of(job, worker)):
        if inside:
            return datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").timestamp()
        inside = entered == str(generation)
    return None


@pytest.mark.parametrize("rank", [0, 3])
def test_three_survivors_notice_a_death_within_a_second_and_keep_their_processes(
    rank: int, tmp_path: Path, data: Path
) -> None:
    job = allreduce.start(tmp_path, "notice", FOUR, data, part_seconds=0.02)
    full = job.wait_until(lambda s: allreduce.together(s, 4) and s.version >= 5)
    before, victim = allreduce.worker_pids(job), full.world[rank]
    survivors = [name for name in full.world if name != victim]
    killed_at = time.time()
    assert job.kill(victim, KILL)
    job.wait_until(lambda s: s.generation > full.generation and victim not in s.world and s.version > full.version + 3)
    after = allreduce.worker_pids(job)
    took = {name: (noticed_at(job, name, full.generation) or float("inf")) - killed_at for name in survivors}
    assert all(0 <= seconds < 1.0 for seconds in took.values()), f"{took}\n{job.story()}"
    assert {name: after[name] for name in survivors} == {name: before[name] for name in survivors}
    allreduce.hurry(job)
    code, result = job.finish()
    assert code == 0 and result["outcome"] == "succeeded", job.story()
