"""The contributions of one step, added up along the fixed tree as soon as both halves of a node are there."""

from __future__ import annotations

import torch

from elasticdl.collective.tree import Node, subtrees


class Sums:
    """A worker's sums of one step, by node.

    A run of n virtual workers needs log n vectors, not n. When the run changes, the sums inside the new one are kept;
    all others are dropped, since a sum cannot be taken apart again.
    """

    def __init__(self, virtual: int) -> None:
        self.virtual = virtual
        self._held: dict[Node, torch.Tensor] = {}

    def add(self, virtual: int, contribution: torch.Tensor, place: torch.Tensor | None = None) -> None:
        """Add the result of a virtual worker. Sums are made in place of `contribution`; only a sum of all that is here
        goes to `place`, if one is given. `place` may hold a part of it.
        """
        if not 0 <= virtual < self.virtual:
            raise ValueError(f"there is no virtual worker {virtual} of {self.virtual}")
        if any(start <= virtual < start + size for start, size in self._held):
            raise ValueError(f"virtual worker {virtual} is there already")
        start, size = virtual, 1
        siblings: list[tuple[torch.Tensor, bool]] = []  # and whether they are left halves
        while size < self.virtual:
            sibling = start ^ size
            if sibling < self.virtual:  # else the node is its left half
                other = self._held.pop((sibling, size), None)
                if other is None:
                    break
                siblings.append((other, sibling < start))
            start, size = start & ~size, 2 * size
        found = contribution
        while siblings:
            other, is_left = siblings.pop(0)
            left, right = (other, found) if is_left else (found, other)
            last = not siblings and not self._held and place is not None
            found = torch.add(left, right, out=place if last else contribution)
        self._held[start, size] = found

    def missing(self, start: int, stop: int) -> list[int]:
        """The virtual workers of a run that are not computed yet; sums outside of the run are dropped."""
        self._held = {node: value for node, value in self._held.items() if self._inside(node, start, stop)}
        there = {v for first, size in self._held for v in range(first, first + size)}
        return [v for v in range(start, stop) if v not in there]

    def nodes(self, start: int, stop: int) -> dict[Node, torch.Tensor]:
        """The sums of a run's maximal nodes, from left to right. They must not be changed: a late peer may read them.

        Only a `place` is written to again: peers that read it check the generation afterwards.
        """
        wanted = subtrees(start, stop, self.virtual)
        if not all(node in self._held for node in wanted):
            raise ValueError(f"virtual workers {self.missing(start, stop)} of the run {start} to {stop} are missing")
        return {node: self._held[node] for node in wanted}

    def _inside(self, node: Node, start: int, stop: int) -> bool:
        return start <= node[0] and min(sum(node), self.virtual) <= stop
