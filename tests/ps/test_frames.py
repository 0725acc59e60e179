"""Headers and frames of the data plane: what is packed comes back, everything else is refused."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.job.parameters import OptimizerSpec
from elasticdl.ps import _native
from elasticdl.wire import PROTOCOL, frames
from elasticdl.wire.frames import FRAME_BYTES, MAGIC, BadFrame, Header, Message, cut, floats, ids, joined

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
rates = st.floats(0.0, allow_infinity=False, allow_nan=False)
operations = st.one_of(
    st.just(frames.Greet()), st.just(frames.Declare()), st.builds(frames.Pull, u64, u64, st.booleans()),
    st.builds(frames.Rows, u16, u64, st.booleans()), st.builds(frames.Push, u32, u32, u32, u32, u64, u64, rates),
    st.builds(frames.Confirm, u32, u32), st.builds(frames.Export, u16, u64),
)  # fmt: skip
answers = st.one_of(
    st.builds(frames.Done, u64), st.builds(frames.Pushed, u64, st.booleans()), st.builds(frames.Resend, u32),
    st.builds(frames.Stale, u64), st.just(frames.Refused()), st.just(frames.Over()),
)  # fmt: skip
headers = st.builds(Header, u64, u64, operations | answers)
KINDS = {**frames.OPERATIONS, **frames.ANSWERS}


def unpack(frame: bytes | memoryview) -> Header[Message]:
    """As the side that it is meant for does."""
    code = frame[len(MAGIC)] if len(frame) > len(MAGIC) else 1
    return frames.read(frame, frames.ANSWERS) if code in frames.ANSWERS else frames.read(frame, frames.OPERATIONS)


@given(headers)
def test_a_header_survives_the_wire(header: Header[Message]) -> None:
    packed = header.pack()
    assert unpack(packed) == header
    assert unpack(memoryview(packed)) == header


@given(headers, st.data())
def test_a_header_cut_short_or_too_long_is_refused(header: Header[Message], data: st.DataObject) -> None:
    packed = header.pack()
    with pytest.raises(BadFrame, match="bytes"):
        unpack(packed[: data.draw(st.integers(0, len(packed) - 1))])
    with pytest.raises(BadFrame, match="bytes"):
        unpack(packed + b"\0")


def test_a_new_operation_or_layout_raises_the_protocol() -> None:
    """Else the master would admit a worker that does not know it, and the others would wait for that worker."""
    start = "<4sBQQ"
    known = {
        "Greet": (1, ""), "Declare": (2, ""), "Pull": (3, "QQ?"), "Rows": (4, "HQ?"), "Push": (5, "IIIIQQd"),
        "Confirm": (6, "II"), "Export": (7, "HQ"),
        "Done": (129, "Q"), "Pushed": (130, "Q?"), "Resend": (131, "I"), "Stale": (132, "Q"), "Refused": (133, ""),
        "Over": (134, ""),
    }  # fmt: skip
    layouts = {name: (code, start + own) for name, (code, own) in known.items()}
    assert (PROTOCOL, {k.__name__: (code, k.layout.format) for code, k in KINDS.items()}) == (4, layouts)


@pytest.mark.parametrize("kind", KINDS.values())
def test_each_kind_of_message_has_a_format_for_every_field(kind: type[Message]) -> None:
    assert len(kind.layout.unpack(bytes(kind.layout.size))) == 4 + len(fields(kind))  # type: ignore[arg-type]


@given(st.binary(min_size=64, max_size=64).filter(lambda b: not b.startswith(MAGIC)))
def test_random_bytes_are_no_header(frame: bytes) -> None:
    for known in (frames.OPERATIONS, frames.ANSWERS):
        with pytest.raises(BadFrame, match="starts with"):
            frames.read(frame, known)  # type: ignore[misc]


@pytest.mark.parametrize("code", sorted({0, 8, 128, 135, 255} | set(frames.ANSWERS)))
def test_an_unknown_operation_or_an_answer_is_no_request(code: int) -> None:
    packed = bytearray(Header(1, 1, frames.Pull()).pack())
    packed[len(MAGIC)] = code
    with pytest.raises(BadFrame, match=f"unknown code {code}"):
        frames.read(bytes(packed), frames.OPERATIONS)


@pytest.mark.parametrize("code", sorted({0, 128, 135, 255} | set(frames.OPERATIONS)))
def test_an_unknown_answer_or_an_operation_is_no_answer(code: int) -> None:
    packed = bytearray(Header(1, 1, frames.Done(1)).pack())
    packed[len(MAGIC)] = code
    with pytest.raises(BadFrame, match=f"unknown code {code}"):
        frames.read(bytes(packed), frames.ANSWERS)


def test_the_header_is_little_endian_and_stays_as_it_is() -> None:
    """Golden bytes: a change of the layout is a change of the protocol."""
    header = Header(2, 3, frames.Push(4, 5, 6, 7, 8, 9, 0.5))
    assert header.pack().hex() == (
        "45444c32" "05" "0200000000000000" "0300000000000000" "04000000" "05000000" "06000000" "07000000"
        "0800000000000000" "0900000000000000" "000000000000e03f"
    )  # fmt: skip
    assert Header(2, 3, frames.Pushed(4, True)).pack().hex() == (
        "45444c32" "82" "0200000000000000" "0300000000000000" "0400000000000000" "01"
    )  # fmt: skip


@given(st.binary(max_size=64), st.integers(0, 20))
def test_floats_are_exactly_as_many_as_expected(frame: bytes, count: int) -> None:
    if len(frame) == 4 * count:
        assert len(floats(frame, count, "values")) == count
    else:
        with pytest.raises(BadFrame, match="values"):
            floats(frame, count, "values")


@given(st.binary(max_size=64))
def test_ids_are_whole_numbers_of_eight_bytes(frame: bytes) -> None:
    if len(frame) % 8:
        with pytest.raises(BadFrame, match="64-bit"):
            ids(frame, "ids")
    else:
        assert len(ids(frame, "ids")) == len(frame) // 8


@pytest.mark.parametrize("offset", range(8))
def test_unaligned_frames_are_read_right(offset: int) -> None:
    numbers = np.arange(5, dtype="<i8")
    frame = memoryview(b"x" * offset + numbers.tobytes())[offset:]
    got = ids(frame, "ids")
    assert got.flags.aligned
    np.testing.assert_array_equal(got, numbers)
    values = np.arange(10, dtype="<f4")
    read = floats(memoryview(b"x" * offset + values.tobytes())[offset:], 10, "values")
    assert read.flags.aligned
    np.testing.assert_array_equal(read, values)


def test_an_empty_frame_at_any_address_is_good_enough_for_the_native_module() -> None:
    """A server without dense values gets such gradients."""
    values = b"x" * 16
    optimizer = _native.Optimizer(**OptimizerSpec(kind="sgd", learning_rate=0.1).constants())
    for offset in range(8):
        none = floats(memoryview(values)[offset:offset], 0, "gradients")
        empty = np.empty(0, np.float32)
        _native.update_dense(empty, empty.copy(), none, optimizer, 0.1, 1)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -0.1])
def test_a_rate_that_no_optimizer_could_use_is_refused(rate: float) -> None:
    packed = frames.Push.layout.pack(MAGIC, frames.Push.code, 1, 1, 0, 0, 1, 0, 0, 1, rate)
    with pytest.raises(BadFrame, match="learning rate"):
        frames.read(packed, frames.OPERATIONS)


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_parts_of_any_length_survive_being_cut_into_frames(parts: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "FRAME_BYTES", 8)
        sent = [memoryview(f) for f in cut(parts)]
        assert all(len(f) <= 8 for f in sent)
        assert [bytes(p) for p in joined(sent)] == parts


@pytest.mark.parametrize("count", [0, 1, FRAME_BYTES // 4 - 1, FRAME_BYTES // 4, 3 * FRAME_BYTES // 4 + 5])
def test_arrays_longer_than_a_frame_come_back_whole(count: int) -> None:
    values = np.random.default_rng(1).normal(size=(count, 1)).astype(np.float32)
    sent = [memoryview(f).cast("B") if memoryview(f).nbytes else memoryview(b"") for f in cut([values, b"after"])]
    assert max(map(len, sent)) <= FRAME_BYTES
    got, after = joined(sent)
    np.testing.assert_array_equal(floats(got, count, "values"), values.reshape(-1))
    assert bytes(after) == b"after"


def test_a_message_that_ends_inside_a_part_is_refused() -> None:
    with pytest.raises(BadFrame, match="in the middle of a part"):
        joined([memoryview(bytes(FRAME_BYTES))])
