"""A worker's share of a step where the order of additions does not matter (--deterministic=false).

The gradients of the worker's parts are added up. During the backward pass of the last part they are sent to the other
workers, one bucket after another. A sum cannot be taken apart again: when an exchange fails after it began, the worker
computes its parts of that step again.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.api.terms import Model
from elasticdl.collective.buckets import BUCKET_FLOATS, BucketSum, cut
from elasticdl.collective.group import Group
from elasticdl.errors import CalledOff, ElasticDLError, GroupBroken


class PlainSums:
    """The sum of a worker's parts, weighted for means: [gradients | changes of buffers | loss | more]."""

    def __init__(self, model: Model, more: int, bucket_floats: int = BUCKET_FLOATS) -> None:
        self._model, self._values = model, model.values
        self.virtual = 0
        if self._values is None:  # all gradients come at once, in one vector with the changes of buffers
            shapes, self._moves = [torch.Size([model.size])], 0
        else:
            shapes, self._moves = [t.shape for t in self._values.trainable], self._values.buffer_size
            self._values.receive = self._take
        self._shapes, sizes = shapes, [int(shape.numel()) for shape in shapes]
        self._starts = [0, *itertools.accumulate(sizes)]
        self._tail = torch.zeros(self._moves + 1 + more, dtype=torch.float32, device=model.device)
        self._buckets = cut(sizes, bucket_floats)
        self._gradients = _Gradients(self._values.trainable, self._arrived) if self._values is not None else None
        self.reset(0)

    @property
    def size(self) -> int:
        return self._starts[-1] + len(self._tail)

    def reset(self, virtual: int) -> None:
        """Start a new step, cut into so many parts, or the same one again."""
        self.virtual = virtual
        self._done: set[int] = set()
        self._vector: torch.Tensor | None = None
        self._shared: torch.Tensor | None = None  # the same one, where it is shared with other members
        self._views: list[torch.Tensor] = []
        self._filled = [False] * len(self._shapes)  # whether each view holds a value yet
        self._tail.zero_()
        self._sum: BucketSum | None = None
        self._share = 0.0
        self._begin_part()

    def missing(self, start: int, stop: int) -> list[int]:
        """The virtual workers of a run that are not computed yet."""
        if not self._done <= set(range(start, stop)):
            self.reset(self.virtual)
        return [v for v in range(start, stop) if v not in self._done]

    def begin(self, weight: float, group: Group, last: bool) -> None:
        """The computation of a part begins; with the worker's last part, the sum begins."""
        self._share = weight / self.virtual
        self._begin_part()
        if self._gradients is not None:
            self._gradients.begin()
        self._make(group)
        if last:
            with contextlib.suppress(CalledOff, GroupBroken):  # `total` raises it
                self._open(group)

    def scale_weight(self, factor: float) -> None:
        """Reduce the weight of the current part, before it is computed."""
        self._share *= factor

    def add(self, virtuals: Sequence[int], loss: float | torch.Tensor, records: npt.NDArray[np.int64] | None) -> None:
        """Add the result of the pass. The audit counts `records` as trained."""
        moves = self._model.contribute(self._share)
        if self._values is None:
            self._take([moves[: self._model.size]], 1.0)
        elif self._moves:
            self._tail[: self._moves] += moves[: self._moves]
        self._tail[self._moves] += (loss.detach() if isinstance(loss, torch.Tensor) else loss) * self._share
        if records is not None:
            self._tail[self._moves + 1 :][torch.as_tensor(records, device=self._tail.device)] += 1.0
        self._done.update(virtuals)

    def abandon(self, virtuals: Sequence[int]) -> None:
        """The current pass has no result."""
        if self._gradients is not None:
            self._gradients.reset()
        if self._ready:
            raise ElasticDLError(
                "elastic.step(None) was called after backward(), when gradients of the part were already added up or "
                "sent to other workers. Call it without backward(), or train with --deterministic=true."
            )
        self._done.update(virtuals)

    def skip(self, virtual: int) -> None:
        """A part without records has no result."""
        self._done.add(virtual)

    def total(self, group: Group, run: tuple[int, int], flag: bool) -> tuple[torch.Tensor, bool]:
        """The sum over all workers, and whether any worker's flag was set."""
        if self._sum is None:  # all parts were computed before this world was formed
            self._open(group)
        assert self._sum is not None
        for view, filled in zip(self._views, self._filled, strict=True):
            if not filled:
                view.zero_()
        self._sum.vector[self._starts[-1] :] = self._tail
        found, virtual = self._sum, self.virtual
        self.reset(virtual)  # in any case: from now on the vector belongs to the sum
        return found.finish(flag)

    def close(self) -> None:
        if self._values is not None:
            self._values.receive = None
        if self._gradients is not None:
            self._gradients.close()

    def _begin_part(self) -> None:
        self._ready: dict[int, Any] = {}  # final gradients of the part
        self._added: set[int] = set()  # those that were added to the vector

    def _open(self, group: Group) -> None:
        starts = self._starts
        slices = [slice(starts[b.start], starts[b.stop]) for b in self._buckets]
        self._sum = BucketSum(group, self._make(group), [*slices, slice(starts[-1], self.size)])

    def _make(self, group: Group) -> torch.Tensor:
        """The vector of this step: a shared one, or a new one, since an optimizer may keep a part of the sum."""
        before, shared = self._vector, group.shared.mine if group.shared is not None else None
        if before is not None and self._shared is shared:
            return before
        vector = self._tail.new_empty(self.size) if shared is None else shared
        self._vector = vector
        self._shared = shared
        if before is not None:  # from the previous world
            vector.copy_(before)
        places = zip(self._starts, self._shapes, strict=False)
        self._views = [vector[start : start + shape.numel()].view(shape) for start, shape in places]
        return vector

    def _arrived(self, number: int, gradient: torch.Tensor) -> None:
        """During a backward pass: a gradient is final."""
        if gradient.is_cuda and (self._sum is None or self._sum.alone):
            return  # a GPU adds all of them faster at once
        self._ready[number] = gradient
        if not gradient.is_cuda:  # while it is in the cache
            self._put(number, _plain(gradient), self._share)
        if self._sum is None:
            return
        for bucket in self._sum.left[:-1]:
            numbers = self._buckets[bucket]
            if not all(n in self._ready for n in numbers):
                break
            self._add({n: self._ready[n] for n in numbers if n not in self._added}, self._share)
            self._sum.start_next()

    def _take(self, gradients: Sequence[Any], share: float | None = None) -> None:
        """After a backward pass: all gradients, or None for a parameter without one."""
        if self._gradients is not None:
            self._gradients.end(bool(self._ready))
        given = {n: g for n, g in enumerate(gradients) if g is not None and n not in self._added}
        self._add(given, self._share if share is None else share)

    def _add(self, gradients: Mapping[int, Any], share: float) -> None:
        tensors = {n: _plain(gradient) for n, gradient in gradients.items()}
        if self._model.device.type == "cpu":
            with torch.no_grad():
                for number, tensor in tensors.items():
                    self._put(number, tensor, share)
            return
        first = [(self._views[n], tensor) for n, tensor in tensors.items() if not self._filled[n]]
        more = [(self._views[n], tensor) for n, tensor in tensors.items() if self._filled[n]]
        for number in tensors:
            self._filled[number] = True
            self._added.add(number)
        with torch.no_grad():  # with few kernel launches, which cost more than the additions
            if first:
                views = [view for view, _ in first]
                torch._foreach_copy_(views, [tensor for _, tensor in first])
                torch._foreach_mul_(views, share)
            if more:
                torch._foreach_add_([view for view, _ in more], [tensor for _, tensor in more], alpha=share)

    def _put(self, number: int, tensor: torch.Tensor, share: float) -> None:
        """Add one gradient in main memory."""
        if self._filled[number]:
            self._views[number].add_(tensor, alpha=share)
        else:
            torch.mul(tensor, share, out=self._views[number])
            self._filled[number] = True
        self._added.add(number)


