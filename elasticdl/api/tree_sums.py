"""A worker's share of a step where the order of additions is fixed (--deterministic=true).

The contributions of its parts are added up along the tree over all parts of the step, as far as the worker has whole
subtrees. The sum of a subtree can still be used when the worker's share of the parts changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.api.terms import Model
from elasticdl.collective.exchange import tree_total
from elasticdl.collective.group import Group
from elasticdl.collective.sums import Sums


class TreeSums:
    """Vectors [gradients | changes of buffers | loss | more]. Their sums over all parts are means, except `more`."""

    def __init__(self, model: Model, more: int) -> None:
        self._model, self._more = model, more
        model.room = 1 + more
        self._weight = 1.0  # of the current part
        self._last = False
        self._place: torch.Tensor | None = None  # shared with other members: where the sum of this worker's parts goes
        self.reset(1)

    @property
    def virtual(self) -> int:
        return self._sums.virtual

    def reset(self, virtual: int) -> None:
        """Start a new step, cut into so many parts."""
        self._sums = Sums(virtual)

    def missing(self, start: int, stop: int) -> list[int]:
        """The virtual workers of a run that are not computed yet."""
        return self._sums.missing(start, stop)

    @property
    def size(self) -> int:
        return self._model.size + 1 + self._more

    def begin(self, weight: float, group: Group, last: bool) -> None:
        """The computation of a part begins."""
        self._weight = weight
        self._place = group.shared.mine if group.shared is not None else self._place
        self._last = last and group.shared is not None

    def scale_weight(self, factor: float) -> None:
        """Reduce the weight of the current part, before it is computed."""
        self._weight *= factor

    def add(self, virtuals: Sequence[int], loss: float | torch.Tensor, records: npt.NDArray[np.int64] | None) -> None:
        """Add the result of the part. The audit counts `records` as trained."""
        size, vector = self._model.size, self._model.contribute(self._weight)
        vector[size] = (loss.detach() if isinstance(loss, torch.Tensor) else loss) * self._weight
        if records is not None:
            vector[size + 1 :] = 0.0
            vector[size + 1 :][torch.as_tensor(records, device=vector.device)] = 1.0
        (virtual,) = virtuals
        self._sums.add(virtual, vector, self._place if self._last else None)

    def abandon(self, virtuals: Sequence[int]) -> None:
        """The current part has no result."""
        for virtual in virtuals:
            self.skip(virtual)

    def skip(self, virtual: int) -> None:
        """A part without a result is zeros."""
        self._sums.add(virtual, torch.zeros(self.size, dtype=torch.float32, device=self._model.device))

    def total(self, group: Group, run: tuple[int, int], flag: bool) -> tuple[torch.Tensor, bool]:
        """The sum over all parts, and whether any worker's flag was set."""
        nodes = self._sums.nodes(*run)
        if group.alone:  # the node becomes the sum, and an optimizer may keep a part of that
            nodes = {n: torch.clone(nodes[n]) if nodes[n] is self._place else nodes[n] for n in nodes}
        return tree_total(group, nodes, self.virtual, flag, self._model.size + 1)

    def close(self) -> None:
        """There is nothing to release."""
