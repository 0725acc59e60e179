"""Random state from a seed: torch gives the same numbers as after its own seed function."""

from __future__ import annotations

import torch

from elasticdl.frameworks.determinism import seed_torch


def test_the_numbers_are_those_of_torchs_own_seeding() -> None:
    for seed in (0, 1, 2**63 - 1):
        torch.manual_seed(seed)
        wanted = torch.rand(9)
        seed_torch(seed)
        assert torch.equal(torch.rand(9), wanted)
