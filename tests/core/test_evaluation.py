"""Evaluation rounds: when they are due, what they cover, what they are called."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from elasticdl.core.evaluation import Evaluation
from elasticdl.core.plan import Kind


def finish(evaluation: Evaluation, cut: int, version: int) -> None:
    for shard in evaluation.opened(cut, version):
        evaluation.completed(shard, "part")
    evaluation.summarized("{}")


def test_rounds_are_due_every_so_many_versions_and_at_the_end() -> None:
    evaluation = Evaluation.planned(10, 50, 5, 1)
    assert evaluation.wanted_at(0, 120, False) == 50
    finish(evaluation, 1, 50)
    assert evaluation.wanted_at(51, 120, False) == 100
    finish(evaluation, 2, 100)
    assert evaluation.wanted_at(101, 120, False) is None, "the next would be past the end"
    assert evaluation.wanted_at(120, 120, True) == 0, "of the last version, at once"
    finish(evaluation, 3, 120)
    assert evaluation.wanted_at(120, 120, True) is None and evaluation.over(120)


def test_a_round_that_fell_on_the_last_version_is_the_last_one() -> None:
    evaluation = Evaluation.planned(10, 50, 5, 1)
    finish(evaluation, 1, 100)
    assert evaluation.over(100) and evaluation.wanted_at(100, 100, True) is None


def test_a_delayed_round_carries_its_real_version_and_the_next_is_due_at_the_next_multiple() -> None:
    evaluation = Evaluation.planned(10, 50, 5, 1)
    finish(evaluation, 1, 117)
    assert evaluation.done == [(117, "{}")]
    assert evaluation.next_at == 150


def test_one_round_at_a_time() -> None:
    evaluation = Evaluation.planned(10, 5, 5, 1)
    evaluation.opened(1, 5)
    assert evaluation.wanted_at(10, 100, False) is None
    assert evaluation.wanted_at(100, 100, True) is None and not evaluation.over(100)


def test_without_validation_data_nothing_is_due() -> None:
    evaluation = Evaluation.planned(0, 50, 5, 1)
    assert evaluation.wanted_at(100, 100, True) is None and evaluation.over(100)


def test_the_last_shard_of_a_round_brings_the_summary_of_all_parts() -> None:
    evaluation = Evaluation.planned(20, 0, 5, 1)
    shards = evaluation.opened(3, 40)
    assert {s.payload for s in shards} == {"3"}, "each reads the pinned view"
    *first, last = shards
    assert [evaluation.completed(s, f"p{s.index}") for s in first] == [None] * len(first)
    summary = evaluation.completed(last, "last")
    assert summary is not None and summary.kind is Kind.SUMMARIZE
    assert json.loads(summary.payload) == [*(f"p{s.index}" for s in first), "last"]


def test_the_result_of_another_round_is_not_counted() -> None:
    evaluation = Evaluation.planned(5, 0, 5, 1)
    (old,) = evaluation.opened(1, 10)
    evaluation.summarized("{}")
    evaluation.opened(2, 20)
    assert evaluation.completed(old, "stale") is None
    assert evaluation.current is not None and evaluation.current.missing == 1


@given(st.integers(1, 2000), st.integers(1, 64), st.integers(1, 16))
def test_a_round_covers_every_record_once_in_whole_minibatches(records: int, minibatch: int, workers: int) -> None:
    shards = Evaluation.planned(records, 0, minibatch, workers).opened(1, 1)
    assert [p for s in shards for p in range(s.start, s.stop)] == list(range(records))
    assert all(s.start % minibatch == 0 for s in shards)
    assert len(shards) <= 8 * workers
