"""An exporter that was taken for dead and still runs does not harm what its successor publishes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.errors import DataError
from elasticdl.frameworks.publishing import published
from tests.frameworks import two_exporters

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("every", "ways"), [(12, 30), pytest.param(1, 300, marks=pytest.mark.long)])
def test_an_exporter_stopped_at_any_point_and_continued_at_any_other_harms_nobody(
    every: int, ways: int, tmp_path: Path
) -> None:
    program = [sys.executable, "-m", two_exporters.__name__, str(tmp_path / "model"), str(every)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > ways


def test_who_is_too_late_is_told_so_and_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="another process has begun"), published(tmp_path, "last") as late:
        (late / "last").write_text("late")
        with published(tmp_path, "last") as folder:
            (folder / "last").write_text("in time")
        (late / "more").write_text("")
    assert (tmp_path / "last").read_text() == "in time" and [p.name for p in tmp_path.iterdir()] == ["last"]


def test_an_error_of_the_writer_is_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such vocabulary"), published(tmp_path, "last") as folder:
        (folder / "one").write_text("")
        raise FileNotFoundError("no such vocabulary")
    assert not list(tmp_path.iterdir())
