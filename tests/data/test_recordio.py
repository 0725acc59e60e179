"""RecordIO: the original format, the writer, and errors of damaged files."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from pathlib import Path

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data import snappy
from elasticdl.data.reader import open_reader
from elasticdl.data.recordio import Kept, RecordIOFile, RecordIOWriter
from elasticdl.errors import DataError

ORIGINAL = Path(__file__).parents[3] / "shared" / "data" / "recordio_v1" / "mixed-1000.recordio"


def chunk(records: list[bytes], compressor: int) -> bytes:
    """One chunk, put together by hand from the description of the format."""
    raw = b"".join(struct.pack("<I", len(record)) + record for record in records)
    data = {0: bytes, 1: lambda raw: bytes(cramjam.snappy.compress(raw)), 2: gzip.compress}[compressor](raw)
    return struct.pack("<5I", 0x01020304, zlib.crc32(data), compressor, len(data), len(records)) + data


def mixed_records() -> list[bytes]:
    """Records like those of the original library's file: each starts with its number, and sizes are mixed."""
    draw = random.Random(1)
    return [f"record-{number}:".encode() + draw.randbytes(draw.choice((0, 10, 784, 3000))) for number in range(1000)]


def test_a_file_of_the_original_library_opens_as_it_is(tmp_path: Path) -> None:
    path = ORIGINAL
    if not path.exists():  # outside the project's own workspace: the same shape, made here, in one snappy chunk
        path = tmp_path / "mixed-1000.recordio"
        path.write_bytes(chunk(mixed_records(), 1))
    reader = open_reader(str(path))
    assert reader.describe().records == 1000
    for number, record in enumerate(reader.read(path.name, 0, 1000)):
        assert isinstance(record, bytes)
        assert record.startswith(b"record-%d:" % number)
    assert reader.read(path.name, 998, 1000) == reader.read(path.name, 0, 1000)[998:]


@pytest.mark.parametrize("compressor", [0, 1, 2])
def test_chunks_made_by_hand_are_read(tmp_path: Path, compressor: int) -> None:
    first, second = mixed_records()[:300], [b"", b"x" * 100_000, b""]
    path = tmp_path / "a.recordio"
    path.write_bytes(chunk(first, compressor) + chunk(second, compressor))
    assert RecordIOFile(path).read(0, 303) == first + second
    assert RecordIOFile(path).read(299, 302) == [first[-1], *second[:2]]


