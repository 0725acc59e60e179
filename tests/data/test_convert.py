"""Conversion: records survive every way through the formats, and the result is complete or invisible."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from elasticdl.data.convert import TARGETS, Conversion, convert
from elasticdl.data.example import decode_example, decode_examples, encode_example
from elasticdl.data.reader import open_reader
from elasticdl.data.recordio import RecordIOWriter
from elasticdl.errors import DataError, UsageError
from tests.data.sources import build

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "criteo_sample.txt"


def everything(path: Path) -> list[object]:
    reader = open_reader(str(path))
    return [record for file in reader.describe().files for record in reader.read(file.name, 0, file.records)]


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    folder = tmp_path / "examples"
    folder.mkdir()
    for file in range(2):
        with RecordIOWriter(folder / f"{file}.recordio") as writer:
            for number in range(50):
                image = np.arange(number, number + 16).astype(np.uint8)
                share = np.array([0.1, number / 3], np.float32)
                writer.write(
                    encode_example({"label": number % 10, "image": image, "share": share, "name": f"n{number}"})
                )
    return folder


@pytest.mark.parametrize("middle", TARGETS)
def test_examples_survive_every_format_and_back(examples: Path, tmp_path: Path, middle: str) -> None:
    convert(str(examples), tmp_path / "there", Conversion(middle, records_per_file=30))
    columns = "label:int,image:text,share:text,name:text" if middle == "csv" else ""
    convert(str(tmp_path / "there"), tmp_path / "back", Conversion("recordio", columns=columns))
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == [f"data-{n:05d}.{middle}" for n in range(4)]
    before = decode_examples(everything(examples))  # type: ignore[arg-type]
    after = decode_examples(everything(tmp_path / "back"))  # type: ignore[arg-type]
    assert after["label"].tolist() == before["label"].tolist()
    assert [name.tobytes() for name in after["name"]] == [name.tobytes() for name in before["name"]]
    if middle == "csv":  # several numbers share one field, as text
        assert after["share"][4].tobytes() == b"0.1 1.3333334"
        assert after["image"][0].tobytes() == b" ".join(b"%d" % n for n in range(16))
    else:
        assert np.array_equal(after["share"], before["share"])
        assert np.array_equal(after["image"], before["image"])


def test_bytes_are_copied_as_they_are_between_recordio_and_tfrecord(tmp_path: Path) -> None:
    source = build("recordio-gzip", tmp_path / "a")
    convert(str(source.folder), tmp_path / "b", Conversion("tfrecord"))
    convert(str(tmp_path / "b"), tmp_path / "c", Conversion("recordio", compressor="none"))
    assert everything(tmp_path / "c") == everything(source.folder)
    assert len(list((tmp_path / "c").iterdir())) == 3, "one file for each source file"


def test_the_criteo_sample_comes_back_to_the_byte(tmp_path: Path) -> None:
    source = SAMPLE
    if not source.exists():  # outside the project's own workspace: rows of the same shape
        source = tmp_path / "sample.txt"
        source.write_text("label,I1,I2,C1,C2\n" + "0,,3,05db9164,\n1,260.5,-1,,68fd1e64\n" * 100)
    convert(str(source), tmp_path / "records", Conversion("recordio"))
    convert(str(tmp_path / "records"), tmp_path / "rows", Conversion("csv"))
    assert (tmp_path / "rows" / "data-00000.csv").read_text() == source.read_text().replace("\r\n", "\n")


def test_kinds_are_found_from_the_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,f,gap,word,code,big\n1,0.5,,x,007,99999999999999999999\n-2,3,4,y,010,1\n")
    convert(str(tmp_path / "a.csv"), tmp_path / "out", Conversion("recordio"))
    first = decode_example(everything(tmp_path / "out")[0])  # type: ignore[arg-type]
    assert first["n"].dtype == np.int64
    assert first["f"].dtype == np.float32
    assert math.isnan(first["gap"])
    assert first["word"].tobytes() == b"x"
    assert first["code"].tobytes() == b"007", "leading zeros make it a name"
    assert first["big"].tobytes() == b"99999999999999999999"


def test_columns_may_be_chosen_with_their_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,m\n1,2\n")
    convert(str(tmp_path / "a.csv"), tmp_path / "out", Conversion("tfrecord", columns="m:text"))
    record = decode_example(everything(tmp_path / "out")[0])  # type: ignore[arg-type]
    assert {name: value.tobytes() for name, value in record.items()} == {"m": b"2"}
    with pytest.raises(UsageError, match=r"no column q.*It has: n, m"):
        convert(str(tmp_path / "a.csv"), tmp_path / "x", Conversion("tfrecord", columns="q:int"))
    with pytest.raises(UsageError, match="--example_columns=n:complex"):
        convert(str(tmp_path / "a.csv"), tmp_path / "x", Conversion("tfrecord", columns="n:complex"))


def test_images_become_examples_with_the_class_as_label(tmp_path: Path) -> None:
    source = build("images", tmp_path / "images")
    convert(str(source.folder), tmp_path / "out", Conversion("recordio"))
    last = decode_example(everything(tmp_path / "out")[-1])  # type: ignore[arg-type]
    assert last["label"].tolist() == 2
    assert last["class_name"].tobytes() == b"cow"
    assert last["image"].tobytes() == source.expected["cow"][-1][0]  # type: ignore[index]
    with pytest.raises(UsageError, match="a CSV file cannot hold images"):
        convert(str(source.folder), tmp_path / "csv", Conversion("csv"))


def test_sorted_data_can_be_shuffled_on_the_way(tmp_path: Path) -> None:
    source = build("images", tmp_path / "images")
    convert(str(source.folder), tmp_path / "out", Conversion("recordio", records_per_file=50, shuffle_seed=1))
    records = decode_examples(everything(tmp_path / "out"))  # type: ignore[arg-type]
    labels = records["label"].tolist()
    assert sorted(labels) == [0] * 150 + [1] + [2] * 70
    assert 0 < labels[:50].count(2) < 50


def test_what_does_not_fit_a_later_row_names_the_remedy_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n" + "1\n" * 2000 + "x\n")
    with pytest.raises(DataError, match=r"'x' of column 'n' is not of kind int.*--example_columns=n:text"):
        convert(str(tmp_path / "a.csv"), tmp_path / "out", Conversion("recordio"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_records_that_are_no_examples_cannot_become_rows(tmp_path: Path) -> None:
    source = build("recordio-none", tmp_path / "a")
    with pytest.raises(DataError, match=r"not a tf.train.Example"):
        convert(str(source.folder), tmp_path / "out", Conversion("csv"))


def test_nothing_is_overwritten_without_force_and_nothing_foreign_even_with_it(tmp_path: Path) -> None:
    source = build("csv", tmp_path / "a")
    target = tmp_path / "out"
    convert(str(source.folder), target, Conversion("recordio"))
    with pytest.raises(UsageError, match="exists and is not empty"):
        convert(str(source.folder), target, Conversion("tfrecord"))
    convert(str(source.folder), target, Conversion("tfrecord"), force=True)
    assert {path.suffix for path in target.iterdir()} == {".tfrecord"}
    (target / "thesis.tex").touch()
    with pytest.raises(UsageError, match=r"more than data files \(thesis.tex\)"):
        convert(str(source.folder), target, Conversion("csv"), force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "out"]


def test_a_failed_replacement_keeps_the_old_data(tmp_path: Path) -> None:
    source = build("csv", tmp_path / "a")
    convert(str(source.folder), tmp_path / "out", Conversion("recordio"))
    (tmp_path / "bad.csv").write_text("n\n" + "1\n" * 2000 + "x\n")
    with pytest.raises(DataError):
        convert(str(tmp_path / "bad.csv"), tmp_path / "out", Conversion("recordio"), force=True)
    assert open_reader(str(tmp_path / "out")).describe().records == 221


@pytest.mark.parametrize("target", ["data", "data/inside", "."])
def test_source_and_target_must_lie_apart(tmp_path: Path, target: str) -> None:
    build("csv", tmp_path / "data")
    with pytest.raises(UsageError, match="overlap"):
        convert(str(tmp_path / "data"), tmp_path / target, Conversion("csv"), force=True)


def test_progress_ends_at_the_last_record(tmp_path: Path) -> None:
    source = build("csv", tmp_path / "a")
    steps: list[tuple[int, int]] = []
    made = convert(str(source.folder), tmp_path / "b", Conversion("parquet"), progress=lambda *step: steps.append(step))
    assert steps[-1] == (221, 221)
    assert (made.path, made.records, made.format) == (str(tmp_path / "b"), 221, "parquet")
