"""A sum in one bucket, of vectors that are all there."""

from __future__ import annotations

import torch

from elasticdl.collective.buckets import BucketSum
from elasticdl.collective.group import Group


def plain_total(group: Group, contribution: torch.Tensor, flag: bool) -> tuple[torch.Tensor, bool]:
    """The sum, and whether any rank's flag was set."""
    return BucketSum(group, contribution.clone(), [slice(0, contribution.numel())]).finish(flag)
