"""Worlds on GPUs: one rank with NCCL, several that share a GPU with Gloo. Without a GPU only the choice is tested."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from elasticdl.collective.buckets import BucketSum
from elasticdl.collective.exchange import gather_bytes, tree_total
from elasticdl.collective.group import Group
from elasticdl.collective.nccl import device_name, usable
from elasticdl.collective.store import RelayedStore
from elasticdl.errors import CalledOff
from tests.collective.member import contribution, digest
from tests.collective.oracle import expected, tree_sum
from tests.collective.plain import plain_total
from tests.collective.relay import Relay

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICE = torch.device("cuda:0")


@contextmanager
def on_nccl(generation: int) -> Iterator[Group]:
    store = RelayedStore(generation, lambda key, value: None, 30.0)
    group = Group(generation, 0, ["a"], store, "127.0.0.1", 30.0)
    group.connect_devices(DEVICE, 30.0)
    try:
        yield group
    finally:
        group.close()


def test_nccl_is_for_members_that_each_have_their_own_gpu() -> None:
    assert usable(["GPU-1", "GPU-2"])
    assert not usable(["GPU-1", "GPU-1"]), "two ranks of NCCL cannot share a GPU"
    assert not usable(["GPU-1", ""]) and not usable(["GPU-1"])
    assert device_name(torch.device("cpu")) == ""


@cuda
def test_a_gpu_has_a_name() -> None:
    assert len(device_name(DEVICE)) > 8


@cuda
def test_one_rank_adds_up_with_nccl() -> None:
    with on_nccl(1) as group:
        assert group.on_devices and not group.alone
        mine = torch.randn(3_000_001, device=DEVICE)
        for flag in (False, True):
            total, any_flag = plain_total(group, mine, flag)
            assert total.is_cuda and torch.equal(total, mine) and any_flag is flag
        total, any_flag = tree_total(group, {(0, 4): mine}, 4, True)
        assert torch.equal(total, mine) and any_flag
        assert gather_bytes(group, b"me") == [b"me"]


@cuda
def test_buckets_are_added_up_as_soon_as_the_gpu_has_filled_them() -> None:
    buckets = [slice(2_000_000, 3_000_000), slice(0, 2_000_000), slice(3_000_000, 3_000_007)]
    with on_nccl(1) as group:
        for step in range(20):
            total = BucketSum(group, torch.empty(3_000_007, device=DEVICE), buckets)
            for bucket in buckets:
                square = torch.full((1000, 1000), 1e-3, device=DEVICE)
                for _ in range(5):  # some work for the GPU, which the sum must wait for
                    square = square @ square
                total.vector[bucket] = step + square[0, 0]
                total.start_next()
            found, flag = total.finish(step % 2 == 0)
            assert flag is (step % 2 == 0)
            assert torch.equal(found, torch.full_like(found, step) + square[0, 0])


@cuda
def test_a_world_on_nccl_is_called_off_and_the_next_one_works() -> None:
    for generation in range(1, 4):
        with on_nccl(generation) as group:
            total = BucketSum(group, torch.ones(2000, device=DEVICE), [slice(0, 1000), slice(1000, 2000)])
            total.start_next()
            timer = threading.Timer(0.1, group.abort, ["the world changes"])
            timer.start()
            timer.join()
            began = time.monotonic()
            with pytest.raises(CalledOff, match="the world changes"):
                total.finish(False)
            assert time.monotonic() - began < 5.0
            with pytest.raises(CalledOff):
                plain_total(group, torch.ones(3, device=DEVICE), False)
    with on_nccl(9) as group:
        assert plain_total(group, torch.ones(3, device=DEVICE), False)[0].tolist() == [1.0, 1.0, 1.0]


@cuda
@pytest.mark.processes
def test_ranks_that_share_a_gpu_add_up_through_main_memory(relay: Relay) -> None:
    relay.start("a", "b")
    members = relay.together(1, "a", "b")
    answers = [m.call("plain", size=5000, step=3, device="cuda:0") for m in members]
    exact = sum(contribution(5000, 3, rank).double() for rank in range(2))
    for answer in answers:
        torch.testing.assert_close(torch.tensor(answer.result(60)[0]).double(), exact, rtol=1e-5, atol=1e-3)
    answers = [m.call("total", virtual=4, size=5000, step=3, device="cuda:0") for m in members]
    assert [a.result(60)[0] for a in answers] == [expected(4, 5000, 3)] * 2
    answers = [m.call("total", virtual=4, size=5000, step=3, device="cuda:0", means=4990) for m in members]
    wanted = tree_sum([contribution(5000, 3, v) for v in range(4)])
    wanted[:4990] /= 4
    assert [a.result(60)[0] for a in answers] == [digest(wanted)] * 2
