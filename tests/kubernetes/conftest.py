"""What tests of whole jobs share: a namespace in which jobs may run, and a folder that pods have too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import run
from tests.cluster.kubernetes_stage import own_namespace
from tests.kubernetes import cluster_jobs

__all__ = ["run"]


@pytest.fixture(scope="session")
def jobs_namespace() -> Iterator[str]:
    cluster_jobs.require_this_machine()
    with own_namespace() as name:
        cluster_jobs.allow_jobs(name)
        yield name


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")
