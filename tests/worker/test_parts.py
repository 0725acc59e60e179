"""Parts read ahead: the same records and random numbers as without, on any worker."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elasticdl.core.steps import StepPlan
from elasticdl.data.reader import open_reader
from elasticdl.errors import DataError, ModelError
from elasticdl.job.spec import JobSpec
from elasticdl.strategies.allreduce.parts_ahead import PartsAhead
from elasticdl.worker.batches import Source
from tests.processes.harness import write_ids

PLAN = StepPlan(records=60, batch=8, virtual=2, epochs=1)
SPEC = JobSpec(minibatch_size=4, num_workers=2)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    reader = open_reader(str(write_ids(tmp_path / "ids", 60)), {}, flag="")
    return Source(reader, reader.describe(), SPEC, "training")


def numbers(records: list[Any]) -> np.ndarray:
    return np.array([struct.unpack("<q", r)[0] for r in records])


def plain(records, mode, metadata):
    return numbers(records), None


def with_python(records, mode, metadata):
    return numbers(records) + random.random(), None


def with_numpy(records, mode, metadata):
    return numbers(records) + np.random.rand(len(records)), None


def with_torch(records, mode, metadata):
    return numbers(records) + torch.rand(len(records)).numpy(), None


def taken(source: Source, feed: Any, virtual: tuple[int, ...], seed: int = 0) -> tuple[dict[Any, list[float]], bool]:
    """What the parts of these virtual workers are fed with, step by step, with the following ones read ahead."""
    ahead = PartsAhead(source, feed, seed)
    parts = [PLAN.part(step, v) for step in range(PLAN.total_steps) for v in virtual]
    found = {}
    for place, part in enumerate(parts):
        found[part.step, part.virtual] = ahead.take(part, parts[place + 1 : place + 4]).features.tolist()
        torch.rand(3), np.random.rand(), random.random()  # a model that draws, too
    return found, ahead.draws


@pytest.mark.parametrize(
    ("feed", "draws"), [(plain, False), (with_python, True), (with_numpy, True), (with_torch, True)]
)
def test_a_part_is_fed_the_same_on_every_worker(source: Source, feed: Any, draws: bool) -> None:
    both, drew = taken(source, feed, (0, 1))
    assert drew is draws
    for virtual in (0, 1):
        one, _ = taken(source, feed, (virtual,))
        assert one == {key: value for key, value in both.items() if key[1] == virtual}
    if draws:
        assert both != taken(source, feed, (0, 1), seed=1)[0]


def test_a_feed_that_begins_to_draw_late_is_noticed_and_called_in_the_training_thread(source: Source) -> None:
    calls = 0

    def late(records, mode, metadata):
        nonlocal calls
        calls += 1
        return (with_numpy if calls > 6 else plain)(records, mode, metadata)

    _, drew = taken(source, late, (0, 1))
    assert drew


class Torn(Source):
    """Its first read fails."""

    reads = 0

    def read(self, *arguments: Any) -> tuple[list[Any], Any]:
        self.reads += 1
        if self.reads == 1:
            raise DataError("ids", "the connection was reset", "try again")
        return super().read(*arguments)


def test_a_read_error_that_is_gone_on_the_second_try_costs_nothing(source: Source) -> None:
    torn = Torn(source.reader, source.dataset, SPEC, "training")
    assert taken(torn, with_numpy, (0, 1)) == taken(source, with_numpy, (0, 1))
    again = Torn(source.reader, source.dataset, SPEC, "training")
    found = PartsAhead(again, plain, 0).take(PLAN.part(0, 0), ())
    assert not found.bad and found.numbers.tolist() == source.read(0, 0, 4)[1].tolist()


def test_records_that_fail_together_and_none_alone_end_the_job(source: Source) -> None:
    def few(records, mode, metadata):
        if len(records) > 2:
            raise ModelError("m.py", "too many records")
        return plain(records, mode, metadata)

    with pytest.raises(ModelError, match="too many records"):
        PartsAhead(source, few, 0).take(PLAN.part(0, 0), ())
