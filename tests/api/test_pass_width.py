"""Without determinism: several of a worker's parts in one pass, as many as is fastest."""

from __future__ import annotations

import logging

import pytest
import torch

import elasticdl.api as elasticdl
from elasticdl.api.pass_width import TURNS, PassWidth, combined
from elasticdl.core.steps import StepPlan

PLAN = StepPlan(records=103, batch=32, virtual=8, epochs=9)  # four records of a part; the last step has seven in all
RECORDS = 50
features = torch.randn(RECORDS, 6, generator=torch.Generator().manual_seed(3))


class Clock:
    """Passes take as long as the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def pass_through(passes: PassWidth, clock: Clock, run: tuple[int, int], number: int, seconds: dict[int, float]) -> int:
    """One step; how many passes it had. `seconds` are those of a pass, by the number of parts in it."""
    step, missing, count = PLAN.step(number, 0, 2), list(range(*run)), 0
    while missing:
        virtuals = passes.next_pass(step, missing)
        passes.begin()
        clock.now += seconds[len(virtuals)]
        passes.end()
        missing, count = missing[len(virtuals) :], count + 1
    passes.committed(usual=step.records == PLAN.batch)
    return count


@pytest.mark.parametrize(
    ("seconds", "best"),
    [({1: 2, 2: 3, 4: 5}, 1), ({1: 2, 2: 3, 4: 6.1}, 1), ({1: 2, 2: 3, 4: 7}, 2), ({1: 1, 2: 3, 4: 7}, 4)],
)
def test_the_fastest_way_is_found_and_kept_until_the_world_changes(
    seconds: dict[int, float], best: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    passes = PassWidth(16, measured=True, clock=clock)
    for world in (1, 2):
        passes.enter((4, 8), 32, 8)
        tried = [pass_through(passes, clock, (4, 8), 0, seconds) for _ in range(3 * TURNS)]
        assert tried == [1, 2, 4] * TURNS
        assert {pass_through(passes, clock, (4, 8), 0, seconds) for _ in range(9)} == {best}
        assert len(caplog.messages) == world
    name = {1: "one pass", 2: "2 passes", 4: "4 passes"}[best]
    text = f"Computing the 4 parts of a step in {name} (measured: {1e3 * seconds[4]:.1f} ms in one pass, "
    assert text in caplog.messages[0]


def test_first_steps_and_short_ones_do_not_count_for_the_speed() -> None:
    clock = Clock()
    passes = PassWidth(8, measured=True, clock=clock)
    passes.enter((0, 2), 32, 8)
    short = PLAN.steps_per_epoch - 1
    for turn in range(TURNS):
        for seconds in ({1: 9.0, 2: 90.0}, {1: 9.0, 2: 90.0}) if turn == 0 else ({2: 3.0}, {1: 1.0}):
            pass_through(passes, clock, (0, 2), 0, seconds)
        pass_through(passes, clock, (0, 1), short, {1: 50.0})
    assert passes.width() == 1


def test_passes_are_of_neighbours_and_no_larger_than_a_workers_minibatch() -> None:
    step = PLAN.step(0, 0, 2)
    passes = PassWidth(12, measured=False)
    passes.enter((0, 8), 32, 8)
    assert passes.next_pass(step, list(range(8))) == [0, 1, 2]
    assert passes.next_pass(step, [3, 4, 5, 6, 7]) == [3, 4, 5]
    assert passes.next_pass(step, [1, 2, 3]) == [1, 2], "as in the steps before"
    assert passes.next_pass(step, [0, 2]) == [0], "another worker may have had what is between them"
    part = combined(step, [3, 4, 5])
    assert (part.virtual, part.start, part.stop, part.records) == (3, 12, 24, 12)
    alone = PassWidth(0, measured=True)
    alone.enter((0, 8), 32, 8)
    assert [alone.next_pass(step, [v, v + 1]) for v in range(4)] == [[0], [1], [2], [3]]
    short = PLAN.step(PLAN.steps_per_epoch - 1, 0, 2)
    assert [short.part(v).records for v in range(8)] == [0, 0, 0, 0, 0, 0, 0, 7]
    uneven = StepPlan(records=31, batch=16, virtual=4, epochs=1).step(1, 0, 2)
    assert [uneven.part(v).records for v in range(4)] == [0, 5, 5, 5]
    two = PassWidth(8, measured=False)
    two.enter((2, 4), 16, 4)
    assert two.next_pass(uneven, [2, 3]) == [2], "ten records are too many"


def train(deterministic: bool, num_workers: int = 1) -> tuple[dict[str, torch.Tensor], dict[int, list[int]]]:
    """The state, and by step how many records each pass had."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    job = elasticdl.join(
        minibatch_size=18 // num_workers, num_workers=num_workers, virtual_workers=4, num_epochs=8,
        deterministic=deterministic, audit=True,
    )  # fmt: skip
    elastic = job.elastic(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), records=RECORDS)
    sizes: dict[int, list[int]] = {}
    for part in elastic.parts():
        loss = model(features[part.records]).square().mean()
        loss.backward()
        sizes.setdefault(part.step, []).append(len(part))
        elastic.step(loss)
    assert torch.equal(elastic.state()["audit/witness"], torch.full((RECORDS,), 8.0))
    torch.use_deterministic_algorithms(False)
    return elastic.state(), sizes


@pytest.mark.parametrize(
    ("num_workers", "first"), [(1, [[18], [9, 9], [4, 5, 4, 5]]), (2, [[9, 9], [4, 5, 4, 5], [9, 9]])]
)
def test_every_record_has_the_same_weight_for_any_number_of_passes(num_workers: int, first: list[list[int]]) -> None:
    """The third step of an epoch is short, and none of those that count."""
    wanted, by_parts = train(deterministic=True, num_workers=num_workers)
    state, sizes = train(deterministic=False, num_workers=num_workers)
    assert [sizes[n] for n in (0, 1, 3)] == first
    assert all(max(of_step) <= 18 // num_workers for of_step in sizes.values())
    assert {n: sum(s) for n, s in sizes.items()} == {n: sum(s) for n, s in by_parts.items()}
    for name, tensor in wanted.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_statistics_move_as_by_one_batch() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 1))
    plain = torch.nn.BatchNorm1d(1)
    job = elasticdl.join(minibatch_size=8, virtual_workers=4, num_epochs=1, deterministic=False)
    elastic = job.elastic(model, torch.optim.SGD(model.parameters(), lr=0.1), records=8)
    data = torch.arange(8.0)[:, None].square()
    for part in elastic.parts():
        assert len(part) == 8
        loss = model(data[part.records]).mean()
        loss.backward()
        elastic.step(loss)
    plain(data)
    assert elastic.committed_steps == 1 and int(model[0].num_batches_tracked) == 1
    torch.testing.assert_close(model[0].running_mean, plain.running_mean)
    torch.testing.assert_close(model[0].running_var, plain.running_var)
