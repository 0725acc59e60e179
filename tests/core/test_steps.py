"""The step plan of an all-reduce job: which records each virtual worker trains in which step."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elasticdl.core.steps import StepPlan, default_virtual_workers, part_seed
from elasticdl.job.spec import JobSpec

PLANS = st.builds(
    StepPlan,
    records=st.integers(1, 60),
    batch=st.integers(1, 20),
    virtual=st.integers(1, 16),
    epochs=st.integers(1, 3),
)


def positions(plan: StepPlan, step: int) -> list[int]:
    parts = [plan.part(step, v) for v in range(plan.virtual)]
    return [position for p in parts for position in range(p.start, p.stop)]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(plan=PLANS)
@example(plan=StepPlan(records=7, batch=3, virtual=8, epochs=2))
def test_every_record_of_every_epoch_is_in_exactly_one_part(plan: StepPlan) -> None:
    trained = Counter(
        (plan.epoch_of(step), position) for step in range(plan.total_steps) for position in positions(plan, step)
    )
    assert trained == Counter({(e, p): 1 for e in range(plan.epochs) for p in range(plan.records)})
    assert plan.total_records == plan.epochs * plan.records


@settings(max_examples=200, deadline=None, derandomize=True)
@given(plan=PLANS)
def test_a_step_is_shared_as_evenly_as_whole_records_allow_and_in_order(plan: StepPlan) -> None:
    for step in range(plan.total_steps):
        start, stop = plan.span(step)
        assert positions(plan, step) == list(range(start, stop)), "parts follow each other without a gap"
        sizes = [n for v in range(plan.virtual) if (n := plan.part(step, v).records)]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= min(stop - start, max(1, plan.batch // plan.virtual)), "no part is smaller than usual"
        if stop - start >= plan.virtual and stop - start == plan.batch:
            assert len(sizes) == plan.virtual
        assert {plan.part(step, v).epoch for v in range(plan.virtual)} == {plan.epoch_of(step)}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(plan=PLANS, max_step=st.integers(0, 30))
def test_records_before_a_step_are_those_of_the_steps_before_it(plan: StepPlan, max_step: int) -> None:
    plan = StepPlan(plan.records, plan.batch, plan.virtual, plan.epochs, max_step)
    so_far = 0
    for step in range(plan.total_steps):
        assert plan.records_before(step) == so_far
        so_far += len(positions(plan, step))
    assert plan.records_before(plan.total_steps) == plan.total_records == so_far


def test_the_last_step_of_an_epoch_is_short_and_no_step_crosses_an_epoch() -> None:
    plan = StepPlan(records=10, batch=4, virtual=2, epochs=2)
    assert plan.steps_per_epoch == 3 and plan.total_steps == 6
    assert [plan.span(step) for step in range(6)] == [(0, 4), (4, 8), (8, 10)] * 2
    assert [plan.epoch_of(step) for step in range(6)] == [0, 0, 0, 1, 1, 1]


def test_with_more_virtual_workers_than_records_some_parts_are_empty_and_nothing_is_lost() -> None:
    plan = StepPlan(records=10, batch=4, virtual=16, epochs=1)
    sizes = [plan.part(2, v).records for v in range(16)]
    assert sum(sizes) == 2 and set(sizes) == {0, 1}


def test_a_short_step_leaves_virtual_workers_out_rather_than_giving_each_a_single_record() -> None:
    plan = StepPlan(records=37, batch=32, virtual=8, epochs=1)
    assert [plan.part(0, v).records for v in range(8)] == [4] * 8
    assert [plan.part(1, v).records for v in range(8)] == [0, 0, 0, 0, 0, 0, 0, 5]
    wider = StepPlan(records=32 + 13, batch=32, virtual=8, epochs=1)
    assert [wider.part(1, v).records for v in range(8)] == [0, 0, 4, 0, 0, 4, 0, 5], "spread over the workers alive"


def test_max_step_ends_the_plan_in_the_middle_of_an_epoch() -> None:
    plan = StepPlan(records=10, batch=4, virtual=2, epochs=5, max_step=4)
    assert plan.total_steps == 4 and plan.total_records == 14
    assert StepPlan(10, 4, 2, 1, max_step=100).total_steps == 3, "a limit above the end changes nothing"


def test_no_two_parts_start_from_the_same_random_numbers() -> None:
    seeds = {part_seed(seed, step, v) for seed in range(3) for step in range(100) for v in range(32)}
    assert len(seeds) == 3 * 100 * 32
    assert all(0 <= seed < 2**63 for seed in seeds), "what every generator takes"
    assert part_seed(7, 11, 3) == part_seed(7, 11, 3)
    assert part_seed(1, 11, 3) != part_seed(11, 1, 3) != part_seed(1, 1, 13), "numbers do not run together"


def test_random_numbers_are_the_same_in_every_release() -> None:
    assert part_seed(0, 0, 0) == 4808561972376111626


@pytest.mark.parametrize(
    ("workers", "most", "virtual"),
    [(1, None, 2), (2, None, 4), (3, None, 8), (4, None, 8), (2, 4, 4), (2, 5, 8), (2, 64, 64), (5, 3, 16)],
)
def test_virtual_workers_are_the_power_of_two_that_leaves_room_to_grow(workers: int, most: int, virtual: int) -> None:
    assert default_virtual_workers(workers, most) == virtual


def test_the_batch_of_a_step_is_that_of_all_workers_at_submission() -> None:
    spec = JobSpec.model_construct(
        minibatch_size=16, num_workers=3, virtual_workers=0, max_workers=None, num_epochs=2, max_step=0
    )
    plan = StepPlan.of(spec, records=100)
    assert (plan.batch, plan.virtual, plan.epochs, plan.total_steps) == (48, 8, 2, 6)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(plan=PLANS)
def test_parts_weigh_what_they_hold_and_one_each_where_they_are_equal(plan: StepPlan) -> None:
    for step in range(plan.total_steps):
        weights = [plan.step(step, 0, 0).weight(v) for v in range(plan.virtual)]
        assert sum(weights) == pytest.approx(plan.virtual)
        sizes = {plan.part(step, v).records for v in range(plan.virtual)}
        assert len(sizes) > 1 or set(weights) == {1.0}


# A batch that follows the number of workers.

FOLLOWING = st.builds(
    StepPlan,
    records=st.integers(1, 60),
    batch=st.just(8),
    virtual=st.just(4),
    epochs=st.integers(1, 3),
    share=st.integers(1, 9),
)
SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=10)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(plan=FOLLOWING, sizes=SIZES)
@example(plan=StepPlan(records=10, batch=8, virtual=4, epochs=2, share=4), sizes=[2, 1, 5])
def test_whatever_the_sizes_of_the_worlds_every_record_is_trained_once_in_every_epoch(
    plan: StepPlan, sizes: list[int]
) -> None:
    seen: Counter[tuple[int, int]] = Counter()
    number, trained = 0, 0
    while not plan.over(number, trained):
        workers = sizes[number % len(sizes)]
        step = plan.step(number, trained, workers)
        parts = [step.part(v) for v in range(plan.parts(workers))]
        assert [p.step for p in parts] == [number] * workers
        assert [position for p in parts for position in range(p.start, p.stop)] == list(range(step.start, step.stop))
        assert max(p.records for p in parts) <= plan.share, "no worker computes more than its share"
        assert step.records == plan.share * workers or step.stop == plan.records, "only an epoch's last step is short"
        busy = [p.records for p in parts if p.records]
        assert max(busy) - min(busy) <= 1 and sum(step.weight(v) for v in range(workers)) == pytest.approx(workers)
        seen.update((p.epoch, position) for p in parts for position in range(p.start, p.stop))
        number, trained = number + 1, trained + step.records
    assert seen == Counter({(e, p): 1 for e in range(plan.epochs) for p in range(plan.records)})
    assert trained == plan.total_records and plan.trained(number, trained) == trained


def test_the_rate_follows_the_workers_in_proportion_or_by_the_square_root() -> None:
    rates = {}
    for rule in ("none", "linear", "sqrt"):
        plan = StepPlan(records=100, batch=32, virtual=4, epochs=1, share=8, lr_scaling=rule)
        rates[rule] = [plan.step(0, 0, workers).rate_scale for workers in (1, 4, 16)]
    assert rates == {"none": [1.0, 1.0, 1.0], "linear": [0.25, 1.0, 4.0], "sqrt": [0.5, 1.0, 2.0]}
    tail = StepPlan(records=100, batch=32, virtual=4, epochs=1, share=8, lr_scaling="linear").step(3, 96, 4)
    assert (tail.records, tail.rate_scale) == (4, 1.0), "a short step is no smaller world"
    fixed = StepPlan(records=100, batch=32, virtual=4, epochs=1, lr_scaling="linear")
    assert fixed.step(0, 0, 1).rate_scale == 1.0, "a fixed batch has the user's rate"


def test_a_limit_of_steps_ends_a_job_whose_batch_follows_the_workers() -> None:
    plan = StepPlan(records=100, batch=32, virtual=4, epochs=2, max_step=3, share=8)
    assert not plan.over(2, 48) and plan.over(3, 72) and plan.over(2, 200)
    assert plan.total_steps == 0, "it depends on the workers"


def test_a_job_whose_batch_follows_the_workers_says_so() -> None:
    spec = JobSpec.model_construct(
        minibatch_size=16, num_workers=3, virtual_workers=64, max_workers=None, num_epochs=2, max_step=0,
        batch_policy="per_worker", lr_scaling="sqrt",
    )  # fmt: skip
    plan = StepPlan.of(spec, records=100)
    assert (plan.share, plan.batch, plan.lr_scaling, plan.parts(5)) == (16, 48, "sqrt", 5)
    assert plan.virtual == 8, "into so many parts the validation data is cut"
