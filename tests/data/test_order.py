"""The order of an epoch: every record once, a pure function of seed, epoch and position."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data.order import EpochOrder, permutation, shuffle_sizes
from elasticdl.data.ranges import RangeReader, epoch_order
from elasticdl.data.reader import Dataset, Record
from tests.data.sources import build

file_sizes = st.lists(st.integers(0, 60), min_size=1, max_size=6)


def orders_of(sizes: st.SearchStrategy[list[int]]) -> st.SearchStrategy[EpochOrder]:
    seeds, epochs, blocks, windows = (
        st.integers(0, 2**64 - 1),
        st.integers(0, 50),
        st.integers(1, 20),
        st.integers(1, 50),
    )
    return st.builds(EpochOrder, sizes, seeds, epochs, blocks, windows, st.booleans())


orders = orders_of(file_sizes)


@settings(max_examples=300, deadline=None)
@given(order=orders, data=st.data())
def test_every_epoch_visits_every_record_exactly_once_however_it_is_cut(order: EpochOrder, data: st.DataObject) -> None:
    total = order.records_total
    cuts = sorted(data.draw(st.lists(st.integers(0, total), max_size=5)))
    edges = [0, *cuts, total]
    seen = [number for start, stop in itertools.pairwise(edges) for number in order.records(start, stop)]
    assert sorted(seen) == list(range(total))
    assert seen == order.records(0, total).tolist()


@settings(max_examples=200, deadline=None)
@given(sizes=file_sizes, data=st.data())
def test_runs_cover_exactly_the_records_of_their_positions(sizes: list[int], data: st.DataObject) -> None:
    order = data.draw(orders_of(st.just(sizes)))
    places = [(file, number) for file, size in enumerate(sizes) for number in range(size)]
    start = data.draw(st.integers(0, order.records_total))
    stop = data.draw(st.integers(start, order.records_total))
    wanted = sorted(places[number] for number in order.records(start, stop).tolist())
    runs = order.runs(start, stop)
    assert [(file, number) for file, first, end in runs for number in range(first, end)] == wanted
    for (file, _, end), (next_file, first, _) in itertools.pairwise(runs):
        assert (file, end) < (next_file, first), "touching runs are merged"


def _mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def test_the_order_is_the_documented_arithmetic_and_not_numpys_generator() -> None:
    gamma = 0x9E3779B97F4A7C15
    seed, epoch, block, window = 2**63 + 5, 3, 4, 6
    counts = [10, 3, 7]

    def chain(*parts: int) -> int:
        state = 0
        for part in parts:
            state = _mix((state + part + gamma) % 2**64)
        return state

    def shuffled(count: int, *key: int) -> list[int]:
        base = chain(*key)
        return sorted(range(count), key=lambda i: _mix((base + (i + 1) * gamma) % 2**64))

    blocks, before = [], 0
    for count in counts:
        blocks += [list(range(before + b, before + min(b + block, count))) for b in range(0, count, block)]
        before += count
    laid = [number for b in shuffled(len(blocks), seed, epoch, 1) for number in blocks[b]]
    expected = []
    for w, begin in enumerate(range(0, 20, window)):
        part = laid[begin : begin + window]
        expected += [part[j] for j in shuffled(len(part), seed, epoch, 2, w)]
    assert EpochOrder(counts, seed, epoch, block, window).records(0, 20).tolist() == expected


def test_the_order_never_changes_between_releases() -> None:
    # A checkpoint resumes in the middle of an epoch: these numbers are part of its format.
    order = EpochOrder([100, 50], seed=42, epoch=1, block=8, window=32)
    assert order.records(0, 8).tolist() == [143, 71, 86, 145, 147, 84, 85, 95]


def test_seed_and_epoch_change_the_order() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return EpochOrder([500], seed, epoch, 8, 64).records(0, 500).tolist()

    assert order(1, 1) == order(1, 1)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_without_shuffling_the_order_is_that_of_the_files() -> None:
    order = EpochOrder([3, 0, 2], 1, 1, 8, 64, shuffle=False)
    assert order.records(0, 5).tolist() == [0, 1, 2, 3, 4]
    assert order.runs(1, 5) == [(0, 1, 3), (2, 0, 2)]


def test_a_shuffled_minibatch_mixes_distant_parts_of_sorted_data() -> None:
    block, window = shuffle_sizes(128)
    order = EpochOrder([60_000], 7, 0, block, window)
    tenths = {number // 6000 for number in order.records(640, 704).tolist()}
    assert len(tenths) >= 5, "64 records of data sorted by class should hold most of ten classes"


def test_a_shard_reads_few_ranges_when_the_window_is_the_shard() -> None:
    block, window = shuffle_sizes(512)
    order = EpochOrder([60_000], 7, 0, block, window)
    assert len(order.runs(512, 1024)) <= 512 // block + 1


def test_a_permutation_looks_random() -> None:
    places = permutation(10_000, 5, 6)
    assert sorted(places) == list(range(10_000))
    assert abs(np.corrcoef(places, np.arange(10_000))[0, 1]) < 0.05
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.05


def test_positions_outside_the_epoch_are_refused() -> None:
    order = EpochOrder([10], 1, 1, 2, 2)
    for start, stop in ((-1, 2), (3, 2), (0, 11)):
        with pytest.raises(ValueError, match="outside the epoch's 0 to 10"):
            order.records(start, stop)


def test_a_hundred_million_records_are_laid_out_in_seconds() -> None:
    begin = time.process_time()
    order = EpochOrder([1_000_000] * 100, 1, 1, block=64, window=4096)
    assert len(set(order.records(50_000_000, 50_000_512).tolist())) == 512
    assert time.process_time() - begin < 10


class Counting:
    """A reader that counts the records it hands out."""

    metadata: dict[str, object]

    def __init__(self, reader) -> None:  # type: ignore[no-untyped-def]
        self._reader, self.read_records = reader, 0
        self.metadata = {}
        self.describe, self.close = reader.describe, reader.close

    def read(self, name: str, start: int, end: int) -> list[Record]:
        self.read_records += end - start
        found: list[Record] = self._reader.read(name, start, end)
        return found


@pytest.mark.parametrize("shard_records", [0, 32])
def test_records_come_in_the_order_of_positions_and_each_shard_is_read_once(tmp_path: Path, shard_records: int) -> None:
    source = build("recordio-snappy", tmp_path)
    reader = Counting(source.open())
    dataset = reader.describe()
    order = EpochOrder([file.records for file in dataset.files], 3, 0, block=4, window=32)
    ranges = RangeReader(reader, dataset, order, shard_records)
    everything = [record for records in source.expected.values() for record in records]
    found = [record for start in range(0, 221, 10) for record in ranges.read(start, min(start + 10, 221))]
    assert found == [everything[number] for number in order.records(0, 221).tolist()]
    assert reader.read_records == 221


def test_a_shard_resumed_in_the_middle_gives_the_same_records(tmp_path: Path) -> None:
    source = build("csv", tmp_path)
    dataset = source.open().describe()
    order = EpochOrder([file.records for file in dataset.files], 3, 0, block=4, window=32)
    whole = RangeReader(source.open(), dataset, order, 64).read(64, 128)
    assert RangeReader(source.open(), dataset, order, 64).read(90, 128) == whole[26:]


def test_every_process_of_a_job_gets_the_same_order_from_the_description(tmp_path: Path) -> None:
    dataset = build("csv", tmp_path).open().describe()
    there = Dataset.from_json(dataset.to_json())
    orders = [epoch_order(d, 2, seed=5, shard_records=64, shuffle=True).records(0, 221) for d in (dataset, there)]
    assert np.array_equal(*orders)
    plain = epoch_order(dataset, 2, seed=5, shard_records=64, shuffle=False)
    assert plain.records(0, 221).tolist() == list(range(221))


def test_an_order_for_another_data_set_is_refused(tmp_path: Path) -> None:
    source = build("csv", tmp_path)
    with pytest.raises(ValueError, match="the order has 5 records, the data set has 221"):
        RangeReader(source.open(), source.open().describe(), EpochOrder([5], 1, 1, 1, 1))
