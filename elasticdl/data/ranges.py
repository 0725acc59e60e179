"""Records by their position in an epoch, from which a worker reads its minibatches."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np

from elasticdl.data.dataset import Dataset
from elasticdl.data.order import EpochOrder, shuffle_sizes
from elasticdl.data.reader import Reader, Record

_KEPT_SHARDS = 2  # the one that is trained, and the one read ahead


def epoch_order(dataset: Dataset, epoch: int, *, seed: int, shard_records: int, shuffle: bool) -> EpochOrder:
    """The order every process of a job uses: a shard is a window of blocks from all over the data set."""
    block, window = shuffle_sizes(shard_records)
    return EpochOrder([file.records for file in dataset.files], seed, epoch, block, window, shuffle)


class RangeReader:
    """Reads positions of one epoch's order; a shard's blocks are read once, however small the minibatches are."""

    def __init__(self, reader: Reader, dataset: Dataset, order: EpochOrder, shard_records: int = 0) -> None:
        if order.records_total != dataset.records:
            raise ValueError(f"the order has {order.records_total} records, the data set has {dataset.records}")
        self._reader, self._order, self._shard_records = reader, order, shard_records
        self._names = [file.name for file in dataset.files]
        self._kept: OrderedDict[int, tuple[int, list[Record]]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> list[Record]:
        """The records at positions start..stop, in that order."""
        if not self._shard_records:
            return self._load(start, stop)
        found: list[Record] = []
        while start < stop:
            begin, records = self._shard(start // self._shard_records)
            end = min(stop, begin + len(records))
            if end <= start:
                raise ValueError(f"position {start} is outside the epoch's {self._order.records_total} records")
            found += records[start - begin : end - begin]
            start = end
        return found

    def _shard(self, number: int) -> tuple[int, list[Record]]:
        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
                return self._kept[number]
            begin = number * self._shard_records
            end = min(begin + self._shard_records, self._order.records_total)
            kept = self._kept[number] = (begin, self._load(begin, end) if begin < end else [])
            while len(self._kept) > _KEPT_SHARDS:
                self._kept.popitem(last=False)
            return kept

    def _load(self, start: int, stop: int) -> list[Record]:
        numbers = self._order.records(start, stop)
        by_number = np.argsort(numbers)
        read: list[Record] = []
        for file, first, end in self._order.merge(numbers[by_number]):
            read += self._reader.read(self._names[file], first, end)
        places: list[Record] = [b""] * len(read)
        for place, record in zip(by_number.tolist(), read, strict=True):
            places[place] = record
        return places
