"""How an epoch is cut into shards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasticdl.core.plan import Kind, Plan, Shard, ShardId


def every_shard(plan: Plan) -> list[Shard]:
    found = (plan.shard(e, i) for e in range(plan.epochs) for i in range(plan.shards_per_epoch))
    return [s for s in found if s is not None]


def test_the_last_shard_and_its_last_batch_may_be_short() -> None:
    plan = Plan(records=10, minibatch=3, batches_per_shard=2, epochs=1)
    first, last = every_shard(plan)
    assert (first.start, first.stop, first.batches) == (0, 6, 2)
    assert (last.start, last.stop, last.batches) == (6, 10, 2)
    assert [plan.batch_records(last, b) for b in range(2)] == [3, 1]


def test_max_step_ends_the_job_in_the_middle_of_a_shard() -> None:
    plan = Plan(records=10, minibatch=3, batches_per_shard=2, epochs=5, max_step=5)
    shards = every_shard(plan)
    assert [(s.round, s.index, s.batches) for s in shards] == [(0, 0, 2), (0, 1, 2), (1, 0, 1)]
    assert shards[-1].stop == 3, "only one batch of it is trained"
    assert (plan.total_batches, plan.total_records, plan.epoch_records(1)) == (5, 13, 3)


def test_a_shard_is_named_by_what_it_is_for() -> None:
    assert Shard(Kind.EVALUATE, 2, 7, 0, 5, 1).id == "evaluate/2/7"
    assert ShardId.parse("evaluate/2/7") == ShardId(Kind.EVALUATE, 2, 7)


@given(st.integers(1, 300), st.integers(1, 20), st.integers(1, 6), st.integers(1, 4), st.integers(0, 100))
def test_the_shards_of_a_job_are_its_records_once_per_epoch(
    records: int, minibatch: int, per_shard: int, epochs: int, max_step: int
) -> None:
    plan = Plan(records, minibatch, per_shard, epochs, max_step)
    shards = every_shard(plan)
    assert sum(s.batches for s in shards) == plan.total_batches
    assert sum(s.stop - s.start for s in shards) == plan.total_records
    for epoch in range(epochs):
        mine = [s for s in shards if s.round == epoch]
        positions = [p for s in mine for p in range(s.start, s.stop)]
        assert positions == list(range(plan.epoch_records(epoch)))
    for s in shards:
        assert sum(plan.batch_records(s, b) for b in range(s.batches)) == s.stop - s.start
