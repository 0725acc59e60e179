"""Deaths at moments when something is half done: a checkpoint, or the world that follows another death."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from elasticdl.api import state_files
from elasticdl.errors import DataError
from elasticdl.files import MANIFEST
from tests.processes import allreduce
from tests.processes.allreduce import KILL, Description
from tests.processes.harness import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.long]

TWO = Description(epochs=8, evaluation_steps=50)
THREE = Description(epochs=8, workers=3, minibatch=11, evaluation_steps=50)
MASTER = "elasticdl-deaths-master"


def start(
    tmp: Path, description: Description, data: Path, faults: str, checkpoint_seconds: float = 0.0
) -> tuple[RunningJob, Path]:
    """The job and the file that says which faults came about."""
    hits = tmp / "faults"
    hits.touch()
    job = allreduce.start(
        tmp, "deaths", description, data, part_seconds=0.06, checkpoint_seconds=checkpoint_seconds,
        ELASTICDL_FAULTS=faults, ELASTICDL_FAULT_LOG=str(hits),
    )  # fmt: skip
    return job, hits


def visible(directory: Path) -> list[int]:
    """The steps of the checkpoints that a job may continue from; each of them is complete."""
    found: list[int] = []
    for _ in range(5):  # all that were listed may be gone before they are read, where there are newer ones
        for path in directory.glob("version-*"):
            step = path.name.removeprefix("version-")
            if step.isdigit():
                try:
                    assert (path / MANIFEST).exists(), f"{path} has no manifest"
                    state_files.read(path, int(step))
                    found.append(int(step))
                except (AssertionError, DataError, OSError):
                    if path.exists():
                        raise
        if found:
            break
    return found


@pytest.mark.parametrize(
    "fault", ["worker.writing@*:30", "worker.state_written@*:2", f"master.before_publishing@{MASTER}:2"]
)
def test_a_death_during_a_checkpoint_leaves_the_one_before_it(fault: str, tmp_path: Path, data: Path) -> None:
    """All workers are killed at once afterwards, so the job can only continue from that one."""
    job, hits = start(tmp_path, TWO, data, fault, checkpoint_seconds=1.0)
    checkpoints = tmp_path / "deaths-checkpoints"
    seen = job.wait_until(lambda s: hits.read_text().split() == [fault])
    there = visible(checkpoints)  # the first one was complete
    killed = [name for name in allreduce.worker_pids(job) if job.kill(name, KILL)]
    job.wait_until(lambda s: len(s.world) > 0 and not set(s.world) & set(killed) and s.version > max(there))
    begun = re.findall(r"Generation (\d+): .* trains? from step (\d+)", allreduce.story_of(job, MASTER))
    since = [int(step) for generation, step in begun if int(generation) > seen.generation]
    assert since and min(since) >= max(there), "from a checkpoint, and not from the beginning"
    visible(checkpoints)
    status = allreduce.check(job, TWO, allreduce.alone(TWO, data))
    assert int(status.get("repeated_batches", 0)) < TWO.steps
    visible(checkpoints)
    assert not list(checkpoints.glob("*.partial")), "what was not finished is gone"


@pytest.mark.parametrize(
    ("fault", "rank"),
    [
        ("worker.confirming@*:2", 0),  # of the survivors, the first to leave the world that broke
        ("worker.building@*:2", 0),
        ("worker.copying@*:3", 2),  # the sender of the state to the new worker: the first in rank
        ("worker.copying@elasticdl-deaths-worker-3:1", 0),  # its receiver
        ("worker.in_exchange@elasticdl-deaths-worker-3:1", 0),
    ],
)
def test_a_second_death_while_the_world_is_rebuilt_changes_nothing(
    fault: str, rank: int, tmp_path: Path, data: Path
) -> None:
    job, hits = start(tmp_path, THREE, data, fault)
    first = job.wait_until(lambda s: allreduce.together(s, 3) and s.version >= 3)
    job.kill(first.world[rank], KILL)  # unless the fault has hit it
    job.wait_until(lambda s: hits.read_text().split() == [fault])
    job.wait_until(lambda s: s.version > first.version + 3)
    status = allreduce.check(job, THREE, allreduce.alone(THREE, data))
    # On a busy machine workers come one by one, and the fault may hit the first while no other worker has the state.
    begun = re.findall(r"Generation \d+: (\d+) workers? trains? from step (\d+)", allreduce.story_of(job, MASTER))
    lone = [members == "1" for (members, _), (_, step) in pairwise(begun) if step == "0"]
    assert all(lone), "another worker had the state"
    assert lone or int(status.get("repeated_batches", 0)) == 0, "a worker with the state was left all the time"
    assert int(status["losses"]) >= 2


def test_rank_0_is_killed_twice_in_a_row_and_once_more_before_a_new_worker_came(tmp_path: Path, data: Path) -> None:
    """Down to one worker, and back."""
    job, _ = start(tmp_path, THREE, data, "")
    status = job.wait_until(lambda s: allreduce.together(s, 3) and s.version >= 3)
    last = status.world[2]
    pid = allreduce.worker_pids(job)[last]
    for left in (2, 1):
        victim, before = status.world[0], status
        assert job.kill(victim, KILL)
        status = job.wait_until(lambda s, v=victim, b=before: v not in s.world and s.version > b.version)
        assert len(status.world) >= left
    assert last in status.world
    full = job.wait_until(lambda s: allreduce.together(s, 3))  # each of them holds the state
    assert allreduce.worker_pids(job)[last] == pid, "a survivor was started again"
    assert job.kill(full.world[0], KILL)
    job.wait_until(lambda s: s.generation > full.generation and s.version > full.version)
    found = allreduce.check(job, THREE, allreduce.alone(THREE, data))
    assert int(found.get("repeated_batches", 0)) == 0
