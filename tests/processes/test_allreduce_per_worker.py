"""All-reduce jobs whose batch follows the number of workers, with workers killed, added and taken away.

The weights then depend on how many trained which step. So each job is played again by one process, step for step in the
sizes that its worlds had: every checkpoint must hold the same bytes.
"""

from __future__ import annotations

import functools
import operator
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticdl.api import state_files
from elasticdl.api.elastic import POSITION, WITNESS
from elasticdl.collective.tree import root, value
from elasticdl.core.steps import StepPlan, part_seed
from elasticdl.data.reader import open_reader
from elasticdl.frameworks.loading import load_replica
from elasticdl.frameworks.model_file import ModelFile, ModelRequest
from elasticdl.strategies.allreduce.training import ReplicaModel
from elasticdl.worker.batches import Source, load
from tests.processes import allreduce
from tests.processes.allreduce import KILL, RECORDS, TERM, Description, scale, together
from tests.processes.harness import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.long]

WORLD = re.compile(r"World (\d+): rank \d+ of (\d+), .* step (\d+)$", re.MULTILINE)
States = dict[int, dict[str, torch.Tensor]]


def described(model: str = "pebble", epochs: int = 4, **more: Any) -> Description:
    return Description(model, epochs=epochs, more={"batch_policy": "per_worker", **more})


def sizes(job: RunningJob) -> list[tuple[int, int]]:
    """From which step on how many workers trained, by their logs, without steps that were lost with all workers."""
    text = "".join(path.read_text() for path in job.paths.logs.glob("*-worker-*.log"))
    worlds = sorted({(int(g), int(size), int(step)) for g, size, step in WORLD.findall(text)})
    found: list[tuple[int, int]] = []
    for _, size, step in worlds:
        found = [segment for segment in found if segment[0] < step] + [(step, size)]
    return found


def replayed(
    description: Description, data: Path, worlds: list[tuple[int, int]], versions: set[int], rule: str | None = None
) -> tuple[States, int]:
    """What the steps make of the model if worlds of these sizes take them: the states of some, and how many there are.
    `rule`: another one for the learning rate."""
    torch.set_num_threads(1)
    spec = description.spec(data)
    if rule is not None:
        spec = spec.with_values(lr_scaling=rule)
    reader = open_reader(str(spec.training_data), {}, flag="")
    source, code = Source(reader, reader.describe(), spec, "training"), ModelFile(ModelRequest.of(spec))
    model, plan = ReplicaModel(load_replica(code, spec.seed)), StepPlan.of(spec, source.dataset.records)
    states: States = {}
    number = trained = 0
    while not plan.over(number, trained):
        size = next(size for first, size in reversed(worlds) if first <= number)
        step = plan.step(number, trained, size)
        found = {(v, 1): torch.zeros(model.size) for v in range(size)}
        for v in range(size):
            if (part := step.part(v)).records:
                batch = load(source, part.epoch, part.start, part.stop, (), code.feed)
                model.compute(batch.features, batch.labels, part_seed(spec.seed, number, v))
                found[v, 1] = model.contribute(step.weight(v))
        model.apply(value(root(size), size, found, operator.add) / size, number, step.epoch, step.rate_scale)
        number, trained = number + 1, trained + step.records
        if number in versions:
            states[number] = {name: tensor.clone() for name, tensor in model.state().items()}
            states[number][POSITION] = torch.tensor([trained])
    return states, number


# How many steps there will be is not known: checkpoints are written on the way.
start = functools.partial(allreduce.start, part_seconds=0.1, checkpoint_steps=20)


def check(job: RunningJob, description: Description, data: Path) -> tuple[Any, States]:
    """The job trained each record once in each epoch; its checkpoints hold what its worlds make of the model."""
    allreduce.hurry(job)
    code, result = job.finish()
    assert code == 0 and result["outcome"] == "succeeded", f"{result}\n{job.story()}"
    status: Any = result["status"]
    assert status["audit"] == f"{RECORDS} records, each trained exactly {description.epochs} times", status["audit"]
    assert int(status["records_done"]) == int(status["records_total"]) == RECORDS * description.epochs
    folder = job.output.with_name(f"{job.paths.job_name}-checkpoints")
    saved = {int(path.name.removeprefix("version-")): path for path in folder.glob("version-*")}
    assert saved, "there is no checkpoint to compare with"
    worlds = sizes(job)
    states, steps = replayed(description, data, worlds, set(saved))
    assert steps == int(status["version"]), f"worlds of {worlds} take {steps} steps"
    for version, path in saved.items():
        state, _ = state_files.read(path, version)
        state.pop(WITNESS)
        assert state.keys() == states[version].keys()
        wrong = [name for name, tensor in state.items() if not torch.equal(tensor, states[version][name])]
        assert not wrong, f"at step {version}, not what worlds of {worlds} give: {wrong}"
    return status, states


def test_a_kill_and_more_workers_change_the_batch_and_every_record_is_trained_once(tmp_path: Path, data: Path) -> None:
    description = described(epochs=8)
    job = start(tmp_path, "follow", description, data)
    two = job.wait_until(lambda s: together(s, 2) and s.version >= 3)
    first = job.wait_until(lambda s: together(s, 2) and s.version >= two.version + 3)
    done = two.records_done
    for _ in range(two.version, first.version):
        done += min(32, RECORDS - done % RECORDS)  # the last step of an epoch takes what is left
    assert first.records_done == done, "two workers of 16 records each"
    assert job.kill(first.world[1], KILL)
    scale(job, 3)
    three = job.wait_until(lambda s: together(s, 3))
    job.wait_until(lambda s: s.version >= three.version + 5)
    _, ours = check(job, description, data)
    worlds, last = sizes(job), max(ours)
    assert {size for _, size in worlds} >= {1, 2, 3}
    other, _ = replayed(description, data, worlds, {last}, rule="none")
    moved = [name for name in ours[last] if not torch.equal(ours[last][name], other[last][name])]
    assert "model/layers.0.weight" in moved, "the learning rate did not follow"