@settings(max_examples=100, deadline=None)
@given(
    records=st.lists(st.binary(max_size=80) | st.binary(min_size=8, max_size=8), min_size=1, max_size=60),
    compressor=st.sampled_from(["none", "snappy", "gzip"]),
    chunk_bytes=st.integers(1, 500),
    data=st.data(),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[bytes],
    compressor: str,
    chunk_bytes: int,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("recordio") / "a.recordio"
    with RecordIOWriter(path, compressor, chunk_bytes) as writer:
        for record in records:
            writer.write(record)
    start = data.draw(st.integers(0, len(records) - 1))
    end = data.draw(st.integers(start + 1, len(records)))
    assert RecordIOFile(path).read(start, end) == records[start:end]


def test_records_of_one_length_with_wrong_prefixes_are_not_cut_as_if_they_were_equal(tmp_path: Path) -> None:
    # 4 + 6 and 4 + 2 bytes: together as long as two records of 4 bytes, which a look at the total alone would accept.
    path = tmp_path / "a.recordio"
    path.write_bytes(chunk([b"four", b"sixsix", b"to"], 0))
    assert RecordIOFile(path).read(0, 3) == [b"four", b"sixsix", b"to"]


def test_the_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    writer = RecordIOWriter(tmp_path / "a.recordio")
    writer.write(b"one")
    assert not (tmp_path / "a.recordio").exists()
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.recordio"]


def test_a_failed_writer_leaves_nothing_and_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a.recordio").write_bytes(b"old")
    with pytest.raises(RuntimeError), RecordIOWriter(tmp_path / "a.recordio") as writer:
        writer.write(b"one")
        raise RuntimeError("the source broke")
    assert [path.name for path in tmp_path.iterdir()] == ["a.recordio"]
    assert (tmp_path / "a.recordio").read_bytes() == b"old"


def test_a_file_without_records_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no record was written"), RecordIOWriter(tmp_path / "a.recordio"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_equal_records_make_equal_files(tmp_path: Path) -> None:
    for compressor in ("none", "snappy", "gzip"):
        for name in ("a", "b"):
            with RecordIOWriter(tmp_path / name, compressor) as writer:
                writer.write(b"same" * 100)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("damage", "offset", "what"),
    [
        (lambda data, at: data[: at + 7], 1, "7 of the 20 bytes of a chunk header are left"),
        (lambda data, at: data[:-3], 1, "this chunk ends 3 bytes after the end of the file"),
        (lambda data, at: data[:at] + b"XXXX" + data[at + 4 :], 1, "no chunk starts here"),
        (lambda data, at: data[: at + 8] + b"\x09" + data[at + 9 :], 1, "corrupt chunk header"),
        (lambda data, at: data[: at + 30] + b"\x00" + data[at + 31 :], 1, "the checksum of this chunk is wrong"),
        (lambda data, at: data[: at + 16] + b"\x63" + data[at + 17 :], 1, "its record lengths do not add up"),
    ],
)
def test_damage_names_the_file_the_offset_and_what_to_do(tmp_path: Path, damage, offset: int, what: str) -> None:  # type: ignore[no-untyped-def]
    first, second = chunk([b"first" * 10] * 9, 0), chunk([b"second" * 10] * 9, 0)
    path = tmp_path / "bad.recordio"
    path.write_bytes(damage(first + second, len(first)))
    with pytest.raises(DataError) as caught:
        opened = RecordIOFile(path)
        opened.read(0, opened.records)
    assert caught.value.path == str(path)
    assert caught.value.offset == len(first) * offset
    assert what in str(caught.value)
    assert "elasticdl data verify" in caught.value.remedy


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"not snappy at all",
        b"\xff\x06\x00\x00sNaPpY\x00\xff\xff\x00",
        b"\xff\x06\x00\x00sNaPpY\x02\x00\x00\x00",
        b"\xff\x06\x00\x00sNaPpY\x00\x0a\x00\x00cccc\xff\xff\xff\xff\x0f\x00",
    ],
)
def test_a_chunk_that_does_not_decompress_is_named(tmp_path: Path, stream: bytes) -> None:
    path = tmp_path / "bad.recordio"
    path.write_bytes(struct.pack("<5I", 0x01020304, zlib.crc32(stream), 1, len(stream), 1) + stream)
    with pytest.raises(DataError, match=r"bad\.recordio at byte 0: this chunk"):
        RecordIOFile(path).read(0, 1)


def test_snappy_streams_with_plain_and_skippable_frames_are_read() -> None:
    stream = b"\xff\x06\x00\x00sNaPpY" + b"\x80\x02\x00\x00zz" + b"\x01\x07\x00\x00ccccabc" + b"\x01\x06\x00\x00ccccde"
    assert snappy.decompress(memoryview(stream)) == b"abcde"
    large = random.Random(2).randbytes(200_000) + bytes(200_000)
    assert snappy.decompress(memoryview(snappy.compress(large))) == large


def test_a_file_that_shrinks_while_it_is_read_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.recordio"
    path.write_bytes(chunk([b"one"], 0) + chunk([b"two"], 0))
    opened = RecordIOFile(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="while it was read"):
        opened.read(1, 2)


def test_chunks_used_last_are_kept_up_to_a_limit() -> None:
    kept, file, other = Kept(most_bytes=10), object(), object()
    for number in range(3):
        kept.put((file, number), bytes(3))
    assert kept.get((file, 0)) == bytes(3), "used last now"
    kept.put((other, 0), bytes(4))
    assert [kept.get((file, number)) is not None for number in range(3)] == [True, False, True]
    kept.put((other, 0), bytes(1))
    kept.put((file, 1), bytes(3))
    assert kept.get((file, 0)) and kept.get((file, 2)), "there is room again"
    kept.put((file, 3), bytes(11))
    assert [kept.get((file, number)) is not None for number in range(4)] == [False, False, False, True]


def test_a_small_file_is_read_from_disk_once(tmp_path: Path) -> None:
    path = tmp_path / "small.recordio"
    with RecordIOWriter(path, chunk_bytes=100) as writer:
        for number in range(200):
            writer.write(b"%03d" % number)
    file = RecordIOFile(path)
    expected = [b"%03d" % number for number in range(200)]
    assert file.read(0, 200) == expected
    path.write_bytes(bytes(path.stat().st_size))
    assert file.read(0, 200) == expected
    with pytest.raises(DataError):
        RecordIOFile(path)
