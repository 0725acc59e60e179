"""The contract of a Reader, kept by every format and by custom readers."""

from __future__ import annotations

import contextlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticdl.data.reader import Dataset, open_reader
from elasticdl.data.verification import examine, verify
from elasticdl.errors import DataError, ElasticDLError, UsageError
from tests.data.sources import CHECKSUMMED, COUNTS, FILE_KINDS, KINDS, Source, build

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


@pytest.fixture(scope="module", params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    return build(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=FILE_KINDS)
def file_source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    return build(request.param, tmp_path_factory.mktemp(request.param))


def test_a_description_names_every_file_with_its_records(source: Source) -> None:
    dataset = source.open().describe()
    assert [(file.name, file.records) for file in dataset.files] == list(zip(source.expected, COUNTS, strict=True))
    assert dataset.records == sum(COUNTS)


@SHARED
@given(data=st.data())
def test_any_range_gives_exactly_its_records(source: Source, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(source.expected)))
    records = source.expected[name]
    start = data.draw(st.integers(0, len(records)))
    end = data.draw(st.integers(start, len(records)))
    assert source.open().read(name, start, end) == records[start:end]


def test_an_empty_range_gives_nothing_even_at_the_end(source: Source) -> None:
    reader = source.open()
    for name, records in source.expected.items():
        assert reader.read(name, 0, 0) == reader.read(name, len(records), len(records)) == []


@pytest.mark.parametrize(("start", "end"), [(0, 71), (70, 71), (-1, 3), (5, 4), (71, 71)])
def test_a_range_outside_the_file_is_refused_with_its_size(source: Source, start: int, end: int) -> None:
    name = list(source.expected)[2]
    with pytest.raises(DataError, match=f"records {start} to {end} .* has 70"):
        source.open().read(name, start, end)


def test_a_file_that_is_not_there_is_named(source: Source) -> None:
    with pytest.raises(DataError, match="nowhere"):
        source.open().read("nowhere", 0, 1)


def test_many_threads_read_through_one_reader(source: Source) -> None:
    reader = source.open()
    name, records = next(iter(source.expected.items()))
    ranges = [(start, min(start + 17, len(records))) for start in range(0, len(records), 3)] * 4
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda span: reader.read(name, *span), ranges))
    assert found == [records[start:end] for start, end in ranges]


def test_a_closed_reader_opens_its_files_again(file_source: Source) -> None:
    reader = file_source.open()
    name, records = next(iter(file_source.expected.items()))
    reader.read(name, 0, 1)
    reader.close()
    assert reader.read(name, 1, 2) == records[1:2]


def test_verify_reads_every_record_and_reports_progress(file_source: Source) -> None:
    heard: list[tuple[int, int]] = []
    found = verify(str(file_source.folder), progress=lambda *step: heard.append(step))
    assert not found.problems
    assert sum(file.records for file in found.files) == sum(COUNTS)
    assert heard == [(sum(COUNTS[: n + 1]), sum(COUNTS)) for n in range(len(COUNTS))]


@pytest.mark.parametrize("kind", ["recordio-snappy", "csv", "parquet", "tfrecord"])
def test_a_single_file_and_a_glob_open_too(kind: str, tmp_path: Path) -> None:
    source = build(kind, tmp_path)
    name, records = next(iter(source.expected.items()))
    alone = open_reader(str(source.folder / name))
    assert alone.describe().files[0].name == name
    assert alone.read(name, 0, 3) == records[:3]
    assert open_reader(str(source.folder / "data-*")).describe().records == sum(COUNTS)


