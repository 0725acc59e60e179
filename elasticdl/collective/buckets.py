"""A sum over all ranks, in any order of additions, that starts while its numbers are still being computed.

The vector is cut into buckets. Each is all-reduced as soon as it is filled; all ranks fill them in the same order. Each
rank sends its flag after its last bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch

from elasticdl import faults
from elasticdl.collective.exchange import Headers
from elasticdl.collective.group import Group, PeerLink
from elasticdl.collective.peer_sockets import FILLED, READ, READY
from elasticdl.collective.shared import Shared

BUCKET_FLOATS = 1 << 19  # at least: for 2 MB the cost of a message hardly matters

SIGNAL_FLOATS = 1 << 20  # that are filled before the other members get a signal

# A bucket, and the event of a GPU that has filled it; at the end this rank's flag, or None to abandon the sum.
Given = tuple[slice, Any] | bool | None


def cut(sizes: Sequence[int], least: int = BUCKET_FLOATS) -> list[range]:
    """Buckets of tensors of these sizes, by number: the last tensors first, in the order of a backward pass.

    A bucket's tensors are neighbours in the vector; only the last bucket may have fewer than `least` floats.
    """
    found, stop, floats = [], len(sizes), 0
    for number in reversed(range(len(sizes))):
        floats += sizes[number]
        if floats >= least or number == 0:
            found.append(range(number, stop))
            stop, floats = number, 0
    return found


class BucketSum:
    """One sum, from its first bucket to its end.

    The caller fills `vector` bucket by bucket. When the group is aborted or breaks, it does not use the vector again: a
    peer may still write to it. A shared vector is read by the other members, and the sum is a new tensor.
    """

    def __init__(self, group: Group, vector: torch.Tensor, buckets: Sequence[slice]) -> None:
        """`buckets` cover the vector, in the order in which they are filled."""
        group.check()
        self._group, self._buckets, self._given = group, buckets, 0
        self.vector = self._summed = vector
        if group.alone:
            return
        shared = group.shared if group.shared is not None and vector is group.shared.mine else None
        if vector.is_cuda and not group.on_devices:  # Gloo does not read a GPU's memory
            self._summed = group.buffer("staged", vector.numel(), pinned=True)
        elif shared is not None:
            self._summed = torch.empty(vector.numel(), dtype=torch.float32)
        self._queue: SimpleQueue[Given] = SimpleQueue()
        sender = _Sender(group, self._queue, self._summed, shared)
        self._operation = group.begin(sender.carry_out, give_up=lambda: sender.queue.put(None))

    @property
    def alone(self) -> bool:
        """Whether no other rank waits for the buckets."""
        return self._group.alone

    @property
    def left(self) -> range:
        """The buckets that are not filled yet."""
        return range(self._given, len(self._buckets))

    def start_next(self) -> None:
        """The next bucket is filled: start its sum."""
        bucket = self._buckets[self._given]
        self._given += 1
        if self.alone:
            return
        event = None
        if self.vector.is_cuda:
            if self._summed is not self.vector:
                self._summed[bucket].copy_(self.vector[bucket], non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._queue.put((bucket, event))

    def finish(self, flag: bool) -> tuple[torch.Tensor, bool]:
        """All buckets are filled: wait for the sum, and whether any rank's flag was set."""
        if self.alone:
            self._group.check()
            return self.vector, flag
        while self.left:
            self.start_next()
        self._queue.put(flag)
        any_flag = self._group.wait(self._operation)
        if self.vector.is_cuda and self._summed is not self.vector:
            self.vector.copy_(self._summed, non_blocking=True)
            return self.vector, any_flag
        return self._summed, any_flag


@dataclass(frozen=True)
class _Sender:
    """The communication thread's side of a sum: it starts each bucket in the queue, until the flag ends it."""

    group: Group
    queue: SimpleQueue[Given]
    vector: torch.Tensor
    shared: Shared | None = None

    def carry_out(self, link: PeerLink) -> bool:
        if self.shared is not None:
            return self._read_shared(self.shared)
        if not self.vector.is_cuda:
            return self._carry_out(link)
        stream = torch.cuda.Stream(self.vector.device)
        with torch.cuda.stream(stream):
            any_flag = self._carry_out(link)
        # The step must not be committed before NCCL has finished, and was not aborted.
        stream.synchronize()
        link.check()
        return any_flag

    def _carry_out(self, link: PeerLink) -> bool:
        size = self.vector.numel()
        if size not in self.group.sizes_agreed:
            Headers(self.group, link, size, False).wait()  # unequal sizes would crash Gloo
        works = []
        while isinstance(given := self.queue.get(), tuple):
            bucket, event = given
            if event is not None and self.vector.is_cuda:
                torch.cuda.current_stream(self.vector.device).wait_event(event)
            elif event is not None:
                event.synchronize()
            works.append(link.all_reduce(self.vector[bucket]))
            if len(works) == 1:
                faults.point("worker.in_exchange")
        if given is None:
            raise RuntimeError("the group was abandoned")
        headers = Headers(self.group, link, size, given)
        for work in works:
            work.wait()
        return headers.wait()

    def _read_shared(self, shared: Shared) -> bool:
        sockets = shared.sockets
        filled: list[slice] = []  # since the last signal
        coming: list[list[slice]] = []  # not added up yet, by signal

        def add(buckets: list[slice]) -> None:
            for bucket in buckets:
                shared.add(bucket, self.vector)

        while isinstance(given := self.queue.get(), tuple):
            filled.append(given[0])
            if sum(bucket.stop - bucket.start for bucket in filled) < SIGNAL_FLOATS:
                continue
            sockets.send(FILLED)
            coming.append(filled)
            filled = []
            if len(coming) > 1:  # the previous one: most likely all members have filled it by now
                sockets.receive(FILLED)
                add(coming.pop(0))
        if given is None:
            raise RuntimeError("the group was abandoned")
        sockets.send(READY, given)
        for buckets in coming:
            sockets.receive(FILLED)
            add(buckets)
        any_flag = sockets.receive(READY) or given
        faults.point("worker.in_exchange")
        add(filled)
        shared.check()
        sockets.send(READ)
        sockets.receive(READ)
        return any_flag
