"""The check before a job: how much data it reads, and what it says when that is too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl.errors import UsageError
from elasticdl.job.spec import JobSpec
from elasticdl.worker.check import check
from tests.cli.launched import MODELS, flip_byte, write_ids


def _spec(training: Path, validation: Path) -> JobSpec:
    paths = {"training_data": str(training), "validation_data": str(validation)}
    return JobSpec.model_validate({"model_zoo": str(MODELS), "model_def": "witness.custom_model", **paths})


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _notes(found: dict[str, Any]) -> list[str]:
    return list(found["notes"])


@pytest.fixture
def training(tmp_path: Path) -> Path:
    return write_ids(tmp_path / "training", 20000)


@pytest.fixture
def validation(tmp_path: Path) -> Path:
    return write_ids(tmp_path / "validation", 64)


def test_data_up_to_the_limit_is_read_completely(training: Path, validation: Path) -> None:
    limit = _size(training) + _size(validation)
    found = check(_spec(training, validation), limit_bytes=limit)
    assert list(found["datasets"]) == ["training", "evaluation"]
    assert not _notes(found)


def test_data_beyond_the_limit_is_named_with_the_command_that_reads_it(training: Path, validation: Path) -> None:
    flip_byte(training / "ids-1.recordio", 100)
    [note] = _notes(check(_spec(training, validation), limit_bytes=_size(training) - 1))
    assert note == (
        f"--training_data={training}: of these 0.0 GiB only the headers were checked. "
        f"`elasticdl data verify {training}` checks every record."
    )


def test_data_within_the_limit_is_read_though_other_data_is_not(training: Path, validation: Path) -> None:
    flip_byte(validation / "ids-1.recordio", 30)
    with pytest.raises(UsageError, match=r"--validation_data=.*ids-1.recordio at byte 0: the checksum"):
        check(_spec(training, validation), limit_bytes=_size(validation))


def test_one_path_for_training_and_validation_is_read_once(training: Path) -> None:
    assert not _notes(check(_spec(training, training), limit_bytes=_size(training)))


def test_of_very_many_damaged_files_the_first_are_named(tmp_path: Path) -> None:
    folder = write_ids(tmp_path / "ids", 100, files=25)
    for file in folder.iterdir():
        flip_byte(file, 25)
    with pytest.raises(UsageError) as caught:
        check(_spec(folder, folder))
    of_training = [problem for problem in caught.value.problems if problem.where == "--training_data"]
    assert len(of_training) == 21
    assert of_training[-1].what == "5 more of its files are damaged"
    assert of_training[-1].remedy == f"`elasticdl data verify {folder}` names them all."