def _damaged(source: Source, place: Path) -> tuple[Path, bytes]:
    """A copy of the source, and the file in it that the test damages."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source.folder, place)
    victim = next(path for path in sorted(place.rglob("*")) if path.is_file())
    return victim, victim.read_bytes()


def _records(folder: Path) -> tuple[Dataset, dict[str, list[object]]]:
    reader = open_reader(str(folder))
    dataset = reader.describe()
    return dataset, {file.name: list(reader.read(file.name, 0, file.records)) for file in dataset.files}


@SHARED
@given(data=st.data())
def test_a_truncated_file_is_named_or_at_least_seen_in_the_fingerprint(
    file_source: Source, tmp_path: Path, data: st.DataObject
) -> None:
    victim, whole = _damaged(file_source, tmp_path / "copy")
    before = file_source.open().describe()
    victim.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    try:
        after, records = _records(tmp_path / "copy")
    except DataError as error:
        assert victim.name in error.path
        assert error.offset is not None
        assert error.offset <= len(whole)
        assert error.remedy
        return
    # Cut exactly between two chunks, records or rows, the rest is a sound file: it holds a prefix, and is not the same.
    assert file_source.kind not in ("parquet", "images")
    assert after.fingerprint() != before.fingerprint()
    assert any(victim.name in line for line in before.difference(after))
    name = victim.name
    expected = file_source.expected[name]
    if file_source.kind == "csv":  # the text of the last field may be cut as well: no checksum could tell
        assert records[name][:-1] == expected[: len(records[name]) - 1]
    else:
        assert records[name] == expected[: len(records[name])]


@pytest.mark.parametrize("kind", CHECKSUMMED)
def test_a_flipped_byte_never_gives_wrong_records(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    source = build(kind, tmp_path_factory.mktemp(kind))
    expected = dict(source.expected)
    place = tmp_path_factory.mktemp("copies") / "copy"
    victim, whole = _damaged(source, place)
    noticed = 0
    positions = range(0, len(whole), max(1, len(whole) // 300))
    for position in positions:
        flipped = bytearray(whole)
        flipped[position] ^= 0x20
        victim.write_bytes(flipped)
        try:
            _, records = _records(place)
        except ElasticDLError:
            noticed += 1
            continue
        assert records == expected, f"byte {position}"
    # Parquet's footer has unused bytes; everywhere else each byte counts.
    assert noticed == len(positions) or (kind == "parquet" and noticed > len(positions) // 2)


def test_verify_names_each_bad_file_and_still_checks_the_others(tmp_path: Path) -> None:
    source = build("recordio-snappy", tmp_path / "data")
    for number in (0, 2):
        victim = source.folder / f"data-{number}.recordio"
        data = bytearray(victim.read_bytes())
        data[40] ^= 1
        victim.write_bytes(data)
    found = verify(str(source.folder))
    assert [Path(problem.path).name for problem in found.problems] == ["data-0.recordio", "data-2.recordio"]
    assert [file.name for file in found.files] == ["data-1.recordio"]


@pytest.mark.parametrize("kind", CHECKSUMMED)
def test_verify_notices_every_flipped_byte_that_reading_notices(kind: str, tmp_path: Path) -> None:
    source = build(kind, tmp_path / "data")
    victim, whole = _damaged(source, tmp_path / "copy")
    for position in range(0, len(whole), max(1, len(whole) // 40)):
        victim.write_bytes(whole[:position] + bytes([whole[position] ^ 0x20]) + whole[position + 1 :])
        try:
            _records(tmp_path / "copy")
        except ElasticDLError as error:
            expected = str(error)
            with contextlib.suppress(ElasticDLError):  # a file that does not even open
                found = verify(str(tmp_path / "copy"))
                assert expected in map(str, found.problems), f"byte {position}"


def test_verify_notices_a_csv_row_with_a_column_too_few(tmp_path: Path) -> None:
    source = build("csv", tmp_path)
    victim = source.folder / "data-0.csv"
    lines = victim.read_bytes().splitlines(keepends=True)
    victim.write_bytes(b"".join([lines[0], b"x\n", *lines[1:]]))
    assert "1 columns, the header has" in str(verify(str(source.folder)).problems[0])


@pytest.mark.parametrize("kind", ["csv", "parquet", "recordio-snappy", "tfrecord"])
def test_verify_names_the_other_files_too_when_the_first_one_does_not_open(kind: str, tmp_path: Path) -> None:
    source = build(kind, tmp_path)
    first, _, last = sorted(source.folder.iterdir())
    for file in (first, last):
        file.write_bytes(file.read_bytes()[:-2] + (b'"' if kind == "csv" else b""))
    assert [problem.path for problem in verify(str(source.folder)).problems] == [str(first), str(last)]


def test_verify_names_each_damaged_image_of_a_class(tmp_path: Path) -> None:
    source = build("images", tmp_path)
    images = sorted(path for path in source.folder.rglob("*") if path.is_file())
    for image in (images[1], images[3], images[-1]):
        image.write_bytes(image.read_bytes()[:-3])
    found = verify(str(source.folder))
    assert sorted(problem.path for problem in found.problems) == sorted(map(str, (images[1], images[3], images[-1])))


def test_data_beyond_the_limit_is_checked_by_its_headers_only(tmp_path: Path) -> None:
    source = build("recordio-snappy", tmp_path)
    flipped, cut = (source.folder / f"data-{number}.recordio" for number in (0, 2))
    data = bytearray(flipped.read_bytes())
    data[40] ^= 1
    flipped.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-1])
    found = examine(open_reader(str(source.folder)), limit_bytes=len(data))
    assert not found.complete
    assert [Path(problem.path).name for problem in found.problems] == ["data-2.recordio"]
    found = examine(open_reader(str(source.folder)), limit_bytes=1 << 20)
    assert found.complete
    assert {Path(problem.path).name for problem in found.problems} == {"data-0.recordio", "data-2.recordio"}


def test_a_missing_path_is_the_users_mistake_and_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--training_data=.*nowhere: there is no such file or directory"):
        open_reader(str(tmp_path / "nowhere"), flag="--training_data")


def test_an_empty_directory_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".hidden.part").touch()
    with pytest.raises(UsageError, match="there is no data file in it"):
        open_reader(str(tmp_path))


def test_mixed_formats_are_refused_with_a_file_of_each(tmp_path: Path) -> None:
    build("recordio-none", tmp_path)
    build("tfrecord", tmp_path)
    with pytest.raises(UsageError, match=r"recordio: data-0.recordio.*tfrecord: data-0.tfrecord"):
        open_reader(str(tmp_path))


def test_a_file_of_no_known_format_is_named(tmp_path: Path) -> None:
    build("recordio-none", tmp_path)
    (tmp_path / "notes.md").write_text("about this data")
    with pytest.raises(UsageError, match=r"notes.md has no known format"):
        open_reader(str(tmp_path))


@pytest.mark.parametrize("name", ["a.recordio", "a.csv", "a.parquet", "a.tfrecord", "a"])
def test_an_empty_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=rf"{name} at byte 0: the file is empty"):
        open_reader(str(tmp_path)).describe()


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.recordio").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=r"a.recordio: cannot be read \(No such file"):
        open_reader(str(tmp_path)).describe()


def test_files_without_a_suffix_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    for kind in ("recordio-gzip", "tfrecord", "parquet"):
        source = build(kind, tmp_path / kind)
        for path in source.folder.iterdir():
            path.rename(path.with_suffix(""))
        assert open_reader(str(source.folder)).describe().format == kind.partition("-")[0]


def test_an_unknown_parameter_suggests_the_nearest(tmp_path: Path) -> None:
    source = build("csv", tmp_path)
    with pytest.raises(UsageError, match="Did you mean delimiter"):
        open_reader(str(source.folder), {"delimeter": ";"})
    with pytest.raises(UsageError, match="there is no format 'avro'"):
        open_reader(str(source.folder), {"format": "avro"})


def test_a_url_is_refused_for_now(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="URLs are not supported"):
        open_reader("s3://bucket/data")


def test_more_files_than_may_be_open_are_read_in_turn(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / f"{number:03d}.csv").write_text(f"a\n{number}\n")
    reader = open_reader(str(tmp_path))
    assert reader.describe().records == 150
    for number in range(150):
        assert reader.read(f"{number:03d}.csv", 0, 1) == [{"a": str(number)}]


def test_metadata_names_the_columns_and_the_classes(tmp_path: Path) -> None:
    assert build("csv", tmp_path / "c").open().metadata == {"column_names": ["id", "text", "empty"]}
    assert build("parquet", tmp_path / "p").open().metadata["column_names"] == ["id", "name", "share", "ids"]
    assert build("images", tmp_path / "i").open().metadata == {"class_names": ["ant", "bee", "cow"]}


def test_images_without_class_folders_are_explained(tmp_path: Path) -> None:
    source = build("images", tmp_path / "i")
    with pytest.raises(UsageError, match="one subfolder per class"):
        open_reader(str(source.folder / "ant"))


def test_folders_without_images_and_folders_beside_files_are_explained(tmp_path: Path) -> None:
    build("recordio-none", tmp_path / "train")
    with pytest.raises(UsageError, match=r"only folders \(train\), and no images in them. Name one of them"):
        open_reader(str(tmp_path))
    (tmp_path / "more.csv").write_text("a\n1\n")
    with pytest.raises(UsageError, match=r"both files \(more.csv\) and folders \(train\)"):
        open_reader(str(tmp_path))
    assert open_reader(str(tmp_path), {"format": "csv"}).describe().records == 1
    assert open_reader(str(tmp_path / "*" / "*.recordio")).describe().records == 221


def test_a_description_survives_json_and_tells_what_changed(tmp_path: Path) -> None:
    source = build("recordio-none", tmp_path / "d")
    before = source.open().describe()
    assert Dataset.from_json(before.to_json()) == before
    assert Dataset.from_json(before.to_json()).fingerprint() == before.fingerprint()
    moved = shutil.move(source.folder, tmp_path / "moved")
    assert open_reader(str(moved)).describe().fingerprint() == before.fingerprint()
    (tmp_path / "moved" / "data-0.recordio").unlink()
    shutil.copy(tmp_path / "moved" / "data-1.recordio", tmp_path / "moved" / "data-3.recordio")
    shutil.copy(tmp_path / "moved" / "data-1.recordio", tmp_path / "moved" / "data-2.recordio")
    after = open_reader(str(moved)).describe()
    vanished, appeared, changed = before.difference(after)
    assert vanished == "data-0.recordio vanished (150 records)"
    assert appeared == "data-3.recordio appeared (1 records)"
    assert changed.startswith("data-2.recordio changed:")
    assert changed.endswith("and 1 records now")
    assert before.difference(before) == []
