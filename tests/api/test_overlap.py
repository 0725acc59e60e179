"""Without determinism: gradients that leave during the backward pass give the means that the fixed tree gives."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import elasticdl.api as elasticdl
from elasticdl.api.elastic import Elastic
from elasticdl.api.overlap import PlainSums
from elasticdl.api.torch_model import TorchModel
from elasticdl.collective.buckets import BUCKET_FLOATS, BucketSum, cut
from elasticdl.collective.group import Group
from elasticdl.collective.store import RelayedStore
from elasticdl.errors import CalledOff, ElasticDLError

SECONDS = 20.0  # that anything may take
RECORDS = 50  # neither steps nor parts come out even
features = torch.randn(RECORDS, 6, generator=torch.Generator().manual_seed(3))


class Odd(torch.nn.Module):
    """Everything that may go wrong: a parameter that is never used, one that is used now and then, a frozen one, one
    used twice, sparse gradients, two widths, statistics, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.frozen = torch.nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.unused = torch.nn.Parameter(torch.ones(5))
        self.sometimes = torch.nn.Parameter(torch.ones(8))
        self.table = torch.nn.Embedding(4, 8, sparse=True)
        self.wide = torch.nn.Parameter(torch.ones(8, dtype=torch.float64))
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.norm(self.first(x)))
        x = torch.nn.functional.dropout(x, 0.2) + self.table((x[:, 0] > 0).long())
        x = (x * self.wide).float()
        if len(x) % 2:
            x = x * self.sometimes
        return self.last(x) + self.last(x.square())


def build(deterministic: bool, floats: int = BUCKET_FLOATS, audit: bool = False) -> tuple[Odd, Elastic]:
    """Two parts are more than a worker's minibatch: each has a pass of its own, whose statistics and dropout it is."""
    torch.manual_seed(0)
    model = Odd()
    job = elasticdl.join(
        minibatch_size=6, num_workers=3, virtual_workers=4, num_epochs=2, deterministic=deterministic, audit=audit
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
    return model, job.elastic(model, optimizer, records=RECORDS, bucket_floats=floats)


def train(
    deterministic: bool, floats: int = BUCKET_FLOATS, twice: bool = False, change: str = ""
) -> dict[str, torch.Tensor]:
    model, elastic = build(deterministic, floats, audit=True)
    for part in elastic.parts():
        loss = model(features[part.records]).square().mean()
        if twice:
            (0.25 * loss).backward(retain_graph=True)
            (0.75 * loss).backward()
        else:
            loss.backward()
        if change == "clipped":
            torch.nn.utils.clip_grad_norm_(model.first.parameters(), 0.5)
        elif change == "through data":
            model.first.weight.grad.data.mul_(0.25)
        elastic.step(loss)
    assert torch.equal(elastic.state()["audit/witness"], torch.full((RECORDS,), 2.0))
    torch.use_deterministic_algorithms(False)
    return elastic.state()


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("floats", [1, 20, 1 << 19])
def test_the_weights_are_those_of_the_tree_but_for_rounding(floats: int) -> None:
    same(train(deterministic=False, floats=floats), train(deterministic=True))


def test_a_part_may_have_several_backward_passes() -> None:
    same(train(deterministic=False, twice=True), train(deterministic=True, twice=True))


@pytest.mark.parametrize("change", ["clipped", "through data"])
def test_gradients_may_be_changed_before_the_part_is_done(change: str) -> None:
    same(train(deterministic=False, change=change), train(deterministic=True, change=change))


def test_gradients_that_change_after_they_are_used_are_an_error_and_not_a_wrong_sum() -> None:
    model, elastic = build(deterministic=False)
    with pytest.raises(ElasticDLError, match=r"changed after backward.*before_update"):
        for part in elastic.parts():
            loss = model(features[part.records]).square().mean()
            loss.backward()
            if part.step == 1 and part.virtual == 3:
                model.first.weight.grad.mul_(0.5)
            elastic.step(loss)
    assert elastic.committed_steps == 1


def test_a_world_that_is_called_off_before_the_last_part_is_left_when_its_sum_is_due() -> None:
    model, optimizer = torch.nn.Linear(1, 1), torch.optim.SGD
    sums = PlainSums(TorchModel(model, optimizer(model.parameters(), lr=0.1)), 0)
    sums.reset(1)
    group = Group(1, 0, ["a"], RelayedStore(1, lambda key, value: None, 1.0), "127.0.0.1", 1.0)
    group.abort("a member died")
    sums.begin(1.0, group, last=True)
    loss = model(torch.ones(1, 1)).mean()
    loss.backward()
    sums.add([0], loss, None)
    with pytest.raises(CalledOff, match="a member died"):
        sums.total(group, (0, 1), False)


def test_buckets_go_from_the_last_tensor_to_the_first() -> None:
    assert cut([3, 4, 12, 2, 9], 10) == [range(3, 5), range(2, 3), range(2)]
    assert cut([3], 10) == [range(1)] and cut([], 10) == []


def world_of_two() -> tuple[Group, Group]:
    """Both members in this process."""
    stores: list[RelayedStore] = []

    def deliver(to: int) -> Callable[[str, bytes], None]:
        return lambda key, value: stores[to].deliver(key, value)

    stores += [RelayedStore(1, deliver(1 - rank), SECONDS) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        built = [pool.submit(Group, 1, rank, ["a", "b"], stores[rank], "127.0.0.1", SECONDS) for rank in (0, 1)]
        return built[0].result(), built[1].result()


def test_a_peer_has_the_sums_of_the_last_layer_before_the_first_one_is_differentiated() -> None:
    mine, theirs = world_of_two()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    trained = TorchModel(model, torch.optim.SGD(model.parameters(), lr=0.1))
    sums = PlainSums(trained, 0, bucket_floats=1)
    # The last bias, then its weights, then the first layer's; the loss in the end.
    buckets = [slice(48, 49), slice(40, 48), slice(32, 40), slice(0, 32), slice(49, 50)]
    sums.reset(2)
    seen: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        for step in range(2):  # in the first it is seen whether the program leaves gradients alone
            peer = BucketSum(theirs, torch.zeros(50), buckets)
            for _ in buckets[:-1]:
                peer.start_next()
            sums.begin(1.0, mine, last=True)
            trained.begin(seed=step)
            hidden = model[0](torch.ones(3, 4))

            def differentiating(_: torch.Tensor, peer: BucketSum = peer) -> None:
                deadline = time.monotonic() + SECONDS
                while not peer.vector[48] and time.monotonic() < deadline:
                    time.sleep(0.005)
                seen.extend(peer.vector[[0, 48]].tolist())

            if step == 1:
                hidden.register_hook(differentiating)
            loss = model[1](hidden).mean()
            loss.backward()
            sums.add([0], loss, None)
            end = pool.submit(peer.finish, False)
            total, _ = sums.total(mine, (0, 1), False)
            torch.testing.assert_close(end.result()[0], total)
            assert total[48] == 0.5 and total[0] != 0, "half of the mean is this worker's, the other brings nothing"
    assert seen == [0.0, 0.5]
    mine.close()
    theirs.close()
