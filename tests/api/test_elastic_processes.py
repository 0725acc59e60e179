"""Programs with their own loop as workers of one job: the weights are the same if workers join, leave or are killed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import torch

import elasticdl.api as elasticdl
from elasticdl.api import state_files
from elasticdl.job.spec import JobSpec
from tests.api import loop_program
from tests.collective.conductor import Conductor, Worker
from tests.collective.nursery import Nursery

pytestmark = pytest.mark.processes

KNOBS = {"minibatch_size": 12, "num_workers": 2, "virtual_workers": 4, "num_epochs": 3, "evaluation_steps": 10}
STEPS = 27  # three epochs of 202 records in steps of 24


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """What one process gets that trains everything by itself."""
    elastic, trained = loop_program.run(elasticdl.join(**KNOBS))
    assert elastic.committed_steps == STEPS and sorted(trained) == sorted(3 * [*range(loop_program.RECORDS)])
    return state_files.snapshot(elastic.state()).fetched()


@pytest.fixture(scope="module")
def nursery():
    it = Nursery()
    yield it
    it.close()


@pytest.fixture
def conductor(nursery: Nursery, tmp_path: Path):
    with Conductor(nursery, tmp_path / "job", JobSpec.model_validate({**KNOBS, "master_grace_seconds": 20})) as it:
        yield it


def spawn(conductor: Conductor, index: int, seconds: float = 0.0, gate: Path | None = None) -> Worker:
    env = {"LOOP_SECONDS": str(seconds), "LOOP_SEED": str(index)}
    if gate is not None:
        os.mkfifo(gate)
        env["LOOP_GATE"] = str(gate)
    return conductor.spawn(index, "tests.api.loop_program", env)


def check(conductor: Conductor, alone: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """Everything is trained, and what a worker holds is, byte for byte, what one process alone gets."""
    conductor.wait_for_step(STEPS)
    conductor.wait(lambda: conductor.training, "a last world")
    (exporter,) = conductor.members[:1]
    conductor.save(conductor.workers[exporter], 99, tmp_path / "state")
    state, step = state_files.read(tmp_path / "state", STEPS)
    assert step == STEPS and state.keys() == alone.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, alone[name]), f"{name} differs"
    evaluated = {e.version: e.metrics for w in conductor.workers.values() for e in w.kinds("evaluated")}
    assert sorted(evaluated) == [10, 20, 27]
    assert set(conductor.finish().values()) == {0}


@pytest.mark.parametrize("size", [2, 3])
def test_any_number_of_workers_gets_the_weights_of_one(
    size: int, conductor: Conductor, alone: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    conductor.wanted = size
    for index in range(size):
        spawn(conductor, index)
    check(conductor, alone, tmp_path)
    assert conductor.generation == 1


def test_a_worker_that_is_slower_than_any_grace_is_waited_for(nursery: Nursery, tmp_path: Path) -> None:
    spec = JobSpec.model_validate({**KNOBS, "max_step": 1, "master_grace_seconds": 1})
    with Conductor(nursery, tmp_path / "job", spec) as conductor:
        conductor.wanted = 2
        workers = [spawn(conductor, index, seconds) for index, seconds in enumerate((0, 1))]
        conductor.wait_for_step(1)
        conductor.wait(lambda: workers[0].kinds("evaluated"), "the evaluation")
        assert [w.kinds("broken") for w in workers] == [[], []], conductor.story()
        assert set(conductor.finish().values()) == {0} and conductor.generation == 1


def test_the_time_a_program_spends_between_steps_does_not_count_as_computing(nursery: Nursery, tmp_path: Path) -> None:
    with Conductor(nursery, tmp_path / "job", JobSpec.model_validate({**KNOBS, "max_step": 2})) as conductor:
        os.mkfifo(tmp_path / "after")
        worker = conductor.spawn(0, "tests.api.loop_program", {"LOOP_AFTER": str(tmp_path / "after")})
        conductor.wait(lambda: worker.pulse is not None and worker.pulse.step == 1, "a pulse after the first step")
        conductor.wait(lambda: worker.pulse.seconds > 0.4, "a pulse in the middle of what comes then")
        assert (worker.pulse.step, worker.pulse.phase) == (1, "program"), "which may take --hang_seconds"
        (tmp_path / "after").write_text("done")
        conductor.wait_for_step(2)


@pytest.mark.parametrize("where", ["waiting", "training"])
def test_a_program_whose_master_stays_away_exits_as_after_sigterm(where: str, nursery: Nursery, tmp_path: Path) -> None:
    knobs = {"minibatch_size": 12, "num_workers": 1, "virtual_workers": 1, "master_grace_seconds": 1}
    with Conductor(nursery, tmp_path / "job", JobSpec.model_validate(knobs)) as conductor:
        conductor.wanted = 2 if where == "waiting" else 1
        worker = spawn(conductor, 0, 1.5)  # longer than the grace: the program computes when it is over
        conductor.wait(lambda: worker.hellos, "the worker")
        if where == "training":
            conductor.wait(lambda: worker.pulse is not None and worker.pulse.phase == "program", "a part")
        conductor.stop()
        assert worker.process.ended.wait(30), conductor.story()
        text = worker.log.read_text()
        assert worker.process.returncode == 143, text  # which does not count as a crash
        assert re.search(r"\[ERROR\] .*(the master was away|no master)", text) and "Traceback" not in text, text


def test_a_kill_a_join_and_a_leave_change_nothing(
    conductor: Conductor, alone: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    conductor.wanted = 3
    gate = tmp_path / "gate"
    first, second, third = (spawn(conductor, index, 0.1) for index in range(3))
    joiner = spawn(conductor, 3, 0.1, gate)
    conductor.wait_for_step(4)
    third.process.kill()
    conductor.wait(lambda: conductor.generation > 1 and conductor.training, "a world of the survivors")
    gate.write_text("come in")
    conductor.wait(lambda: joiner.kinds("formed"), "a world with the newcomer")
    conductor.wait_for_step(conductor.step + 2)
    first.process.send_signal(signal.SIGTERM)  # rank 0 is like any other
    conductor.wait(lambda: first.dead, "the end of the one that leaves")
    broken = [b for b in first.kinds("broken") if b.generation > 1]  # the first world broke with the kill
    assert first.process.returncode == 0 and not broken, conductor.story()
    check(conductor, alone, tmp_path)
    assert [len(s.members) for s in conductor.starts] == [3, 2, 3, 2]
    assert second.kinds("confirmed")[-1].generation == conductor.generation and len(second.hellos) == 1, (
        "no survivor started again"
    )
    assert joiner.kinds("formed")[0].copied_bytes > 0
