"""Programs that do not ask for determinism, as workers of one job: kills lose nothing and repeat nothing."""

from __future__ import annotations

from collections.abc import Iterator
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

KNOBS = {"virtual_workers": 4, "num_epochs": 3, "audit": True}
# A worker's minibatch is one part, which has a pass of its own; or all parts of a step.
APART, TOGETHER = {"minibatch_size": 6, "num_workers": 4}, {"minibatch_size": 24, "num_workers": 1}
STEPS = 27  # three epochs of 202 records in steps of 24


@pytest.fixture(scope="module")
def alone() -> dict[str, torch.Tensor]:
    """What one process gets by the fixed tree."""
    elastic, _ = loop_program.run(elasticdl.join(**KNOBS, **APART))
    return state_files.snapshot(elastic.state()).fetched()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    it = Nursery()
    yield it
    it.close()


@pytest.fixture
def conductor(nursery: Nursery, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Conductor]:
    cut = getattr(request, "param", APART)
    spec = JobSpec.model_validate({**KNOBS, **cut, "deterministic": False, "master_grace_seconds": 20})
    with Conductor(nursery, tmp_path / "job", spec) as it:
        yield it


def spawn(conductor: Conductor, count: int, **env: str) -> list[Worker]:
    conductor.wanted = count
    # Buckets of next to nothing: there are several on the way.
    return [
        conductor.spawn(i, "tests.api.loop_program", {"LOOP_SEED": str(i), "LOOP_BUCKET_FLOATS": "40", **env})
        for i in range(count)
    ]


def check(conductor: Conductor, alone: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """The weights but for rounding, and every record exactly once in each epoch."""
    conductor.wait_for_step(STEPS)
    conductor.wait(lambda: conductor.training, "a last world")
    last = conductor.workers[conductor.members[0]]
    conductor.save(last, 99, tmp_path / "state")
    state, step = state_files.read(tmp_path / "state", STEPS)
    assert step == STEPS and state.keys() == alone.keys()
    assert torch.equal(state["audit/witness"], torch.full((loop_program.RECORDS,), 3.0))
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, alone[name], rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    assert set(conductor.finish().values()) == {0}
    if len(conductor.starts[0].members) > 1:
        assert "sums go through shared memory" in last.log.read_text()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_number_of_workers_gets_the_weights_of_the_tree(
    size: int, conductor: Conductor, alone: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    spawn(conductor, size)
    check(conductor, alone, tmp_path)
    assert conductor.generation == 1


@pytest.mark.parametrize("passes", [1, 5])
def test_a_kill_in_the_middle_of_an_exchange_loses_nothing_and_repeats_nothing(
    passes: int, conductor: Conductor, alone: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    faults = {"ELASTICDL_FAULTS": f"worker.in_exchange@elasticdl-j-worker-1:{passes}"}
    *_, killed, last = spawn(conductor, 3, **faults, ELASTICDL_FAULT_LOG=str(tmp_path / "faults"))
    check(conductor, alone, tmp_path)
    assert killed.process is not None and killed.process.returncode == -9
    assert (tmp_path / "faults").read_text().count("worker.in_exchange") == 1
    assert [len(s.members) for s in conductor.starts] == [3, 2] and conductor.starts[1].state.step == passes - 1
    assert len(last.hellos) == 1, "no survivor started again"


def test_a_world_that_is_called_off_during_a_backward_pass_is_left_at_once(
    conductor: Conductor, alone: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    first, second = spawn(conductor, 2, LOOP_SECONDS="0.05")
    for step in (3, 6, 9):
        conductor.wait_for_step(step)
        conductor.propose(second.name, first.name, urgent=True)
        conductor.wait(lambda: conductor.training, "the same members as another world")
    check(conductor, alone, tmp_path)
    assert conductor.generation == 4


@pytest.mark.parametrize("conductor", [TOGETHER], indirect=True)
def test_parts_that_are_computed_together_get_the_same_weights_when_a_worker_is_killed(
    conductor: Conductor, tmp_path: Path
) -> None:
    elastic, _ = loop_program.run(elasticdl.join(**KNOBS, **TOGETHER), plain=True)
    alone = state_files.snapshot(elastic.state()).fetched()
    faults = {"ELASTICDL_FAULTS": "worker.in_exchange@elasticdl-j-worker-1:6", "LOOP_PLAIN": "1"}
    *_, killed, _ = spawn(conductor, 3, **faults, ELASTICDL_FAULT_LOG=str(tmp_path / "faults"))
    check(conductor, alone, tmp_path)
    assert killed.process is not None and killed.process.returncode == -9
    assert [len(s.members) for s in conductor.starts] == [3, 2] and conductor.starts[1].state.step == 5
