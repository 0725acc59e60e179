"""Sums of a step: the bits of the plain tree, in any order of arrival, over any runs, across changes of the run."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.collective.sums import Sums
from elasticdl.collective.tree import root, runs, subtrees, value
from tests.collective.member import contribution
from tests.collective.oracle import tree_sum


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.numpy().tobytes())


def part(virtual: int) -> torch.Tensor:
    return contribution(5, 0, virtual)


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], list[int]]:
    virtual = draw(st.integers(1, 24))
    inner = draw(st.sets(st.integers(1, virtual), max_size=5)) - {virtual}
    stops = [0, *sorted(inner), virtual]
    return virtual, list(pairwise(stops)), draw(st.permutations(range(virtual)))


@given(arrivals())
@settings(deadline=None)
def test_any_order_of_arrival_and_any_split_gives_the_bits_of_the_plain_tree(
    case: tuple[int, list[tuple[int, int]], list[int]],
) -> None:
    virtual, split, order = case
    held: dict[tuple[int, int], torch.Tensor] = {}
    for start, stop in split:
        sums = Sums(virtual)
        for v in order:
            if start <= v < stop:
                sums.add(v, part(v))
        assert sums.missing(start, stop) == []
        nodes = sums.nodes(start, stop)
        assert tuple(nodes) == subtrees(start, stop, virtual)
        held.update(nodes)
    total = value(root(virtual), virtual, held, torch.add)
    assert bits(total) == bits(tree_sum([part(v) for v in range(virtual)]))


@given(st.integers(1, 16), st.data())
@settings(deadline=None)
def test_sums_inside_a_new_run_are_reused_and_the_bits_stay_the_same(virtual: int, data: st.DataObject) -> None:
    sums = Sums(virtual)
    for _ in range(3):
        start = data.draw(st.integers(0, virtual - 1))
        stop = data.draw(st.integers(start + 1, virtual))
        missing = sums.missing(start, stop)
        computed = data.draw(st.integers(0, len(missing)))
        for v in missing[:computed]:
            sums.add(v, part(v))
    start, stop = 0, virtual
    for v in sums.missing(start, stop):
        sums.add(v, part(v))
    (total,) = sums.nodes(start, stop).values()
    assert bits(total) == bits(tree_sum([part(v) for v in range(virtual)]))


@given(st.integers(1, 16), st.data())
@settings(deadline=None)
def test_a_sum_of_everything_is_made_in_its_place_and_nothing_that_is_held_there_is_lost(
    virtual: int, data: st.DataObject
) -> None:
    sums, place = Sums(virtual), torch.full_like(part(0), float("nan"))
    for whole in (False, False, True):
        start = 0 if whole else data.draw(st.integers(0, virtual - 1))
        stop = virtual if whole else data.draw(st.integers(start + 1, virtual))
        missing = sums.missing(start, stop)
        for v in missing if whole else missing[: data.draw(st.integers(0, len(missing)))]:
            sums.add(v, part(v), place if v == missing[-1] else None)
    (total,) = sums.nodes(0, virtual).values()
    assert bits(total) == bits(tree_sum([part(v) for v in range(virtual)]))
    assert total is place or virtual == 1 or missing == []


def test_a_run_that_grows_or_moves_recomputes_only_what_it_must() -> None:
    sums = Sums(8)
    for v in (4, 5, 6):
        sums.add(v, part(v))
    assert sums.missing(4, 8) == [7]
    assert sums.missing(3, 8) == [3, 7]
    assert sums.missing(5, 8) == [5, 7], "the sum of 4 and 5 cannot be taken apart"
    assert sums.missing(4, 8) == [4, 5, 7], "and was let go"


def test_parts_in_order_need_as_many_vectors_as_the_tree_is_deep() -> None:
    for virtual in (1, 2, 7, 8, 33, 64):
        for start, stop in runs(virtual, min(3, virtual)):
            sums = Sums(virtual)
            most = 0
            for v in range(start, stop):
                sums.add(v, part(v))
                most = max(most, len(sums._held))
            assert most <= 2 * math.log2(stop - start + 1) + 1


def test_sums_that_were_handed_out_are_never_written_to_again() -> None:
    sums = Sums(4)
    for v in (0, 1):
        sums.add(v, part(v))
    (lent,) = sums.nodes(0, 2).values()
    before = bits(lent)
    for v in (3, 2):
        sums.add(v, part(v))
    assert bits(lent) == before
    assert list(sums.nodes(0, 4)) == [(0, 4)]


def test_a_part_that_is_there_already_is_refused() -> None:
    sums = Sums(4)
    sums.add(0, part(0))
    sums.add(1, part(1))
    with pytest.raises(ValueError, match="virtual worker 1 is there already"):
        sums.add(1, part(1))
    with pytest.raises(ValueError, match="no virtual worker 4 of 4"):
        sums.add(4, part(4))


def test_nodes_of_an_incomplete_run_are_refused() -> None:
    sums = Sums(4)
    sums.add(2, part(2))
    with pytest.raises(ValueError, match=r"virtual workers \[3\] of the run 2 to 4 are missing"):
        sums.nodes(2, 4)
