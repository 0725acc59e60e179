"""The state from one real process to another: every bit of it, or nothing."""

from __future__ import annotations

import signal
import struct

import google_crc32c
import pytest
import torch

from elasticdl.collective import transfer
from elasticdl.collective.transfer import CHUNK_BYTES
from tests.collective.relay import Answer, Relay

pytestmark = pytest.mark.processes

PREAMBLE, HEADER, CHUNK, CHECKSUM = transfer._PREAMBLE, transfer._HEADER, transfer._CHUNK, transfer._CHECKSUM


@pytest.mark.parametrize("size", [1, CHUNK_BYTES, 5 * CHUNK_BYTES // 4 - 3])
def test_every_tensor_arrives_with_its_name_type_shape_and_bits(relay: Relay, size: int) -> None:
    relay.start("a", "b")
    sender, receiver = relay.together(1, "a", "b")
    sent, received = sender.call("send", to=1, size=size, seed=5), receiver.call("receive", source=0, size=size, seed=5)
    received.result()
    assert sent.result()[0] >= 4 * size + 8 * (size // 2 + 1)


def test_others_of_the_group_need_not_take_part_and_an_exchange_can_follow(relay: Relay) -> None:
    relay.start("a", "b", "c")
    members = relay.together(1, "a", "b", "c")
    copies = [members[2].call("send", to=1, size=1000, seed=1, together=False)]
    copies.append(members[1].call("receive", source=2, size=1000, seed=1, together=False))
    for answer in copies:
        answer.result()
    answers = [m.call("total", virtual=4, size=10, step=1) for m in members]
    assert len({a.result()[0] for a in answers}) == 1


def test_a_sender_that_dies_on_the_way_leaves_nothing_half_loaded(relay: Relay) -> None:
    relay.start("a", faults="worker.copying@a:1")
    relay.start("b")
    sender, receiver = relay.together(1, "a", "b")
    sender.call("send", to=1, size=5_000_000, seed=5)
    answer = receiver.call("receive", source=0, size=5_000_000, seed=5)
    sender.process.join(20)
    assert sender.process.exitcode == -signal.SIGKILL
    if not answer.done.wait(2.0):  # Gloo does not notice a loss in the middle of a message: the master does
        receiver.abort("a is gone")
    found = answer.wait(2.0)
    assert (found.error, found.suspects) in [("GroupBroken", ("a",)), ("CalledOff", ())]


def test_a_receiver_that_dies_on_the_way_breaks_the_sender_s_group(relay: Relay) -> None:
    relay.start("a")
    relay.start("b", faults="worker.copying@b:1")
    sender, receiver = relay.together(1, "a", "b")
    answer = sender.call("send", to=1, size=9_000_000, seed=5)
    receiver.call("receive", source=0, size=9_000_000, seed=5)
    assert (answer.wait().error, answer.suspects) == ("GroupBroken", ("b",))


def test_a_copy_can_be_aborted(relay: Relay) -> None:
    relay.start("a", "b")
    sender, _ = relay.together(1, "a", "b")
    answer = sender.call("send", to=1, size=1000, seed=1, together=False)  # the other does not ask for it
    assert not answer.done.wait(0.2)
    sender.abort("b leaves")
    assert (answer.wait(1.0).error, answer.text) == ("CalledOff", "b leaves")


def send_raw(relay: Relay, header: bytes, size: int, chunk: bytes, checksum: int | None) -> Answer:
    """A sender that makes a mistake, and the answer of the receiver."""
    relay.start("a", "b")
    sender, receiver = relay.together(1, "a", "b")
    answer = receiver.call("receive", source=0, size=1, seed=1, together=False)
    messages = [(PREAMBLE, struct.pack("<qq", len(header), size)), (HEADER, header)]
    if checksum is not None:
        messages += [(CHUNK, chunk), (CHECKSUM, struct.pack("<q", checksum))]
    sender.call("raw", to=1, messages=messages)
    return answer.wait()


GOOD = b'{"format": 1, "tensors": [["w", "float32", [16]]]}'


def test_a_corrupted_copy_is_refused(relay: Relay) -> None:
    data = bytes(range(64))
    checksum = int(google_crc32c.value(GOOD + data))
    answer = send_raw(relay, GOOD, 64, data[:63] + b"\xff", checksum)
    assert answer.error == "GroupBroken" and answer.suspects == ("a",)
    assert answer.text.startswith("the state copied from a has the checksum ")


@pytest.mark.parametrize(
    ("header", "size", "text"),
    [
        (GOOD, 128, "its tensors have 64 bytes, not 128"),
        (b'{"format": 2, "tensors": []}', 0, "format 2"),
        (b"not json", 64, "sent an invalid description of its state"),
        (b'{"format": 1, "tensors": [["w", "float32", [-16]]]}', 64, "w has the shape"),
        (b'{"format": 1, "tensors": [["w", "qint8", [16]]]}', 64, "qint8"),
    ],
)
def test_a_header_that_does_not_fit_is_refused_before_memory_is_taken(
    relay: Relay, header: bytes, size: int, text: str
) -> None:
    answer = send_raw(relay, header, size, b"", None)
    assert answer.error == "GroupBroken" and text in answer.text


def test_a_tensor_of_a_kind_that_cannot_be_copied_is_named() -> None:
    with pytest.raises(ValueError, match=r"model/q is of torch\.bits8, which cannot be copied between workers"):
        transfer._layout({"model/q": torch.empty(2, dtype=torch.bits8)})
