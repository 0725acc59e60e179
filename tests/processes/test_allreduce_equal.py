"""One description of a job, any number of workers: model, optimizer and metrics come out the same, byte for byte."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

from elasticdl.wire import control_pb2 as pb
from tests.processes import allreduce
from tests.processes.allreduce import KILL, TERM, Description
from tests.processes.harness import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.long]

RECORDS = 205  # epochs end in the middle of a step, which itself does not divide by the virtual workers
STORM_SECONDS = 200.0  # below the limit of a test
MODELS = ("digits_torch", "digits_keras", "letters_torch")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return allreduce.write_data(tmp_path_factory.mktemp("ids"), RECORDS)


def described(model: str, epochs: int = 3) -> Description:
    return Description(model, RECORDS, epochs, minibatch=9, evaluation_steps=7)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("model", MODELS)
def test_it_does_not_matter_how_many_workers_train(model: str, workers: int, tmp_path: Path, data: Path) -> None:
    description = described(model)
    expected = allreduce.alone(description, data)
    job = allreduce.start(tmp_path, "live", description, data, "--max_workers=4", part_seconds=0.5)
    if workers != description.workers:
        job.wait_until(lambda s: True)  # there is a master to tell
        allreduce.scale(job, workers)
    full = job.wait_until(lambda s: allreduce.together(s, workers) and s.version > 0)
    assert full.version < description.steps / 2, "most of it is trained by so many"
    allreduce.check(job, description, expected)


@pytest.mark.parametrize(("seed", "model"), list(enumerate(MODELS)))
def test_ten_random_kills_joins_and_leaves_change_nothing(seed: int, model: str, tmp_path: Path, data: Path) -> None:
    description = described(model, epochs=6)  # for the time that the storm takes, at the pace until it is over
    expected = allreduce.alone(description, data)
    draw = random.Random(seed)
    job = allreduce.start(
        tmp_path, "storm", description, data, "--max_workers=5", part_seconds=0.5, checkpoint_seconds=1
    )
    status = job.wait_until(lambda s: allreduce.together(s, 2) and s.version >= 3)
    happened: list[str] = []
    until = time.monotonic() + STORM_SECONDS
    while len(happened) < 10 or set(happened) != {"kill", "leave", "join"}:
        assert time.monotonic() < until, f"only {happened} within {STORM_SECONDS:.0f} s\n{job.story()}"
        status = strike(job, status, draw, happened)
        pause = draw.choice([0, 0, 2])  # some strike in the midst of what follows from the one before
        status = job.wait_until(lambda s, v=status.version + pause: s.version >= v and len(s.world) > 0)
    found = allreduce.check(job, description, expected)
    assert int(found["generation"]) > 5


def strike(job: RunningJob, status: pb.Status, draw: random.Random, happened: list[str]) -> pb.Status:
    """Kill some, have one leave, or ask for another number of workers; the first status in which that took effect, a
    step later. What happened is added to what did before."""
    members, event = sorted(status.world), draw.choice(["kill", "kill", "two", "leave", "scale"])
    if event == "scale" or len(members) == 1:  # never all at once: that takes long
        size = draw.choice([n for n in range(1, 6) if n != len(members)])
        allreduce.scale(job, size)
        if size > len(members):
            found = job.wait_until(lambda s: bool(training(s) - set(members)) and s.version > status.version)
            happened.append("join")
        else:
            found = job.wait_until(lambda s: 0 < len(s.world) <= size and s.version > status.version)
            happened.append("leave")
        return found
    victims = draw.sample(members, min(len(members) - 1, 2 if event == "two" else 1))
    hit = [name for name in victims if job.kill(name, TERM if event == "leave" else KILL)]
    found = job.wait_until(lambda s: len(s.world) > 0 and not set(hit) & set(s.world) and s.version > status.version)
    happened += ["leave" if event == "leave" else "kill"] * len(hit)
    return found


def training(status: pb.Status) -> set[str]:
    """The present members of the world, without those that are about to enter."""
    return {r.name for r in status.replicas if re.fullmatch(r"rank \d+ of \d+", r.state)}
