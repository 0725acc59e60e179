"""Jobs end with the test that started them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.harness import end_all


@pytest.fixture(autouse=True)
def _no_job_outlives_its_test() -> Iterator[None]:
    yield
    end_all()
