"""`elasticdl data` as a user types it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.cli.commands.data import add_arguments, run
from elasticdl.data.criteo import COLUMNS
from elasticdl.data.reader import open_reader
from elasticdl.errors import UsageError
from tests.data.sources import build


def data(*words: object) -> int:
    parser = argparse.ArgumentParser(prog="elasticdl data")
    add_arguments(parser)
    return run(parser.parse_args([str(word) for word in words]))


def test_convert_reports_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = build("csv", tmp_path / "a")
    assert data("convert", source.folder, tmp_path / "b", "--to=recordio", "--records_per_file=100") == 0
    assert "221 records in 3 files (recordio)" in capsys.readouterr().out
    assert data("convert", tmp_path / "b", tmp_path / "c", "--to=parquet", "--example_columns=id:text,text:text") == 0
    assert open_reader(str(tmp_path / "c")).metadata == {"column_names": ["id", "text"]}


def test_convert_takes_the_parameters_of_the_sources_reader(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1;2\n")
    params = "--data_reader_params=delimiter=,; columns=x"
    with pytest.raises(UsageError, match="instead of name=value"):
        data("convert", tmp_path / "a.csv", tmp_path / "b", "--to=csv", "--data_reader_params=delimiter")
    assert data("convert", tmp_path / "a.csv", tmp_path / "b", "--to=csv", params) == 0
    assert (tmp_path / "b" / "data-00000.csv").read_text() == "x\n1;2\n"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("recordio-snappy", ["recordio", "data-0.recordio", "150", "221", "file 0 record 0"]),
        ("csv", ["csv", "column_names: id, text, empty", "id: '0-0'"]),
        ("images", ["images", "class_names: ant, bee, cow", "class: ant"]),
        ("parquet", ["parquet", "share: 0.0"]),
    ],
)
def test_inspect_shows_files_records_and_the_first_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, words: list[str]
) -> None:
    assert data("inspect", build(kind, tmp_path).folder) == 0
    shown = capsys.readouterr().out
    for word in words:
        assert word in shown


def test_verify_exits_with_1_and_names_the_bad_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = build("tfrecord", tmp_path)
    assert data("verify", source.folder) == 0
    assert "good: 3 files with 221 records; bad: 0 files" in capsys.readouterr().out
    victim = source.folder / "data-2.tfrecord"
    victim.write_bytes(victim.read_bytes()[:-1])
    assert data("verify", source.folder) == 1
    shown = capsys.readouterr()
    assert "data-2.tfrecord at byte" in shown.err
    assert "bad: 1 file" in shown.out


def test_criteo_makes_rows_of_the_right_shape_with_a_signal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data("criteo", tmp_path / "a", "--records=3000", "--seed=4") == 0
    best = float(capsys.readouterr().out.rsplit(" ", 1)[1])
    assert 0.75 < best < 0.95
    reader = open_reader(str(tmp_path / "a" / "train"))
    assert reader.describe().records == 3000
    assert open_reader(str(tmp_path / "a" / "test")).describe().records == 300
    assert reader.metadata["column_names"] == list(COLUMNS)
    rows = reader.read("data-00000.csv", 0, 750)
    assert 0.1 < sum(row["label"] == "1" for row in rows) / 750 < 0.6  # type: ignore[call-overload, index]
    assert data("criteo", tmp_path / "b", "--records=3000", "--seed=4", "--to=recordio") == 0
    assert (
        data("convert", tmp_path / "b" / "train", tmp_path / "c", "--to=csv", "--example_columns=label:int,C1:text")
        == 0
    )
    again = open_reader(str(tmp_path / "c")).read("data-00000.csv", 0, 750)
    assert again == [{"label": row["label"], "C1": row["C1"]} for row in rows]  # type: ignore[call-overload, index]


def test_the_same_seed_makes_the_same_clicks(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        data("criteo", tmp_path / name, "--records=200", f"--seed={seed}")
    a, b, c = ((tmp_path / name / "train" / "data-00000.csv").read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("words", [[], ["convert", "a", "b", "--to=avro"], ["criteo", "a", "--records=0"], ["shred"]])
def test_wrong_words_end_with_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        data(*words)
    assert stopped.value.code == 2
    assert "usage: elasticdl data" in capsys.readouterr().err


def test_it_runs_as_a_program_and_a_wrong_path_exits_with_2(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "elasticdl", "data", "inspect", str(tmp_path / "nowhere")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("elasticdl data: PATH=")
    assert "Traceback" not in done.stderr


def test_help_loads_no_numpy_and_no_rich() -> None:
    program = (
        "import sys, argparse; from elasticdl.cli.commands.data import add_arguments\n"
        "add_arguments(argparse.ArgumentParser())\n"
        "print([name for name in ('numpy', 'rich', 'cramjam', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
