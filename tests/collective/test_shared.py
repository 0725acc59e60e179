"""Memory that workers on one machine share for their sums: found by its word alone, and never taken for another's."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from elasticdl.collective.buckets import BucketSum
from elasticdl.collective.group import Group
from elasticdl.collective.shared import Segment, Shared, reached
from elasticdl.collective.store import RelayedStore
from elasticdl.errors import GroupBroken

SECONDS = 20.0
SIZE = 1003
BUCKETS = [slice(500, SIZE), slice(1, 500), slice(0, 1)]


def worlds(size: int) -> list[Group]:
    """All members of one world, in this process."""
    stores: list[RelayedStore] = []

    def say(key: str, value: bytes) -> None:
        for store in stores:
            store.deliver(key, value)

    stores += [RelayedStore(1, say, SECONDS) for _ in range(size)]
    names = list("abcd"[:size])
    with ThreadPoolExecutor(size) as pool:
        built = [pool.submit(Group, 1, rank, names, stores[rank], "127.0.0.1", SECONDS) for rank in range(size)]
        return [group.result() for group in built]


def sharing(size: int) -> tuple[list[Group], list[Segment]]:
    groups, segments = worlds(size), [Segment(SIZE) for _ in range(size)]
    offers = [segment.offer(1) for segment in segments]
    for rank, group in enumerate(groups):
        theirs = [reached(offer, SIZE) for offer in offers]
        places = [segments[rank].place if r == rank else place for r, place in enumerate(theirs)]
        group.shared = Shared([place for place in places if place is not None], rank, 1)
    return groups, segments


def add_up(group: Group, numbers: torch.Tensor, flag: bool = False) -> tuple[torch.Tensor, bool]:
    assert group.shared is not None
    group.shared.mine.fill_(float("nan"))  # of a step before
    found = BucketSum(group, group.shared.mine, BUCKETS)
    for bucket in BUCKETS[:2]:
        group.shared.mine[bucket] = numbers[bucket]
        found.give()
    group.shared.mine[BUCKETS[2]] = numbers[BUCKETS[2]]
    return found.finish(flag)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_members_get_the_same_bits_step_after_step(size: int) -> None:
    groups, _ = sharing(size)
    with ThreadPoolExecutor(size) as pool:
        for step in range(20):
            brought = [torch.randn(SIZE, generator=torch.Generator().manual_seed(step * 10 + r)) for r in range(size)]
            sums = [pool.submit(add_up, g, n, step == r) for r, (g, n) in enumerate(zip(groups, brought, strict=True))]
            totals = [s.result()[0] for s in sums]
            assert {s.result()[1] for s in sums} == {step < size}
            assert all(torch.equal(total, totals[0]) for total in totals)
            torch.testing.assert_close(totals[0], torch.stack(brought).sum(0))
    for group in groups:
        assert group.shared is not None and all(t.data_ptr() != group.shared.mine.data_ptr() for t in totals)
        group.close()


def test_numbers_of_a_member_that_has_gone_on_to_another_generation_do_not_count() -> None:
    (one, other), segments = sharing(2)
    segments[1].offer(2)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(add_up, group, torch.ones(SIZE)) for group in (one, other)]
        for answer in answers:
            with pytest.raises(GroupBroken, match=r"another generation|Connection|closed|reset"):
                answer.result()
    one.close()
    other.close()


def test_what_is_not_there_or_is_another_ones_is_not_reached() -> None:
    segment = Segment(SIZE)
    offer = segment.offer(7)
    there = reached(offer, SIZE)
    assert there is not None and int(there.generation) == 7
    segment.place.vector.fill_(3.0)
    assert there.vector.sum() == 3.0 * SIZE
    assert reached(offer, SIZE + 1) is None, "of a model of another size"
    assert reached({**offer, "word": "0" * 16}, SIZE) is None
    assert reached({**offer, "file": 999}, SIZE) is None
    assert reached({**offer, "process": 2**22 + 1}, SIZE) is None, "of a process on another machine"
    with pytest.raises(OSError, match="not permitted"):
        os.truncate(f"/proc/{os.getpid()}/fd/{offer['file']}", 0)
