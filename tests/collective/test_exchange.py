"""What real members do together: the same bits for any world, flags, plain sums, small things gathered."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from elasticdl.collective.exchange import gather_bytes, tree_total
from elasticdl.collective.group import Group
from elasticdl.collective.store import RelayedStore
from elasticdl.errors import CalledOff
from tests.collective.member import contribution
from tests.collective.oracle import expected
from tests.collective.plain import plain_total
from tests.collective.relay import Relay

pytestmark = pytest.mark.processes

PIECE = 100
# Less than one number per slice; slices that do not divide; many rounds, the last of them short.
SIZES = (1, 3, 1003, 4 * PIECE * 7 + 77)


def alone(virtual: int = 4) -> Group:
    return Group(1, 0, ["a"], RelayedStore(1, lambda key, value: None, 1.0), "127.0.0.1", 1.0)


def test_the_sum_has_the_same_bits_for_every_world_and_every_rank(relay: Relay) -> None:
    relay.start("a", "b", "c", "d")
    wanted = {(virtual, size): expected(virtual, size, step=7) for virtual in (4, 6, 8) for size in SIZES}
    for world in (1, 2, 3, 4):
        members = relay.together(world, *"abcd"[:world])
        for (virtual, size), digest in wanted.items():
            answers = [m.call("total", virtual=virtual, size=size, step=7, fresh=True, piece=PIECE) for m in members]
            assert [a.result()[0] for a in answers] == [digest] * world, f"{world} workers, {virtual} parts, {size}"


def test_every_rank_learns_that_some_rank_has_its_flag_set(relay: Relay) -> None:
    relay.start("a", "b", "c")
    members = relay.together(1, "a", "b", "c")
    for step, flagged in enumerate((None, "a", "c", None)):
        for command in ("total", "plain"):
            more = {"virtual": 8} if command == "total" else {}
            answers = [m.call(command, size=5, step=step, flag=m.name == flagged, **more) for m in members]
            assert [a.result()[1] for a in answers] == [flagged is not None] * 3


def test_steps_follow_each_other_without_waiting_for_the_slowest(relay: Relay) -> None:
    relay.start("a", "b", "c")
    members = relay.together(1, "a", "b", "c")
    answers = [m.call("totals", virtual=4, size=1000, steps=range(50)) for m in members]
    wanted = [expected(4, 1000, step) for step in range(50)]
    assert [a.result() for a in answers] == [wanted] * 3


def test_the_plain_sum_is_that_of_all_ranks(relay: Relay) -> None:
    relay.start("a", "b", "c")
    members = relay.together(1, "a", "b", "c")
    answers = [m.call("plain", size=50, step=3) for m in members]
    exact = sum(contribution(50, 3, rank).double() for rank in range(3))
    for answer in answers:
        torch.testing.assert_close(torch.tensor(answer.result()[0]).double(), exact, rtol=1e-5, atol=1e-3)


def test_bytes_of_any_length_are_gathered_by_rank(relay: Relay) -> None:
    relay.start("a", "b", "c")
    members = relay.together(1, "a", "b", "c")
    brought = [b"", b"x" * 3_000_001, b"\x00\xff"]
    answers = [m.call("gather", mine=mine) for m, mine in zip(members, brought, strict=True)]
    assert [a.result() for a in answers] == [brought] * 3


def test_the_error_names_workers_with_different_models(relay: Relay) -> None:
    relay.start("a", "b")
    first, second = relay.together(1, "a", "b")
    answers = [first.call("total", virtual=4, size=10, step=1), second.call("total", virtual=4, size=11, step=1)]
    assert answers[0].wait().text == "b adds 11 numbers to the sum, this worker 10: their models differ"
    assert answers[1].wait().text == "a adds 10 numbers to the sum, this worker 11: their models differ"
    assert [a.error for a in answers] == ["GroupBroken"] * 2
    assert [a.suspects for a in answers] == [("b",), ("a",)]


def test_a_world_of_one_needs_no_peers() -> None:
    group = alone()
    total, flag = tree_total(group, {(0, 4): torch.arange(3.0)}, 4, True)
    assert (total.tolist(), flag) == ([0.0, 1.0, 2.0], True)
    assert plain_total(group, torch.ones(2), False)[0].tolist() == [1.0, 1.0]
    assert gather_bytes(group, b"me") == [b"me"]
    group.abort("the world changes")
    with pytest.raises(CalledOff, match="the world changes"):
        plain_total(group, torch.ones(2), False)


def test_a_sum_is_aborted_from_outside_whatever_blocks_the_communication_thread() -> None:
    group = Group(1, 0, ["a"], RelayedStore(1, lambda key, value: None, 1.0), "127.0.0.1", 0.05)
    group._start_thread()
    group.on_devices = True  # so that one member alone has something to wait for: NCCL itself needs a GPU
    freed = threading.Event()
    group.begin(lambda link: freed.wait(10.0))
    began = time.monotonic()
    threading.Timer(0.2, group.abort, ["worker-1 is gone"]).start()
    try:
        with pytest.raises(CalledOff, match="worker-1 is gone"):
            plain_total(group, torch.ones(2), False)
        assert time.monotonic() - began < 5.0
    finally:
        freed.set()
        group.close()


def test_the_wrong_nodes_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match=r"rank 0 must have the nodes \(\(0, 4\),\), not \(\(0, 2\), \(2, 2\)\)"):
        tree_total(alone(), {(0, 2): torch.ones(1), (2, 2): torch.ones(1)}, 4, False)
