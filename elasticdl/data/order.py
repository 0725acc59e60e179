"""The order of an epoch: which record is at which position, as a pure function of (seed, epoch, position).

Each file is cut into blocks of at most `block` neighbouring records. The blocks are permuted, then the records
inside each window of `window` consecutive positions. A permutation is the argsort of 64-bit keys:

    mix(z):  z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31
    chain(a, b, ...) = mix(... mix(mix(a + G) + b + G) ...)             G = 0x9E3779B97F4A7C15
    key of block i             = mix(chain(seed, epoch, 1) + (i + 1) * G)
    key of place j in window w = mix(chain(seed, epoch, 2, w) + (j + 1) * G)

all modulo 2**64. `mix` is one to one and G is odd, so keys never tie and every sort gives the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_BLOCKS, _WINDOWS = 1, 2  # the two uses of the generator
_KEPT_WINDOWS = 4


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _chain(*parts: int) -> int:
    state = 0
    for part in parts:
        state = int(_mix(np.array([(state + part + _GAMMA) & _MASK], dtype=np.uint64))[0])
    return state


def permutation(count: int, *key: int) -> Int64s:
    """The permutation of 0..count that belongs to a key."""
    places = np.arange(1, count + 1, dtype=np.uint64)
    places *= np.uint64(_GAMMA)
    places += np.uint64(_chain(*key))
    return np.argsort(_mix(places))


class EpochOrder:
    """Positions 0..records of one epoch, and the records at them; memory grows with the blocks only."""

    def __init__(
        self, file_records: Sequence[int], seed: int, epoch: int, block: int, window: int, shuffle: bool = True
    ) -> None:
        if block < 1 or window < 1:
            raise ValueError(f"block and window are at least 1, not {block} and {window}")
        counts = np.asarray(file_records, dtype=np.int64).reshape(-1)
        if (counts < 0).any():
            raise ValueError("a file cannot hold fewer than 0 records")
        self._file_ends: Int64s = np.cumsum(counts)
        self.records_total = int(counts.sum())
        self._seed, self._epoch, self._window = seed & _MASK, epoch, window
        self._shuffle = shuffle and self.records_total > 1
        self._kept: dict[int, Int64s] = {}
        if self._shuffle:
            self._cut(counts, block)

    def _cut(self, counts: Int64s, block: int) -> None:
        """Lays out the permuted blocks: the first record of each, and the position where each starts."""
        blocks = -(-counts // block)
        file_of = np.repeat(np.arange(len(counts)), blocks)
        within = np.arange(len(file_of), dtype=np.int64) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        first = (self._file_ends - counts)[file_of] + within * block
        size = np.minimum(block, counts[file_of] - within * block)
        del file_of, within
        chosen = permutation(len(first), self._seed, self._epoch, _BLOCKS)
        self._first: Int64s = first[chosen]
        size = size[chosen]
        self._start: Int64s = np.cumsum(size) - size

    def records(self, start: int, stop: int) -> Int64s:
        """Global record numbers (files one after the other) at positions start..stop."""
        if not 0 <= start <= stop <= self.records_total:
            raise ValueError(f"positions {start} to {stop} are outside the epoch's 0 to {self.records_total}")
        if not self._shuffle or start == stop:
            return np.arange(start, stop, dtype=np.int64)
        positions: Int64s = np.concatenate(
            [self._places(w, start, stop) for w in range(start // self._window, (stop - 1) // self._window + 1)]
        )
        blocks: Int64s = np.searchsorted(self._start, positions, side="right") - 1
        numbers: Int64s = self._first[blocks] + (positions - self._start[blocks])
        return numbers

    def runs(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """The (file index, first, end) ranges to read for positions start..stop, sorted and merged."""
        return self.merge(np.sort(self.records(start, stop)))

    def merge(self, numbers: Int64s) -> list[tuple[int, int, int]]:
        """Sorted record numbers as (file index, first, end) ranges inside the files."""
        if not len(numbers):
            return []
        files = np.searchsorted(self._file_ends, numbers, side="right")
        breaks = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(files) != 0)) + 1
        heads = np.concatenate(([0], breaks))
        tails = np.concatenate((breaks, [len(numbers)]))
        offsets = np.concatenate(([0], self._file_ends))[files[heads]]
        firsts = numbers[heads] - offsets
        return list(zip(files[heads].tolist(), firsts.tolist(), (firsts + (tails - heads)).tolist(), strict=True))

    def _places(self, number: int, start: int, stop: int) -> Int64s:
        """The part of window `number` that covers positions start..stop, as positions among the permuted blocks."""
        begin = number * self._window
        places = self._kept.get(number)
        if places is None:
            count = min(self._window, self.records_total - begin)
            places = permutation(count, self._seed, self._epoch, _WINDOWS, number) + begin
            self._kept[number] = places
            while len(self._kept) > _KEPT_WINDOWS:
                self._kept.pop(next(iter(self._kept)), None)
        return places[max(start - begin, 0) : stop - begin]


def shuffle_sizes(shard_records: int) -> tuple[int, int]:
    """(block, window) that suit shards of this size: a window per shard, so no two workers read the same block twice,
    and sixteen blocks or more in it, so that a minibatch mixes distant parts of the data."""
    return max(1, min(64, shard_records // 16)), max(1, shard_records)