class _Gradients:
    """Reports when gradients are final.

    A program may call backward() several times for a part, or change gradients before the part is done. The first part
    shows whether it does; if so, all gradients are final only at the end of their part.
    """

    def __init__(self, tensors: Sequence[Any], arrived: Any) -> None:
        self._tensors, self._arrived = list(tensors), arrived
        self._quiet, self._watching = False, False
        self._seen: dict[int, tuple[Any, int]] = {}  # gradients and their versions
        self._kept: dict[int, Any] = {}  # copies of them: writing through .data does not change the version
        self._hooks = [t.register_post_accumulate_grad_hook(self._hook(n)) for n, t in enumerate(self._tensors)]
        self._noisy = False

    def begin(self) -> None:
        self.reset()
        self._watching = True

    def reset(self) -> None:
        """No part is being computed."""
        self._seen.clear()
        self._kept.clear()
        self._watching = False

    def end(self, gone: bool) -> None:
        """The part is done; `gone` if some of its gradients were used as final."""
        changed = any(self._tensors[n].grad is not g or g._version != v for n, (g, v) in self._seen.items())
        changed = changed or any(not _same(_plain(self._tensors[n].grad), kept) for n, kept in self._kept.items())
        self.reset()
        if changed and gone:
            raise ElasticDLError(
                "gradients were changed after backward(), when they were already added up or sent to other workers. "
                "Change them in before_update, call backward() once for a part, or train with --deterministic=true."
            )
        self._quiet, self._noisy = not changed and not self._noisy, self._noisy or changed

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hook(self, number: int) -> Any:
        def arrived(tensor: Any) -> None:
            if not self._watching:
                return
            first = number not in self._seen
            if first:
                self._seen[number] = (tensor.grad, tensor.grad._version)
            if first and self._quiet:
                self._arrived(number, tensor.grad)
            elif first and not self._noisy:
                self._kept[number] = _plain(tensor.grad).clone()

        return arrived


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, since NaN is not equal to itself."""
    return bool(torch.equal(one.view(torch.int32), other.view(torch.int32)))


def _plain(gradient: Any) -> Any:
    """The gradient as a dense float32 tensor."""
    if gradient.layout is not torch.strided:
        gradient = gradient.coalesce().to_dense()
    return gradient.detach().float()
