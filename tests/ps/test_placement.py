"""Where parameters live: every element on one server, equal shares, and the same places in every release."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.job.parameters import VariableSpec
from elasticdl.ps import _native
from elasticdl.ps.placement import (
    PARTITIONS,
    SPLIT_BYTES,
    gather_index,
    partitions,
    place,
    servers_of,
    split,
    unique,
)

sizes = st.lists(st.integers(0, 50) | st.sampled_from([SPLIT_BYTES // 4, SPLIT_BYTES // 4 + 1, 300_007]), max_size=6)
servers = st.integers(1, 8)
GOLDEN = [0, 527, 31, 468, 668, 700, 141, 864, 222, 432]


def variables(sizes: list[int]) -> tuple[VariableSpec, ...]:
    return tuple(VariableSpec(name=f"v{i}", shape=(n,)) for i, n in enumerate(sizes))


@settings(deadline=None, max_examples=40)
@given(sizes, servers)
def test_every_element_is_on_exactly_one_server(sizes: list[int], count: int) -> None:
    placed = [gather_index(p) for p in place(variables(sizes), count)]
    assert len(placed) == count
    times = np.bincount(np.concatenate(placed), minlength=sum(sizes))
    assert len(times) == sum(sizes) and (times == 1).all()
    for mine in placed:
        assert (np.diff(mine) > 0).all(), "a server's elements come in the order of the buffer"


@given(sizes, servers)
def test_servers_hold_equal_shares_up_to_the_largest_whole_variable(sizes: list[int], count: int) -> None:
    loads = [sum(p.stop - p.start for p in pieces) for pieces in place(variables(sizes), count)]
    whole = [n for n in sizes if 4 * n <= SPLIT_BYTES]
    cut = len(sizes) - len(whole)  # each cut variable leaves a rest of at most one element
    assert max(loads) - min(loads) <= max(whole, default=0) + cut


@given(sizes, servers)
def test_small_variables_stay_whole_and_large_ones_are_cut_for_all(sizes: list[int], count: int) -> None:
    pieces = place(variables(sizes), count)
    start = 0
    for n in sizes:
        holders = [s for s, mine in enumerate(pieces) for p in mine if p.start < start + n and p.stop > start]
        if 4 * n > SPLIT_BYTES:
            assert sorted(holders) == list(range(count))
        elif n:
            assert len(holders) == 1
        start += n


@pytest.mark.parametrize("count", range(1, 9))
def test_as_many_scalars_as_servers_lie_one_on_each(count: int) -> None:
    """The witness model counts on it."""
    assert [len(gather_index(p)) for p in place(variables([1] * count), count)] == [1] * count


@pytest.mark.parametrize("count", range(1, 9))
def test_rows_are_spread_evenly(count: int) -> None:
    for ids in (
        np.arange(80_000),
        np.arange(80_000) * 1024,
        np.random.default_rng(1).integers(-(2**63), 2**63, 80_000),
    ):
        share = np.bincount(servers_of(ids.astype(np.int64), count), minlength=count) / len(ids)
        assert abs(share * count - 1).max() < 0.05


def test_the_partition_of_an_id_never_changes() -> None:
    """Golden values: a checkpoint's rows must be found by every later release."""
    ids = np.array([0, 1, 2, 3, 1023, 1024, 10**12, -1, -(2**63), 2**63 - 1], np.int64)
    assert partitions(ids).tolist() == GOLDEN
    assert PARTITIONS == 1024


many_ids = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 20), max_size=60)


@given(many_ids, servers)
def test_splitting_ids_by_server_loses_none_and_keeps_their_order(numbers: list[int], count: int) -> None:
    ids = np.array(numbers, np.int64)
    cut = split(ids, count)
    order = np.arange(len(ids)) if cut.order is None else cut.order
    assert sorted(order.tolist()) == list(range(len(ids)))
    assert (cut.bounds[0], cut.bounds[-1], len(cut.bounds)) == (0, len(ids), count + 1)
    for s in range(count):
        mine = order[cut.bounds[s] : cut.bounds[s + 1]]
        assert (np.diff(mine) > 0).all()
        assert set(servers_of(ids[mine], count)) <= {s}


