"""One description of a job, any number of workers: model, optimizer and metrics come out the same, byte for byte."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import pytest

from tests.processes import allreduce
from tests.processes.allreduce import KILL, TERM, Description

pytestmark = [pytest.mark.processes, pytest.mark.long]

RECORDS = 205  # epochs end in the middle of a step, which itself does not divide by the virtual workers
MODELS = ("digits_torch", "digits_keras", "letters_torch")
alone = functools.cache(allreduce.train_alone)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return allreduce.write_data(tmp_path_factory.mktemp("ids"), RECORDS)


def described(model: str) -> Description:
    return Description(model, RECORDS, epochs=3, minibatch=9, evaluation_steps=7)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("model", MODELS)
def test_it_does_not_matter_how_many_workers_train(model: str, workers: int, tmp_path: Path, data: Path) -> None:
    description = described(model)
    job = allreduce.start(tmp_path, "live", description, data, "--max_workers=4", part_seconds=0.5)
    if workers != description.workers:
        job.wait_until(lambda s: True)  # there is a master to tell
        allreduce.scale(job, workers)
    full = job.wait_until(lambda s: allreduce.together(s, workers) and s.version > 0)
    assert full.version < description.steps / 2, "most of it is trained by so many"
    allreduce.check(job, description, alone(description, data))


@pytest.mark.parametrize(("seed", "model"), list(enumerate(MODELS)))
def test_ten_random_kills_joins_and_leaves_change_nothing(seed: int, model: str, tmp_path: Path, data: Path) -> None:
    description = described(model)
    draw = random.Random(seed)
    job = allreduce.start(
        tmp_path, "storm", description, data, "--max_workers=5", part_seconds=0.5, checkpoint_seconds=1
    )
    status = job.wait_until(lambda s: s.version >= 3)
    for _ in range(10):
        event = draw.choice(["kill", "kill", "term", "scale", "two"])
        members = sorted(status.world)
        if event == "scale":
            allreduce.scale(job, draw.randint(1, 5))
        count = 2 if event == "two" else int(event != "scale")
        for victim in draw.sample(members, min(len(members) - 1, count)):  # not everybody: that takes long
            job.kill(victim, TERM if event == "term" else KILL)
        pause = draw.choice([1, 1, 3])
        status = job.wait_until(lambda s, v=status.version + pause: s.version >= v and len(s.world) > 0)
    found = allreduce.check(job, description, alone(description, data))
    assert int(found["generation"]) > 5
