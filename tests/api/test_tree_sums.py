"""Deterministic sums of a worker whose memory others read: what it holds there is of use to the next world."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from elasticdl.api.torch_model import TorchModel
from elasticdl.api.tree_sums import TreeSums
from elasticdl.collective.group import Group
from tests.collective.sharing import sharing, world

VIRTUAL = 4


def worker() -> tuple[TreeSums, TorchModel, torch.nn.Linear]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    trained = TorchModel(model, torch.optim.SGD(model.parameters(), lr=0.1))
    sums = TreeSums(trained, 0)
    sums.reset(VIRTUAL)
    return sums, trained, model


def compute(whose: tuple[TreeSums, TorchModel, torch.nn.Linear], group: Group, run: tuple[int, int]) -> list[int]:
    """What is missing of a run; which parts that were."""
    sums, trained, model = whose
    missing = sums.missing(*run)
    for virtual in missing:
        sums.begin(1.0, group, virtual == missing[-1])
        trained.begin(0)
        loss = model(torch.randn(5, 3, generator=torch.Generator().manual_seed(virtual))).square().mean()
        loss.backward()
        sums.add([virtual], loss, None)
    return missing


def test_a_shared_vector_is_reused_in_a_world_of_one_and_its_sum_is_a_new_tensor() -> None:
    (lone,) = world(1)
    undisturbed = worker()
    compute(undisturbed, lone, (0, VIRTUAL))
    wanted, _ = undisturbed[0].total(lone, (0, VIRTUAL), False)

    mine, theirs = worker(), worker()
    (one, other), segments = sharing(2, mine[0].size)
    place = segments[0].place.vector
    assert compute(mine, one, (0, 2)) == [0, 1] and compute(theirs, other, (2, 4)) == [2, 3]
    (node,) = mine[0]._sums.nodes(0, 2).values()
    assert node is place
    with ThreadPoolExecutor(2) as pool:
        totals = [pool.submit(w[0].total, g, r, False) for w, g, r in ((mine, one, (0, 2)), (theirs, other, (2, 4)))]
        assert all(torch.equal(total.result()[0], wanted) for total in totals)

    # The same once more, as if that had come to nothing: the other one is gone.
    assert compute(mine, lone, (0, 2)) == []
    assert compute(mine, lone, (0, VIRTUAL)) == [2, 3]
    total, _ = mine[0].total(lone, (0, VIRTUAL), False)
    assert torch.equal(total, wanted)

    everything = worker()
    assert compute(everything, one, (0, VIRTUAL)) == [0, 1, 2, 3]
    held = place.clone()
    total, _ = everything[0].total(lone, (0, VIRTUAL), False)
    assert torch.equal(total, wanted) and torch.equal(place, held)
    for group in (one, other):
        group.close()