@pytest.mark.parametrize("rule", ["linear", "sqrt"])
def test_a_keras_model_is_trained_by_as_many_as_there_are(rule: str, tmp_path: Path, data: Path) -> None:
    description = described("pebble_keras", epochs=8, lr_scaling=rule)
    job = start(tmp_path, "keras", description, data, part_seconds=0.3)
    first = job.wait_until(lambda s: together(s, 2) and s.version >= 5)
    scale(job, 4)
    four = job.wait_until(lambda s: together(s, 4))
    assert job.kill(first.world[0], TERM)
    job.wait_until(lambda s: s.version > four.version + 3 and len(s.world) < 4)
    scale(job, 2)
    fewer = job.wait_until(lambda s: together(s, 2))
    job.wait_until(lambda s: s.version > fewer.version + 3)
    check(job, description, data)
    assert {size for _, size in sizes(job)} >= {2, 3, 4}


def test_all_workers_are_killed_and_the_master_too(tmp_path: Path, data: Path) -> None:
    """The checkpoint says where in the data it stands: the job goes on there, with other steps than before."""
    description = described(epochs=8)
    job = start(tmp_path, "all", description, data, part_seconds=0.2, checkpoint_seconds=2)
    saved = job.wait_until(lambda s: s.checkpoint and s.version >= int(s.checkpoint.rsplit("-", 1)[1]) + 2)
    for name in saved.world:
        assert job.kill(name, KILL)
    assert job.kill("elasticdl-all-master", KILL)
    back = job.wait_until(lambda s: s.master_starts == 2 and s.world and s.version >= saved.version)
    scale(job, 3)
    job.wait_until(lambda s: together(s, 3) and s.version > back.version)
    status, _ = check(job, description, data)
    assert int(status["repeated_batches"]) > 0, allreduce.show(status)


@pytest.mark.parametrize("seed", [1, 2])
def test_in_a_storm_of_kills_joins_and_leaves_the_worlds_alone_decide_the_weights(
    seed: int, tmp_path: Path, data: Path
) -> None:
    draw, description = random.Random(seed), described(epochs=10)
    job = start(tmp_path, "storm", description, data, part_seconds=0.15, checkpoint_seconds=3)
    status = job.wait_until(lambda s: s.version >= 3)
    for _ in range(8):
        event = draw.choice(["kill", "kill", "term", "scale", "master"])
        if event == "scale":
            scale(job, draw.randint(1, 4))
        victim = "elasticdl-storm-master" if event == "master" else draw.choice(sorted(status.world))
        if event != "scale":
            job.kill(victim, TERM if event == "term" else KILL)
        masters, version = status.master_starts + (event == "master"), status.version + draw.choice([1, 5, 15])
        status = job.wait_until(
            lambda s, m=masters, v=version: s.master_starts >= m and s.version >= v and len(s.world) > 0
        )
    status, _ = check(job, description, data)
    assert int(status["generation"]) > 5


def test_sums_in_any_order_train_every_record_once_too(tmp_path: Path, data: Path) -> None:
    description = described(epochs=8, deterministic=False)
    job = start(tmp_path, "any", description, data)
    first = job.wait_until(lambda s: together(s, 2) and s.version >= 5)
    assert job.kill(first.world[1], KILL)
    job.wait_until(lambda s: len(s.world) == 1 and s.version > first.version)
    job.wait_until(lambda s: together(s, 2))
    allreduce.hurry(job)
    code, result = job.finish()
    status: Any = result["status"]
    assert code == 0 and status["audit"] == f"{RECORDS} records, each trained exactly {description.epochs} times"


def test_a_checkpoint_is_continued_with_another_number_of_workers(tmp_path: Path, data: Path) -> None:
    description = described(epochs=2, min_workers=2)
    first = start(tmp_path, "two", description, data, "--max_step=30", part_seconds=0, checkpoint_steps=30)
    code, result = first.finish()
    assert code == 0, first.story()
    status: Any = result["status"]
    assert (int(status["version"]), int(status["records_done"])) == (30, 30 * 32)
    saved = tmp_path / "two-checkpoints" / "version-30"

    more = Description(epochs=2, workers=3, more={"batch_policy": "per_worker", "min_workers": 3})
    again = start(tmp_path, "three", more, data, f"--checkpoint_dir_for_init={saved}", part_seconds=0)
    code, result = again.finish()
    assert code == 0, again.story()
    status = result["status"]
    assert status["audit"] == f"{RECORDS} records, each trained exactly 2 times"
    left = [RECORDS - 30 * 32, RECORDS]
    assert int(status["version"]) == 30 + sum(-(-records // 48) for records in left), "steps of three workers"

    fixed = Description(epochs=2)
    refused = start(tmp_path, "fixed", fixed, data, f"--checkpoint_dir_for_init={saved}")
    assert refused.process.wait(60) == 2
    assert "--batch_policy=fixed: the checkpoint was made with per_worker" in refused.output.read_text()
