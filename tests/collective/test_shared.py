"""Memory that workers on one machine share for their sums: found by its key alone, and never mistaken for another."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from elasticdl.collective.buckets import BucketSum
from elasticdl.collective.exchange import tree_total
from elasticdl.collective.group import Group
from elasticdl.collective.shared import Segment, mapped
from elasticdl.collective.sums import Sums
from elasticdl.collective.tree import runs
from elasticdl.errors import GroupBroken
from tests.collective.member import contribution
from tests.collective.oracle import tree_sum
from tests.collective.sharing import sharing, world

SIZE = 1003
LONG = 150_003  # several pieces of a deterministic sum
BUCKETS = [slice(500, SIZE), slice(1, 500), slice(0, 1)]


def add_up(group: Group, numbers: torch.Tensor, flag: bool = False) -> tuple[torch.Tensor, bool]:
    assert group.shared is not None
    group.shared.mine.fill_(float("nan"))  # of a step before
    found = BucketSum(group, group.shared.mine, BUCKETS)
    for bucket in BUCKETS[:2]:
        group.shared.mine[bucket] = numbers[bucket]
        found.start_next()
    group.shared.mine[BUCKETS[2]] = numbers[BUCKETS[2]]
    return found.finish(flag)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_members_get_the_same_bits_step_after_step(size: int) -> None:
    groups, _ = sharing(size, SIZE)
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


def tree_up(group: Group, virtual: int, step: int, flag: bool = False, means: int = 0) -> tuple[torch.Tensor, bool]:
    """A deterministic sum, as a worker makes it."""
    sums, run = Sums(virtual), runs(virtual, group.size)[group.rank]
    for v in range(*run):
        place = group.shared.mine if group.shared is not None and v == run[1] - 1 else None
        sums.add(v, contribution(LONG, step, v), place)
    return tree_total(group, sums.nodes(*run), virtual, flag, means)


@pytest.mark.parametrize("virtual", [4, 6, 8])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_deterministic_sum_has_the_bits_of_the_plain_tree_through_memory_and_through_sockets(
    size: int, virtual: int
) -> None:
    groups, apart = sharing(size, LONG)[0], world(size)
    for group in groups:
        assert group.shared is not None
        group.shared.mine.fill_(float("nan"))
    means = LONG - 100
    with ThreadPoolExecutor(2 * size) as pool:
        for step in range(size + 1):
            wanted = tree_sum([contribution(LONG, step, v) for v in range(virtual)])
            wanted[:means] /= virtual
            sums = [pool.submit(tree_up, g, virtual, step, step == g.rank, means) for g in (*groups, *apart)]
            assert {s.result()[1] for s in sums} == {step < size}
            for total, _ in (s.result() for s in sums):
                assert torch.equal(total.view(torch.int32), wanted.view(torch.int32))
    for group in (*groups, *apart):
        group.close()


@pytest.mark.parametrize("deterministic", [False, True])
def test_numbers_of_a_member_that_moved_on_to_another_generation_do_not_count(deterministic: bool) -> None:
    (one, other), segments = sharing(2, LONG if deterministic else SIZE)
    segments[1].offer(2)

    def sum_up(group: Group) -> tuple[torch.Tensor, bool]:
        return tree_up(group, 4, 1) if deterministic else add_up(group, torch.ones(SIZE))

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(sum_up, group) for group in (one, other)]
        for answer in answers:
            with pytest.raises(GroupBroken, match=r"another generation|Connection|closed|reset"):
                answer.result()
    one.close()
    other.close()


def test_memory_that_is_gone_or_of_another_process_is_not_mapped() -> None:
    segment = Segment(SIZE)
    offer = segment.offer(7)
    there = mapped(offer, SIZE)
    assert segment.reserve()
    assert there is not None and int(there.generation) == 7
    segment.place.vector.fill_(3.0)
    assert there.vector.sum() == 3.0 * SIZE
    assert mapped(offer, SIZE + 1) is None, "of a model of another size"
    assert mapped({**offer, "key": "0" * 16}, SIZE) is None
    assert mapped({**offer, "file": 999}, SIZE) is None
    assert mapped({**offer, "process": 2**22 + 1}, SIZE) is None, "of a process on another machine"
    with pytest.raises(OSError, match="not permitted"):
        os.truncate(f"/proc/{os.getpid()}/fd/{offer['file']}", 0)


def test_memory_is_allocated_when_it_is_reserved() -> None:
    segment = Segment(1 << 20)
    file = Path(f"/proc/{os.getpid()}/fd/{segment.offer(1)['file']}")
    assert file.stat().st_blocks * 512 < 1 << 20
    assert segment.reserve()
    assert file.stat().st_blocks * 512 >= 4 << 20


def test_worlds_that_share_memory_leave_no_open_files_and_no_threads_behind() -> None:
    segments: Sequence[Segment] = ()

    def churn(worlds: int) -> tuple[int, int]:
        nonlocal segments
        for _ in range(worlds):
            groups, segments = sharing(2, SIZE, segments)
            with ThreadPoolExecutor(2) as pool:
                for answer in [pool.submit(add_up, group, torch.ones(SIZE)) for group in groups]:
                    answer.result()
            for group in groups:
                group.close()
        for thread in threading.enumerate():
            if thread.name.startswith("world "):
                thread.join(10)
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    before, after = churn(5), churn(30)
    assert after[0] <= before[0] + 3 and after[1] <= before[1] + 1, f"{before} files and threads became {after}"
