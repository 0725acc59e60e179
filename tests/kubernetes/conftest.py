"""Fixtures of tests with jobs: a namespace with rights, job descriptions, and a folder that pods share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.job import names
from elasticdl.job.resolve import resolve
from elasticdl.job.spec import JobSpec
from tests.cluster.conftest import run
from tests.cluster.kubernetes_stage import IMAGE, MANIFESTS, PULL, grant, kubectl, own_namespace, require_cluster
from tests.kubernetes import cluster_jobs
from tests.kubernetes.submitted_jobs import KINDS, OVERLAY, WAITS, Make

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


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """A namespace with the account of masters, for a module."""
    require_cluster()
    with own_namespace() as name:
        grant(list(yaml.safe_load_all((MANIFESTS / "elasticdl-rbac.yaml").read_text())), name, names.SERVICE_ACCOUNT)
        yield name


@pytest.fixture
def make(namespace: str, tmp_path: Path) -> Iterator[Make]:
    """Describes jobs whose masters run a script. Their objects are removed after the test."""

    def made(script: str = WAITS, more: str = "pass", **values: Any) -> JobSpec:
        (tmp_path / "overlay.py").write_text(OVERLAY.format(script=script, more=more))
        given = {
            "job_name": "j", "image_name": IMAGE, "image_pull_policy": PULL, "model_def": "a.b.c",
            "training_data": "/data", "namespace": namespace, "cluster_spec": str(tmp_path / "overlay.py"),
        }  # fmt: skip
        return resolve(JobSpec.model_validate({**given, **values})).require()

    yield made
    kubectl("delete", KINDS, "-l", "app=elasticdl", "--grace-period=0", "--force", namespace=namespace, fails=True)
