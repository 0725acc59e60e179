"""Minibatches of a lease, read and fed ahead of the computation in a thread of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from elasticdl.data.dataset import Dataset
from elasticdl.data.order import EpochOrder
from elasticdl.data.ranges import RangeReader, epoch_order
from elasticdl.data.reader import Reader
from elasticdl.job.spec import JobSpec
from elasticdl.worker.session import Work

Feed = Callable[[list[Any], str, Mapping[str, Any]], tuple[Any, Any]]
Key = TypeVar("Key")
Got = TypeVar("Got")
AHEAD = 2
NAMED = 20  # ranges of records in a message


@dataclass(frozen=True)
class Minibatch:
    features: Any
    labels: Any
    numbers: npt.NDArray[np.int64]  # which records of the data set it is made of
    bad: Mapping[int, str] = field(default_factory=dict)  # those that were to be in it, with what is wrong with each

    @property
    def records(self) -> int:
        return len(self.numbers)


class Source:
    """Records of one data set by position: training data shuffled by epoch, validation data in its natural order."""

    def __init__(self, reader: Reader, dataset: Dataset, spec: JobSpec, mode: str) -> None:
        self.reader, self.dataset, self.spec, self.mode = reader, dataset, spec, mode
        self._epoch = -1
        self._ranges: RangeReader | None = None

    def read(
        self, epoch: int, start: int, stop: int, bad_records: tuple[int, ...] = ()
    ) -> tuple[list[Any], npt.NDArray[np.int64]]:
        """Records at these positions of the epoch and their numbers, less those set aside."""
        order = self._ordered(epoch)
        assert self._ranges is not None
        records, numbers = self._ranges.read(start, stop), order.records(start, stop)
        if bad_records:
            keep = ~np.isin(numbers, bad_records)
            records, numbers = [r for r, k in zip(records, keep.tolist(), strict=True) if k], numbers[keep]
        return records, numbers

    def number(self, epoch: int, position: int) -> int:
        """Which record stands at a position of an epoch."""
        return int(self._ordered(epoch).records(position, position + 1)[0])

    def name_of(self, number: int) -> str:
        """This record as a person finds it."""
        file, first = 0, 0
        while number - first >= self.dataset.files[file].records:
            file, first = file + 1, first + self.dataset.files[file].records
        return f"record {number - first} of {self.dataset.files[file].name}"

    def _ordered(self, epoch: int) -> EpochOrder:
        if self._ranges is None or epoch != self._epoch:
            size, shuffle = self.spec.shard_records, self.spec.shuffle and self.mode == "training"
            self._order = epoch_order(self.dataset, epoch, seed=self.spec.seed, shard_records=size, shuffle=shuffle)
            self._ranges, self._epoch = RangeReader(self.reader, self.dataset, self._order, size), epoch
        return self._order

    def named(self, numbers: npt.NDArray[np.int64]) -> str:
        """These records as a person finds them: their numbers in each file."""
        ends = np.cumsum([f.records for f in self.dataset.files])
        files = np.searchsorted(ends, numbers, side="right")
        parts = []
        for file in np.unique(files).tolist():
            mine = np.sort(numbers[files == file]) - (ends[file - 1] if file else 0)
            runs = np.split(mine, np.flatnonzero(np.diff(mine) != 1) + 1)
            told = [str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs]
            more = f" and {len(told) - NAMED} more" if len(told) > NAMED else ""
            parts.append(f"records {', '.join(told[:NAMED])}{more} of {self.dataset.files[file].name}")
        return "; ".join(parts)


def load(source: Source, epoch: int, start: int, stop: int, bad_records: tuple[int, ...], feed: Feed) -> Minibatch:
    """Read and feed the records at these positions."""
    records, numbers = source.read(epoch, start, stop, bad_records)
    if not records:
        return Minibatch(None, None, numbers)
    features, labels = feed(records, source.mode, source.reader.metadata)
    return Minibatch(features, labels, numbers)


class ReadAhead(Generic[Key, Got]):
    """Loads what comes next in a thread of its own."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._coming: dict[Key, Future[Got]] = {}

    def take(self, wanted: Mapping[Key, Callable[[], Got]]) -> Got:
        """The first of these; the others are loaded meanwhile, and what is no longer wanted is dropped."""
        for key, load in wanted.items():
            if key not in self._coming:
                self._coming[key] = self.pool.submit(load)
        for stale in [key for key in self._coming if key not in wanted]:
            self._coming.pop(stale).cancel()
        return self._coming.pop(next(iter(wanted))).result()


class BatchesAhead:
    """The batches of leases, read and fed ahead of the computation."""

    def __init__(self, feed: Feed, minibatch: int) -> None:
        self._feed, self._minibatch = feed, minibatch
        self._ahead: ReadAhead[tuple[str, int, int], Minibatch] = ReadAhead()

    def take(self, source: Source, work: Work, batch: int, then: Sequence[tuple[Source, Work, int]]) -> Minibatch:
        """This batch; those in `then` are started meanwhile."""
        wanted = [(source, work, batch), *then[:AHEAD]]
        return self._ahead.take({(w.shard, w.attempt, n): partial(self._load, s, w, n) for s, w, n in wanted})

    def _load(self, source: Source, work: Work, batch: int) -> Minibatch:
        start = work.start + batch * self._minibatch
        stop = min(start + self._minibatch, work.stop)
        epoch = work.round if source.mode == "training" else 0
        return load(source, epoch, start, stop, work.bad_records, self._feed)
