"""A sum over all ranks that begins while its numbers are still being computed, in whatever order is fastest.

The vector is cut into buckets. Each is handed in as soon as it is filled, and its all-reduce starts at once; all ranks
hand them in in the same order. The flag travels in the last one, so that no rank is done before all have handed in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue

import torch

from elasticdl import faults
from elasticdl.collective.exchange import Headers
from elasticdl.collective.group import Group, Link

BUCKET_FLOATS = 1 << 19  # at least; measured: smaller costs messages, larger leaves less to overlap

Given = SimpleQueue["tuple[slice, torch.cuda.Event | None] | None"]


def cut(sizes: Sequence[int]) -> list[range]:
    """Buckets of tensors of these sizes, by number: the last tensors first, since a backward pass ends with the first.

    A bucket's tensors follow each other in the vector; none but the last bucket is smaller than BUCKET_FLOATS.
    """
    found, stop, floats = [], len(sizes), 0
    for number in reversed(range(len(sizes))):
        floats += sizes[number]
        if floats >= BUCKET_FLOATS or number == 0:
            found.append(range(number, stop))
            stop, floats = number, 0
    return found


class BucketSum:
    """One sum, from the first bucket that is handed in to its end.

    `vector` is to be filled bucket by bucket, and holds the sum after `finish`. It is a new one for each sum, since an
    optimizer may keep a part of it. When the group is called off or breaks it is abandoned: a peer may write to it yet.
    """

    def __init__(self, group: Group, size: int, buckets: Sequence[slice], device: torch.device) -> None:
        """`buckets` cover a vector of this size; the last one ends with it."""
        group.check()
        self._group, self._size, self._buckets, self._device = group, size, buckets, device
        self._given = 0
        self.vector = torch.empty(size + 1, device=device)
        if group.size == 1:
            return
        self._host = self.vector
        if device.type != "cpu":  # Gloo does not read a device's memory
            self._host = group.buffer("staged", size + 1, pinned=True)
        self._queue: Given = SimpleQueue()
        queue, host = self._queue, self._host

        def carry_out(link: Link) -> None:
            if size not in group.sizes_agreed:
                Headers(group, link, size, False).wait()  # unequal sizes would be Gloo's end
            works = []
            # What is handed in last ends it, and so does whoever gives the group up.
            while (bucket := queue.get()) is not None:
                if bucket[1] is not None:
                    bucket[1].synchronize()
                works.append(link.all_reduce(host[bucket[0]]))
                if len(works) == 1:
                    faults.point("worker.in_exchange")
            for work in works:
                work.wait()

        self._errand = group.begin(carry_out, give_up=lambda: queue.put(None))

    @property
    def left(self) -> range:
        """The buckets that were not handed in yet."""
        return range(self._given, len(self._buckets))

    def give(self) -> None:
        """The next bucket is filled."""
        bucket = self._buckets[self._given]
        self._given += 1
        if not self.left:
            bucket = slice(bucket.start, self._size + 1)
        if self._group.size == 1:
            return
        event = None
        if self._host is not self.vector:
            self._host[bucket].copy_(self.vector[bucket], non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._queue.put((bucket, event))

    def finish(self, flag: bool) -> tuple[torch.Tensor, bool]:
        """Hand in what is left, and wait: the sum, and whether any rank's flag was set."""
        if self._group.size == 1:
            self._group.check()
            return self.vector[: self._size], flag
        self.vector[self._size] = float(flag)
        while self.left:
            self.give()
        self._queue.put(None)
        self._group.wait(self._errand)
        if self._host is not self.vector:
            self.vector.copy_(self._host, non_blocking=True)
        return self.vector[: self._size], bool(self._host[self._size] > 0)


def plain_total(group: Group, contribution: torch.Tensor, flag: bool) -> tuple[torch.Tensor, bool]:
    """The sum of vectors that are all there, and whether any rank's flag was set."""
    size = contribution.numel()
    total = BucketSum(group, size, [slice(0, size)], contribution.device)
    total.vector[:size].copy_(contribution)
    return total.finish(flag)
