"""Reads and feeds the records of the next parts in a thread of its own, ahead of the computation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from elasticdl.core.steps import Part, part_seed
from elasticdl.errors import DataError, ModelError
from elasticdl.frameworks.determinism import set_random_state
from elasticdl.worker.bad_records import Sieve
from elasticdl.worker.batches import Feed, Minibatch, ReadAhead, Source

AHEAD = 2
TRIED = 2  # how often a feed is watched in the training thread before it runs in another


class PartsAhead:
    """Reads ahead always; feeds ahead only while the feed draws no random numbers.

    A feed's random numbers start from the seed of its part. The model uses the same generators at the same time, so a
    feed that draws random numbers is called in the training thread.
    """

    def __init__(self, source: Source, feed: Feed, seed: int) -> None:
        self._source, self._feed, self._seed = source, feed, seed
        self._ahead: ReadAhead[Part, tuple[Minibatch | None, Any, Any]] = ReadAhead()
        self._watched, self.draws = 0, False

    def take(self, part: Part, then: Sequence[Part]) -> Minibatch:
        """The records of this part, less those that cannot be read or fed; those of `then` are started meanwhile."""
        feed = self._watched >= TRIED and not self.draws
        try:
            minibatch, records, numbers = self._ahead.take({p: partial(self._load, p, feed) for p in (part, *then)})
            return minibatch or self._feed_here(part, records, numbers)
        except (ModelError, DataError):
            pass  # it may be gone when it is tried again
        found = self._sifted(part)
        if not found.records:
            return Minibatch(None, None, np.empty(0, np.int64), found.bad)
        # Where records fail together, and none alone, this raises.
        return replace(self._feed_here(part, found.records, np.array(found.numbers)), bad=found.bad)

    def _sifted(self, part: Part) -> Sieve:
        """Read in the thread that reads, fed in the one that calls."""

        def read(start: int, stop: int) -> tuple[list[Any], Any]:
            return self._ahead.pool.submit(self._source.read, part.epoch, start, stop).result()

        def number(position: int) -> int:
            return self._ahead.pool.submit(self._source.number, part.epoch, position).result()

        def feed(records: list[Any]) -> None:
            set_random_state(part_seed(self._seed, part.step, part.virtual))
            self._feed(records, self._source.mode, self._source.reader.metadata)

        found = Sieve(read, feed, number)
        found.sift(part.start, part.stop)
        return found

    def _load(self, part: Part, feed: bool) -> tuple[Minibatch | None, Any, Any]:
        """Records, and what the feed makes of them if it may be called here."""
        records, numbers = self._source.read(part.epoch, part.start, part.stop)
        if not feed or self.draws:
            return None, records, numbers
        before = _drawn_from()
        features, labels = self._feed(records, self._source.mode, self._source.reader.metadata)
        if before != _drawn_from():  # the model may have drawn them, too: better slow than wrong
            self.draws = True
            return None, records, numbers
        return Minibatch(features, labels, numbers), None, None

    def _feed_here(self, part: Part, records: Any, numbers: Any) -> Minibatch:
        set_random_state(part_seed(self._seed, part.step, part.virtual))
        before = (*_drawn_from(), torch.get_rng_state().numpy().tobytes())
        features, labels = self._feed(records, self._source.mode, self._source.reader.metadata)
        self._watched += 1
        if before != (*_drawn_from(), torch.get_rng_state().numpy().tobytes()):
            self.draws = True
        return Minibatch(features, labels, numbers)


def _drawn_from() -> tuple[object, ...]:
    """The state of the generators that feeds use."""
    state = np.random.get_state(legacy=False)["state"]
    return random.getstate(), state["key"].tobytes(), state["pos"]
