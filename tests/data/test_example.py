"""The Example codec: against bytes made by hand, against the protobuf library, and batches against single records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data.example import decode_example, decode_examples, encode_example
from elasticdl.errors import DataError
from tests.data.example_oracle import example_class

Example = example_class()


def hand(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def test_bytes_made_by_hand_decode_and_encode() -> None:
    # Example{1: Features{1: {1: "a", 2: Feature{3: Int64List{1: packed 1, 300}}}}}
    whole = hand("0a0e 0a0c 0a0161 1207 1a05 0a03 01ac02")
    assert decode_example(whole)["a"].tolist() == [1, 300]
    assert encode_example({"a": np.array([1, 300])}) == whole
    one_float = hand("0a0f 0a0d 0a0178 1208 1206 0a04 0000803f")
    assert decode_example(one_float)["x"].tolist() == 1.0
    assert encode_example({"x": 1.0}) == one_float
    text = hand("0a0d 0a0b 0a0162 1206 0a04 0a02 6869")
    assert decode_example(text)["b"].tobytes() == b"hi"
    assert encode_example({"b": b"hi"}) == encode_example({"b": "hi"}) == text


def test_numbers_written_one_by_one_decode_like_packed_ones() -> None:
    unpacked_integers = hand("0a0e 0a0c 0a0161 1207 1a05 0801 08ac02")
    assert decode_example(unpacked_integers)["a"].tolist() == [1, 300]
    assert decode_examples([unpacked_integers] * 2)["a"].tolist() == [[1, 300]] * 2
    unpacked_floats = hand("0a13 0a11 0a0161 120c 120a 0d0000803f 0d00000040")
    assert decode_example(unpacked_floats)["a"].tolist() == [1.0, 2.0]


numbers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(width=32, allow_nan=False)
values = st.one_of(
    st.binary(max_size=300),
    numbers,
    floats,
    st.lists(numbers, min_size=2, max_size=40).map(lambda items: np.array(items, dtype=np.int64)),
    st.lists(floats, min_size=2, max_size=40).map(lambda items: np.array(items, dtype=np.float32)),
    st.lists(st.binary(max_size=5), min_size=2, max_size=3),
)
names = st.text(max_size=20).filter(lambda name: max(name, default="a") < "\ud800" or max(name) > "\udfff")
records = st.dictionaries(names, values, max_size=5)


def _plain(value: Any) -> Any:
    """Something that compares bit for bit: a NaN equals itself."""
    return [item.tobytes() for item in value] if value.dtype == object else (value.shape, value.tobytes())


@settings(max_examples=300, deadline=None)
@given(features=records)
def test_protobuf_reads_what_we_write_and_we_read_what_protobuf_writes(features: dict[str, Any]) -> None:
    ours = encode_example(features)
    message = Example.FromString(ours)
    assert set(message.features.feature) == set(features)
    for name, value in features.items():
        feature = message.features.feature[name]
        found = list(getattr(feature, feature.WhichOneof("kind")).value)
        expected = value.tolist() if isinstance(value, np.ndarray) else value if isinstance(value, list) else [value]
        assert found == expected
    theirs = decode_example(message.SerializeToString())
    mine = decode_example(ours)
    assert theirs.keys() == mine.keys()
    for name in mine:
        assert _plain(theirs[name]) == _plain(mine[name])
        assert theirs[name].dtype == mine[name].dtype


@settings(max_examples=200, deadline=None)
@given(data=st.data(), size=st.integers(1, 12))
def test_a_batch_is_the_stack_of_its_records(data: st.DataObject, size: int) -> None:
    kinds = data.draw(st.dictionaries(names, st.sampled_from(["bytes", "ints", "floats", "int", "ragged"]), max_size=4))
    lengths = {name: data.draw(st.integers(0 if kind == "bytes" else 2, 200)) for name, kind in kinds.items()}

    def draw(name: str) -> Any:
        kind, length = kinds[name], lengths[name]
        if kind == "bytes":
            return data.draw(st.binary(min_size=length, max_size=length))
        if kind == "ragged":
            return data.draw(st.binary(max_size=200))
        if kind == "int":
            return data.draw(numbers)
        source = np.random.default_rng(data.draw(st.integers(0, 9)))
        if kind == "floats":
            return source.random(length).astype(np.float32)
        return source.integers(-3, 10 ** data.draw(st.integers(1, 15)), length)

    batch = [encode_example({name: draw(name) for name in kinds}) for _ in range(size)]
    single = [decode_example(record) for record in batch]
    stacked = decode_examples(batch)
    assert stacked.keys() == kinds.keys()
    for name, kind in kinds.items():
        if kind == "ragged":
            assert [value.tobytes() for value in stacked[name]] == [one[name].tobytes() for one in single]
        else:
            assert np.array_equal(stacked[name], np.stack([one[name] for one in single]))
            assert stacked[name].dtype == single[0][name].dtype


def test_an_image_and_its_label_have_the_shapes_a_feed_expects() -> None:
    image = np.arange(784).astype(np.uint8).reshape(28, 28)
    batch = decode_examples([encode_example({"image": image, "label": label}) for label in (0, 9, 3)])
    assert batch["image"].shape == (3, 784)
    assert batch["image"].dtype == np.uint8
    assert batch["image"].flags.writeable
    assert batch["label"].tolist() == [0, 9, 3]
    assert batch["label"].dtype == np.int64


def test_lists_of_different_lengths_become_an_array_of_arrays() -> None:
    batch = decode_examples([encode_example({"ids": np.arange(n)}) for n in (1, 5, 2)])
    assert batch["ids"].dtype == object
    assert [value.tolist() for value in batch["ids"]] == [0, [0, 1, 2, 3, 4], [0, 1]]
    floats = decode_examples([encode_example({"x": np.ones(n, np.float32)}) for n in (3, 2)])
    assert [len(value) for value in floats["x"]] == [3, 2]


def test_features_in_another_order_still_decode() -> None:
    batch = decode_examples([encode_example({"a": 1, "b": b"x"}), encode_example({"b": b"y", "a": 2})])
    assert batch["a"].tolist() == [1, 2]
    assert batch["b"].tobytes() == b"xy"


def test_an_empty_list_is_an_empty_array() -> None:
    assert decode_example(encode_example({"ids": np.zeros(0, np.int64)}))["ids"].shape == (0,)
    assert decode_examples([encode_example({"ids": np.zeros(0, np.int64)})] * 2)["ids"].shape == (2, 0)
    assert decode_examples([]) == {}


def test_records_with_other_features_are_named() -> None:
    batch = [encode_example({"a": 1}), encode_example({"a": 1}), encode_example({"a": 1, "b": 2})]
    with pytest.raises(DataError, match=r"record 2 of the batch: .*\(b\)"):
        decode_examples(batch)


def test_one_feature_with_two_types_in_a_batch_is_refused() -> None:
    with pytest.raises(DataError, match="'a' has values of different types"):
        decode_examples([encode_example({"a": 1}), encode_example({"a": 1.0})])


@pytest.mark.parametrize(
    "record", [b"hello, not a message", b"\x0a\xff\x01", b"\x0a\x05\x0a\x03\x0a", encode_example({"a": 300})[:-1]]
)
def test_a_record_that_is_no_example_is_refused_with_its_place_in_the_batch(record: bytes) -> None:
    with pytest.raises(DataError, match=r"not a tf.train.Example .*Check that"):
        decode_example(record)
    with pytest.raises(DataError, match="record 1 of the batch"):
        decode_examples([encode_example({"a": 1}), record])
    with pytest.raises(DataError, match="record 0 of the batch"):
        decode_examples([record, encode_example({"a": 1})])


@settings(max_examples=300, deadline=None)
@given(features=records, data=st.data())
def test_damaged_records_give_data_errors_and_nothing_else(features: dict[str, Any], data: st.DataObject) -> None:
    whole = encode_example(features)
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    for batch in ([cut], [whole, cut], [cut, cut], [whole, bytes(damaged)]):
        try:
            alone = [decode_example(record) for record in batch]
        except DataError:
            with pytest.raises(DataError):
                decode_examples(batch)
            continue
        try:
            stacked = decode_examples(batch)
        except DataError:
            continue  # well-formed records that do not stack
        for name, value in stacked.items():
            assert [_plain(np.asarray(item)) for item in value] == [_plain(one[name]) for one in alone]


def test_what_an_example_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="feature 'z'"):
        encode_example({"z": np.array([1j])})
    with pytest.raises(ValueError, match="does not fit"):
        encode_example({"z": np.array([2**63], dtype=np.uint64)})
