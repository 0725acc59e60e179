"""A row source with its own order of ids gives the same model as one without."""

from __future__ import annotations

import numpy as np
import torch

from elasticdl.frameworks.torch.rows import TorchLookup
from elasticdl.job.parameters import TableSpec

TABLE = TableSpec(name="t", dim=3)


class Plain:
    def rows(self, table: str, ids: np.ndarray) -> np.ndarray:
        return np.stack([ids, ids % 7, -ids], axis=1).astype(np.float32)


class Ordered(Plain):
    """Odd ids first."""

    def distinct(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = np.unique(ids)
        found = np.concatenate([found[found % 2 == 1], found[found % 2 == 0]])
        return found, np.array([int(np.flatnonzero(found == i)[0]) for i in ids.tolist()], np.int64)


def test_values_and_gradients_do_not_depend_on_the_order() -> None:
    ids = torch.tensor([[3, 8, 3], [0, 5, 8]])
    weights = torch.arange(18.0).reshape(2, 3, 3)
    results = []
    for source in (Plain(), Ordered()):
        lookup = TorchLookup(source, training=True)
        values = lookup.gather(TABLE, ids)
        (values * weights).sum().backward()
        found, gradients = lookup.gradients()["t"]
        order = np.argsort(found)
        results.append((values.detach().numpy(), found[order], gradients[order]))
    for plain, ordered in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, ordered)
    assert lookup.gradients()["t"][0].tolist() == [3, 5, 0, 8]


def test_padding_reads_zeros_from_such_a_source_too() -> None:
    lookup = TorchLookup(Ordered(), training=True)
    values = lookup.gather(TABLE, torch.tensor([4, 8]), padding=4)
    assert values[0].tolist() == [0, 0, 0] and values[1].tolist() == [8, 1, -8]
