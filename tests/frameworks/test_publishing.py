"""An exporter that is considered dead but still runs does not harm the export of its successor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.errors import DataError
from elasticdl.frameworks.export import whole
from elasticdl.frameworks.publishing import Turn, published
from tests.frameworks import two_exporters

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("order", ["begun", "numbered"])
@pytest.mark.parametrize(("every", "ways"), [(12, 30), pytest.param(1, 300, marks=pytest.mark.long)])
def test_an_exporter_stopped_at_any_point_and_continued_at_any_other_does_no_harm(
    every: int, ways: int, order: str, tmp_path: Path
) -> None:
    program = [sys.executable, "-m", two_exporters.__name__, str(tmp_path / "model"), str(every), order]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > ways


@pytest.mark.parametrize("library", ["the system's word", "torch's own"])
def test_a_late_exporter_fails_and_changes_nothing(library: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="another process has started"), published(tmp_path, "last") as late:
        (late / "last").write_text("late")
        with published(tmp_path, "last") as folder:
            (folder / "last").write_text("in time")
        if library == "torch's own":
            raise RuntimeError(f"Parent directory {late} does not exist.")
        (late / "more").write_text("")
    assert (tmp_path / "last").read_text() == "in time" and [p.name for p in tmp_path.iterdir()] == ["last"]


def test_an_error_of_the_writer_is_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such vocabulary"), published(tmp_path, "last") as folder:
        (folder / "one").write_text("")
        raise FileNotFoundError("no such vocabulary")
    assert not list(tmp_path.iterdir())


def write(directory: Path, text: str, turn: Turn) -> None:
    with published(directory, "last", turn) as folder:
        (folder / "last").write_text(text)


def test_an_earlier_request_gives_way_even_if_it_starts_after_the_later_one_ended(tmp_path: Path) -> None:
    write(tmp_path, "asked later", Turn(7, 2))
    with pytest.raises(DataError, match="another process has started"):
        write(tmp_path, "asked before", Turn(7, 1))
    assert (tmp_path / "last").read_text() == "asked later"


def test_an_earlier_request_gives_way_even_if_it_starts_during_the_later_one(tmp_path: Path) -> None:
    with published(tmp_path, "last", Turn(7, 2)) as folder:
        (folder / "last").write_text("asked later")
        with pytest.raises(DataError, match="another process has started"):
            write(tmp_path, "asked before", Turn(7, 1))
    assert (tmp_path / "last").read_text() == "asked later"


def test_requests_of_another_job_are_counted_anew(tmp_path: Path) -> None:
    """Whatever the previous exporter left there, and whatever its clock says."""
    write(tmp_path, "the job before", Turn(8, 2))
    (tmp_path / ".partial" / "3-8.9-dead").mkdir()
    write(tmp_path, "this job", Turn(7, 1))
    assert (tmp_path / "last").read_text() == "this job"
    assert [p.name for p in (tmp_path / ".partial").iterdir()] == ["turn"]


def test_folders_take_the_place_of_what_an_older_export_left(tmp_path: Path) -> None:
    for text, made in (
        ("old", ("deep/er/file", "plain/file", "thing")),
        ("new", ("deep/er/file", "plain", "thing/file")),
    ):
        with whole(tmp_path) as folder:
            for name in made:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
        described = json.loads((tmp_path / "manifest.json").read_text())
        assert described["format"] == "elasticdl-export/1"
        assert {n: f["bytes"] for n, f in described["files"].items()} == dict.fromkeys(sorted(made), 3)
        assert {(tmp_path / name).read_text() for name in made} == {text}
    assert not (tmp_path / ".partial").exists()


def test_an_exporter_that_makes_a_manifest_of_its_own_keeps_it(tmp_path: Path) -> None:
    with whole(tmp_path) as folder:
        (folder / "manifest.json").write_text("mine")
    assert (tmp_path / "manifest.json").read_text() == "mine"
