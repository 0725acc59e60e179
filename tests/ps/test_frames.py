"""Headers and frames of the data plane: what is packed comes back, everything else is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.job.parameters import OptimizerSpec
from elasticdl.ps import _native
from elasticdl.wire import PROTOCOL, frames
from elasticdl.wire.frames import FRAME_BYTES, MAGIC, Answer, BadFrame, Header, Op, cut, floats, ids, joined

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
headers = st.builds(
    Header, st.sampled_from(Op), u64, u64, st.sampled_from(Answer), u16, u32, u32, u32, u32, u64, u64
)  # fmt: skip


@given(headers)
def test_a_header_survives_the_wire(header: Header) -> None:
    packed = header.pack()
    assert Header.unpack(packed) == header
    assert Header.unpack(memoryview(packed)) == header


@given(headers, st.data())
def test_a_header_cut_short_or_too_long_is_refused(header: Header, data: st.DataObject) -> None:
    packed = header.pack()
    with pytest.raises(BadFrame, match="bytes"):
        Header.unpack(packed[: data.draw(st.integers(0, len(packed) - 1))])
    with pytest.raises(BadFrame, match="bytes"):
        Header.unpack(packed + b"\0")


def test_who_adds_an_operation_raises_the_protocol() -> None:
    """A worker that does not know one of them would be let in, and everybody waits for it."""
    known = {"DECLARE": 1, "PULL": 2, "ROWS": 3, "PUSH": 4, "EXPORT": 5, "GREET": 6, "CONFIRM": 7}
    assert (PROTOCOL, {op.name: op.value for op in Op}) == (3, known)


@given(st.binary(min_size=64, max_size=64).filter(lambda b: not b.startswith(MAGIC)))
def test_random_bytes_are_no_header(frame: bytes) -> None:
    assert len(Header(Op.PULL, 1).pack()) == len(frame)
    with pytest.raises(BadFrame, match="starts with"):
        Header.unpack(frame)


@pytest.mark.parametrize(("place", "value"), [(4, 0), (4, 8), (4, 255), (5, 7), (5, 255)])
def test_an_unknown_operation_or_answer_is_refused(place: int, value: int) -> None:
    packed = bytearray(Header(Op.PULL, 1).pack())
    packed[place] = value
    with pytest.raises(BadFrame):
        Header.unpack(bytes(packed))


def test_the_header_is_little_endian_and_stays_as_it_is() -> None:
    """Golden bytes: servers and workers of different releases meet."""
    header = Header(Op.PUSH, 2, 3, Answer.OK, 4, 5, 6, 7, 8, 9, 10, 0.5)
    assert header.pack().hex() == (
        "45444c31" "04" "01" "0400" "0200000000000000" "0300000000000000" "0900000000000000"
        "05000000" "06000000" "07000000" "08000000" "0a00000000000000" "000000000000e03f"
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
    with pytest.raises(BadFrame, match="learning rate"):
        Header.unpack(Header(Op.PUSH, 1, rate=rate).pack())


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
