"""The tree and the runs: every number of virtual workers up to 64, every world that can share them."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest

from elasticdl.collective.tree import halves, root, runs, subtrees, value

EVERY = [(virtual, world) for virtual in range(1, 65) for world in range(1, virtual + 1)]


def power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def traffic(virtual: int, world: int) -> Fraction:
    """Vectors that the busiest worker sends or receives in a step, over those of a ring all-reduce."""
    if world == 1:
        return Fraction(0)
    nodes = [len(subtrees(*run, virtual)) for run in runs(virtual, world)]
    # Each slice goes to its owner once per node, and back to every member once; a slice is 1/world of the vector.
    sent = max((count + 1) * (world - 1) for count in nodes)
    received = max(sum(nodes) - count + world - 1 for count in nodes)
    return Fraction(max(sent, received), 2 * (world - 1))


def load(virtual: int, world: int) -> Fraction:
    return Fraction(max(stop - start for start, stop in runs(virtual, world)), -(-virtual // world))


def test_runs_cover_every_virtual_worker_once_and_in_order() -> None:
    for virtual, world in EVERY:
        shared = runs(virtual, world)
        assert len(shared) == world
        assert all(start < stop for start, stop in shared)
        assert [v for start, stop in shared for v in range(start, stop)] == list(range(virtual))


def test_no_worker_has_more_than_1_5_times_the_even_load() -> None:
    assert max(load(*pair) for pair in EVERY) <= Fraction(3, 2)


def test_no_worker_moves_more_than_1_6_times_what_a_ring_would() -> None:
    assert max(traffic(*pair) for pair in EVERY) <= Fraction(16, 10)


def test_a_world_of_a_power_of_two_moves_what_a_ring_would_at_an_even_load() -> None:
    for virtual, world in EVERY:
        if power_of_two(virtual) and power_of_two(world):
            assert (load(virtual, world), traffic(virtual, world)) == (1, 1 if world > 1 else 0)


def test_a_world_of_a_power_of_two_exceeds_a_ring_only_where_whole_parts_leave_no_choice() -> None:
    over = [(v, w) for v, w in EVERY if power_of_two(w) and traffic(v, w) > Fraction(11, 10)]
    assert len(over) == 36
    for virtual, world in over:
        assert not power_of_two(virtual)
        # One node each would have to be the nodes of one size, and those are too large or too many.
        alone = 1 << (-(-virtual // world) - 1).bit_length()
        assert alone > 1.5 * -(-virtual // world)


def test_three_workers_share_eight_parts_as_evenly_as_can_be() -> None:
    assert runs(8, 3) == ((0, 2), (2, 5), (5, 8))
    assert traffic(8, 3) == Fraction(3, 2)


def test_a_world_larger_than_the_virtual_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="5 workers cannot share 4 virtual workers"):
        runs(4, 5)


def test_a_run_is_covered_by_its_largest_aligned_nodes() -> None:
    assert subtrees(0, 8) == ((0, 8),)
    assert subtrees(3, 8) == ((3, 1), (4, 4))
    assert subtrees(1, 7) == ((1, 1), (2, 2), (4, 2), (6, 1))
    assert subtrees(4, 7) == ((4, 2), (6, 1))
    assert subtrees(4, 7, 7) == ((4, 4),), "there is no eighth leaf that another worker could have"


def test_subtrees_cover_their_run_and_no_two_of_them_are_halves_of_one_node() -> None:
    for virtual in range(1, 20):
        for start in range(virtual):
            for stop in range(start + 1, virtual + 1):
                nodes = subtrees(start, stop, virtual)
                leaves = [v for first, size in nodes for v in range(first, first + size) if v < virtual]
                assert leaves == list(range(start, stop))
                assert all(first % size == 0 for first, size in nodes)
                assert not any(b == (a[0] + a[1], a[1]) and a[0] % (2 * a[1]) == 0 for a, b in pairwise(nodes))


def test_the_root_is_the_same_expression_for_any_nodes_below_it() -> None:
    def add(left: str, right: str) -> str:
        return f"({left}+{right})"

    for virtual in range(1, 17):
        leaves = {(v, 1): str(v) for v in range(virtual)}
        whole = value(root(virtual), virtual, leaves, add)
        for world in range(1, virtual + 1):
            nodes = [node for run in runs(virtual, world) for node in subtrees(*run, virtual)]
            held = {node: value(node, virtual, leaves, add) for node in nodes}
            assert value(root(virtual), virtual, held, add) == whole
    assert halves((0, 8), 5) == ((0, 4), (4, 4)) and halves((4, 4), 5) == ((4, 2),)


def test_a_leaf_that_no_node_covers_is_named() -> None:
    with pytest.raises(ValueError, match="no node covers virtual worker 2 of 4"):
        value((0, 4), 4, {(0, 2): 1, (3, 1): 1}, int.__add__)
