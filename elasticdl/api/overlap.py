"""What a worker has of one step where the order of additions does not matter (--deterministic=false).

Gradients of the worker's parts are added up as they are. With those of its last part they go to the other workers, one
bucket after another, while the backward pass is still at the earlier layers. What was added up cannot be taken apart
again: when an exchange that has begun comes to nothing, the worker's parts of that step are computed once more.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.collective.buckets import BucketSum, cut
from elasticdl.collective.group import Group
from elasticdl.errors import CalledOff, ElasticDLError, GroupBroken
from elasticdl.frameworks.replica_tensors import Values


class Contributor(Protocol):
    """What is asked of a model: see elastic.Model."""

    size: int
    device: torch.device

    @property
    def values(self) -> Values | None: ...

    def contribute(self, weight: float) -> torch.Tensor: ...


class PlainSums:
    """The sum of a worker's parts, as shares of the means over all: [gradients | moves of buffers | loss | more]."""

    def __init__(self, model: Contributor, more: int) -> None:
        self._model, self._values = model, model.values
        self.virtual = 0
        if self._values is None:  # gradients come at once, when all are there: in one piece, with the moves
            shapes, self._moves = [torch.Size([model.size])], 0
        else:
            shapes, self._moves = [t.shape for t in self._values.trainable], self._values.buffer_size
            self._values.receive = self._take
        self._shapes, sizes = shapes, [int(shape.numel()) for shape in shapes]
        self._starts = [0, *itertools.accumulate(sizes)]
        self._tail = torch.zeros(self._moves + 1 + more, device=model.device)
        self._buckets = cut(sizes)
        self._gradients = _Gradients(self._values.trainable, self._arrived) if self._values is not None else None
        self.forget(0)

    @property
    def size(self) -> int:
        return self._starts[-1] + len(self._tail)

    def forget(self, virtual: int) -> None:
        """A new step, cut into so many parts; or the old one once more."""
        self.virtual = virtual
        self._done: set[int] = set()
        self._held: list[tuple[torch.Tensor, float] | None] = [None] * len(self._shapes)
        self._tail.zero_()
        self._sum: BucketSum | None = None
        self._alone = True
        self._views: list[torch.Tensor] = []
        self._share = 0.0
        self._written = [False] * len(self._shapes)
        self._ready: dict[int, Any] = {}  # gradients of the last part that are final

    def missing(self, start: int, stop: int) -> list[int]:
        """Which virtual workers of a run have yet to be computed."""
        if not self._done <= set(range(start, stop)):
            self.forget(self.virtual)
        return [v for v in range(start, stop) if v not in self._done]

    def begin(self, weight: float, group: Group | None) -> None:
        """A part is about to be computed; with a group where it is the worker's last of the step."""
        self._share = weight / self.virtual
        if self._gradients is not None:
            self._gradients.begin()
        if group is not None:
            with contextlib.suppress(CalledOff, GroupBroken):  # `total` will say so
                self._open(group)

    def lessen(self, factor: float) -> None:
        """The part that is about to be computed counts less than was said."""
        self._share *= factor

    def add(self, virtual: int, loss: float | torch.Tensor, records: npt.NDArray[np.int64] | None) -> None:
        """Keep what the part gave; `records` are those to be marked as trained, where that is counted."""
        moves = self._model.contribute(self._share)
        if self._values is None:
            self._take([moves[: self._model.size]], 1.0)
        elif self._moves:
            self._tail[: self._moves] += moves[: self._moves]
        self._tail[self._moves] += (loss.detach() if isinstance(loss, torch.Tensor) else loss) * self._share
        if records is not None:
            self._tail[self._moves + 1 :][torch.as_tensor(records, device=self._tail.device)] += 1.0
        self._done.add(virtual)

    def skip(self, virtual: int) -> None:
        """A part without records gives nothing."""
        self._done.add(virtual)

    def total(self, group: Group, run: tuple[int, int], flag: bool) -> tuple[torch.Tensor, bool]:
        """The sum over all workers, and whether any worker's flag was set."""
        if self._sum is None:  # every part was there before this world was
            self._open(group)
        assert self._sum is not None
        self._write({n: None for n, written in enumerate(self._written) if not written}, 0.0)
        self._sum.vector[self._starts[-1] : self.size] = self._tail
        found, virtual = self._sum, self.virtual
        self.forget(virtual)  # whatever comes of it: what is handed in is not ours any more
        return found.finish(flag)

    def close(self) -> None:
        if self._values is not None:
            self._values.receive = None
        if self._gradients is not None:
            self._gradients.close()

    def _open(self, group: Group) -> None:
        starts, self._alone = self._starts, group.alone
        slices = [slice(starts[b.start], starts[b.stop]) for b in self._buckets]
        self._sum = BucketSum(group, [*slices, slice(starts[-1], self.size)], self._model.device)
        vector = self._sum.vector
        self._views = [vector[a : a + s.numel()].view(s) for a, s in zip(starts, self._shapes, strict=False)]

    def _arrived(self, number: int, gradient: torch.Tensor) -> None:
        """In the middle of a backward pass, a gradient is final."""
        if self._sum is None or (self._alone and gradient.is_cuda):
            return
        self._ready[number] = gradient
        if not gradient.is_cuda:  # while it is in the cache
            self._write({number: gradient}, self._share)
        for bucket in self._sum.left[:-1]:
            numbers = self._buckets[bucket]
            if not all(n in self._ready for n in numbers):
                break
            self._write({n: self._ready[n] for n in numbers if not self._written[n]}, self._share)
            self._sum.give()

    def _take(self, gradients: Sequence[Any], share: float | None = None) -> None:
        """After a backward pass: all gradients, which nobody else needs any more; None where there is none."""
        if self._gradients is not None:
            self._gradients.end(bool(self._ready))
        share = self._share if share is None else share
        given = {n: g for n, g in enumerate(gradients) if g is not None and not self._written[n]}
        if self._sum is not None:
            self._write(given, share)
            return
        with torch.no_grad():
            for number, gradient in given.items():
                held = self._held[number]
                if held is None:
                    self._held[number] = (_plain(gradient), share)
                else:
                    held[0].add_(_plain(gradient), alpha=share / held[1])

    def _write(self, gradients: Mapping[int, Any], share: float) -> None:
        """Put tensors, with what is held of earlier parts, where they leave from."""
        first: list[tuple[Any, Any, float]] = []  # what a place starts with
        then: list[tuple[Any, Any]] = []
        for number, gradient in gradients.items():
            view, held = self._views[number], self._held[number]
            if held is not None:
                first.append((view, *held))
                if gradient is not None:
                    then.append((view, _plain(gradient)))
            elif gradient is not None:
                first.append((view, _plain(gradient), share))
            else:
                view.zero_()
            self._written[number], self._held[number] = True, None
        with torch.no_grad():
            if self._model.device.type == "cpu":
                for view, tensor, times in first:
                    torch.mul(tensor, times, out=view)
                for view, tensor in then:
                    view.add_(tensor, alpha=share)
            elif first:  # in few launches: a GPU is faster than what keeps it busy
                views = [view for view, _, _ in first]
                torch._foreach_copy_(views, [tensor for _, tensor, _ in first])
                torch._foreach_mul_(views, [times for _, _, times in first])
                if then:
                    torch._foreach_add_([view for view, _ in then], [tensor for _, tensor in then], alpha=share)


