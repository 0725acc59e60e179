"""The sum of a step in its plainest form: all contributions side by side, halves added until one is left."""

from __future__ import annotations

import torch

from tests.collective.member import contribution, digest


def tree_sum(contributions: list[torch.Tensor]) -> torch.Tensor:
    if len(contributions) == 1:
        return contributions[0]
    half = 1 << (len(contributions) - 1).bit_length() - 1
    return tree_sum(contributions[:half]) + tree_sum(contributions[half:])


def expected(virtual: int, size: int, step: int) -> str:
    return digest(tree_sum([contribution(size, step, v) for v in range(virtual)]))
