"""What tests of whole jobs share: their data, and that no job outlives the test that started it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import allreduce
from tests.processes.harness import end_all


@pytest.fixture(autouse=True)
def _no_job_outlives_its_test() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the jobs of tests.processes.allreduce, unless a module has its own."""
    return allreduce.write_data(tmp_path_factory.mktemp("ids"))