@given(many_ids, servers, st.integers(1, 7))
def test_pieces_of_a_split_take_and_put_every_row_once(numbers: list[int], count: int, at_once: int) -> None:
    ids = np.array(numbers, np.int64)
    rows = np.random.default_rng(1).normal(size=(len(ids), 3)).astype(np.float32)
    cut = split(ids, count)
    out = np.full_like(rows, np.nan)
    for turn in cut.pieces(at_once):
        assert len({server for server, _, _ in turn}) == len(turn), "servers take turns"
        for server, start, stop in turn:
            assert 0 < stop - start <= at_once
            assert set(servers_of(cut.take(start, stop, ids), count)) == {server}
            cut.put(start, stop, cut.take(start, stop, rows), out)
    np.testing.assert_array_equal(out, rows)


@given(many_ids, servers)
def test_distinct_ids_come_grouped_by_server_with_the_position_of_each(numbers: list[int], count: int) -> None:
    ids = np.array(numbers, np.int64)
    found, positions = unique(ids, count)
    np.testing.assert_array_equal(found[positions], ids)
    np.testing.assert_array_equal(np.sort(found), np.unique(ids))
    assert split(found, count).order is None, "what is grouped needs no more sorting"
    if count == 1:
        assert found.tolist() == list(dict.fromkeys(numbers)), "first come, first"


def test_distinct_ids_of_a_large_batch_are_all_found() -> None:
    random = np.random.default_rng(2)
    for high in (10, 10**4, 10**7, 2**62):
        ids = random.integers(-high, high, 200_000)
        found, positions = unique(ids, 5)
        np.testing.assert_array_equal(found[positions], ids)
        assert len(found) == len(np.unique(ids))


def test_the_native_partition_of_an_id_is_that_of_this_page() -> None:
    """Servers restore rows by the one and workers ask by the other."""
    ids = np.random.default_rng(3).integers(-(2**63), 2**63, 5000)
    for count in (2, 3, 7, 1024):
        order, bounds = _native.split(ids, count)
        assert order is not None
        np.testing.assert_array_equal(np.bincount(servers_of(ids, count), minlength=count), np.diff(bounds))
        np.testing.assert_array_equal(order, np.argsort(servers_of(ids, count), kind="stable"))


@pytest.mark.parametrize("wrong", [0, 1025])
def test_an_impossible_number_of_servers_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match="servers: expected 1 to 1024"):
        _native.split(np.zeros(1, np.int64), wrong)
    with pytest.raises(ValueError, match="servers: expected 1 to 1024"):
        _native.unique(np.zeros(1, np.int64), wrong)


@pytest.mark.parametrize("dim", [1, 3, 4, 8, 16, 32, 64, 65])
def test_rows_of_any_width_are_gathered_and_scattered(dim: int) -> None:
    random = np.random.default_rng(4)
    whole = random.normal(size=(50, dim)).astype(np.float32)
    order = random.permutation(50)
    part = np.empty((50, dim), np.float32)
    _native.gather_rows(order, part, whole)
    np.testing.assert_array_equal(part, whole[order])
    back = np.zeros_like(whole)
    _native.scatter_rows(order[:20], part[:20], back)
    np.testing.assert_array_equal(back[order[:20]], part[:20])
    assert (back[order[20:]] == 0).all()
    for outside in (-1, 50):
        with pytest.raises(IndexError, match=f"row {outside} of 50"):
            _native.scatter_rows(np.array([outside]), part[:1], back)


def test_only_what_the_new_server_takes_moves_and_all_hold_equal_shares() -> None:
    for count in range(1, 40):
        before, after = _native.partition_owners(count), _native.partition_owners(count + 1)
        assert set(after[before != after].tolist()) == {count}, "nothing moves between the old servers"
        shares = np.bincount(after, minlength=count + 1)
        assert shares.max() - shares.min() <= 1
