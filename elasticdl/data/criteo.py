"""Synthetic data of Criteo's shape: a label, 13 counts and 26 categories, with a signal that a model can learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.data.columns import Columns, Row, to_example
from elasticdl.data.convert import CsvWriter
from elasticdl.data.output import OutputFolder, RecordWriter
from elasticdl.data.recordio import RecordIOWriter

Array = npt.NDArray[Any]

COUNTS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
COLUMNS = ("label", *COUNTS, *CATEGORIES)
_KINDS: Columns = {"label": "int", **dict.fromkeys(COUNTS, "float"), **dict.fromkeys(CATEGORIES, "text")}

_BATCH = 8192
_MISSING = 0.1
# Values per category, spread like the original's: a few tiny ones, many in the thousands.
_SIZES_1_TO_13 = (40, 500, 9000, 8000, 60, 12, 4000, 120, 3, 6000, 3000, 9000, 2500)
_SIZES_14_TO_26 = (26, 4000, 9000, 10, 2200, 900, 4, 9000, 12, 15, 6000, 60, 4500)
_VOCABULARY = (*_SIZES_1_TO_13, *_SIZES_14_TO_26)


@dataclass(frozen=True)
class Batch:
    """Rows as arrays; a missing count is NaN, a missing category -1."""

    labels: Array
    counts: Array
    categories: Array
    chances: Array  # of a click: what a perfect model would predict


class Clicks:
    """Draws rows; each category value has a weight and a small vector, and clicks follow their sum and products."""

    def __init__(self, seed: int) -> None:
        self._hidden = np.random.Generator(np.random.PCG64(seed))
        self._weights = [self._normal(size) * 0.35 for size in _VOCABULARY]
        self._vectors = [self._normal(size * 4).reshape(size, 4) * 0.12 for size in _VOCABULARY]
        self._slopes = self._normal(len(COUNTS)) * 0.25
        self._bias = -1.1
        self._draws = np.random.Generator(np.random.PCG64([seed, 1]))

    def _normal(self, size: int) -> Array:
        """Roughly normal numbers from uniform ones, whose stream does not change between versions of numpy."""
        normal: Array = self._hidden.random((size, 12)).sum(axis=1) - 6
        return normal

    def batch(self, size: int) -> Batch:
        draw = self._draws.random
        counts = np.floor(np.exp(draw((size, len(COUNTS))) * 6) - 1)
        categories = np.empty((size, len(CATEGORIES)), dtype=np.int64)
        for place, vocabulary in enumerate(_VOCABULARY):
            # Popular values first: the logarithm of the rank is even, as in Zipf's law.
            categories[:, place] = np.minimum(np.exp(draw(size) * np.log(vocabulary + 1)) - 1, vocabulary - 1)
        missing_counts = draw(counts.shape) < _MISSING
        missing_categories = draw(categories.shape) < _MISSING / 2
        levels = np.where(missing_counts, 0, np.log1p(counts) / 3 - 1) @ self._slopes + self._bias
        total = np.zeros((size, 4))
        squares = np.zeros((size, 4))
        for place in range(len(CATEGORIES)):
            present = ~missing_categories[:, place]
            levels += self._weights[place][categories[:, place]] * present
            vectors = self._vectors[place][categories[:, place]] * present[:, None]
            total += vectors
            squares += vectors**2
        levels += ((total**2 - squares) / 2).sum(axis=1)
        chances = 1 / (1 + np.exp(-levels))
        labels = (draw(size) < chances).astype(np.int64)
        return Batch(
            labels, np.where(missing_counts, np.nan, counts), np.where(missing_categories, -1, categories), chances
        )


def write_criteo(
    target: Path,
    records: int,
    seed: int,
    *,
    to: str = "csv",
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """Makes target/train with `records` rows and target/test with a tenth of that; returns the best possible AUC."""
    clicks = Clicks(seed)
    parts = [("train", records, 4), ("test", max(1, records // 10), 1)]
    folders = [OutputFolder(target / name, force) for name, _, _ in parts]
    total, done = sum(size for _, size, _ in parts), 0
    labels, chances = [], []
    for folder, (name, size, files) in zip(folders, parts, strict=True):
        with folder as place:
            files = min(files, size)
            for number in range(files):
                rows = size * (number + 1) // files - size * number // files
                path = place / f"data-{number:05d}.{to}"
                writer: RecordWriter = CsvWriter(path, list(COLUMNS)) if to == "csv" else RecordIOWriter(path)
                with writer as file:
                    while rows:
                        batch = clicks.batch(min(rows, _BATCH))
                        for row in _rows(batch):
                            file.write(row if to == "csv" else to_example(row, _KINDS))
                        rows -= len(batch.labels)
                        done += len(batch.labels)
                        if progress:
                            progress(done, total)
                        if name == "test":
                            labels.append(batch.labels)
                            chances.append(batch.chances)
    return area_under_curve(np.concatenate(labels), np.concatenate(chances))


def area_under_curve(labels: Array, scores: Array) -> float:
    """The chance that a click scores above a row without one."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    clicks = int(labels.sum())
    others = len(labels) - clicks
    if not clicks or not others:
        return 0.5
    return float((ranks[labels == 1].sum() - clicks * (clicks + 1) / 2) / (clicks * others))


def _rows(batch: Batch) -> Iterator[Row]:
    counts = [["" if value != value else int(value) for value in row] for row in batch.counts.tolist()]
    # Names like the original's: eight hexadecimal digits, the same for the same value of the same column.
    names = (batch.categories + (np.arange(len(CATEGORIES)) << 16)).astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):  # one to one, so no two values share a name
        names = (names ^ (names >> np.uint32(shift))) * np.uint32(factor)
    words = [
        [f"{name:08x}" if value >= 0 else "" for name, value in zip(row, values, strict=True)]
        for row, values in zip(names.tolist(), batch.categories.tolist(), strict=True)
    ]
    for label, c, w in zip(batch.labels.tolist(), counts, words, strict=True):
        yield dict(zip(COLUMNS, (label, *c, *w), strict=True))