class _Gradients:
    """Tells when gradients are final, as long as the program leaves them alone afterwards.

    A program may call backward() several times for a part, or change gradients before it says that the part is done.
    Whether it does is seen in its first part, and in each that is not the last of a step; then all wait for the end.
    """

    def __init__(self, tensors: Sequence[Any], arrived: Any) -> None:
        self._tensors, self._arrived = list(tensors), arrived
        self._quiet, self._watching = False, False
        self._seen: dict[int, tuple[Any, int]] = {}  # gradients, and how often they had been written to
        self._hooks = [t.register_post_accumulate_grad_hook(self._hook(n)) for n, t in enumerate(self._tensors)]
        self._noisy = False

    def begin(self) -> None:
        self._seen.clear()
        self._watching = True

    def end(self, gone: bool) -> None:
        """The part is done; `gone` when some of its gradients are with other workers."""
        self._watching = False
        changed = any(self._tensors[n].grad is not g or g._version != v for n, (g, v) in self._seen.items())
        self._seen.clear()
        if changed and gone:
            raise ElasticDLError(
                "gradients were changed after backward(), when they were on their way to the other workers already. "
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

        return arrived


def _plain(gradient: Any) -> Any:
    """Dense and float32, which sums are made of."""
    if gradient.layout is not torch.strided:
        gradient = gradient.coalesce().to_dense()
    return gradient.detach().float()
