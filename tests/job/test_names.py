"""Names that leave the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.job import names
from elasticdl.job.spec import JobSpec


def test_replicas_are_named_as_their_pods() -> None:
    assert names.replica_name("test-mnist", "master") == "elasticdl-test-mnist-master"
    assert names.replica_name("test-mnist", "ps", 0) == "elasticdl-test-mnist-ps-0"
    assert names.replica_name("test-mnist", "worker", 12) == "elasticdl-test-mnist-worker-12"
    with pytest.raises(ValueError, match="no role"):
        names.replica_name("j", "helper")


@pytest.mark.parametrize("job", ["test-mnist", "a", "my-worker-3-job", "x-master"])
@pytest.mark.parametrize(("role", "index"), [("master", 0), ("worker", 7), ("ps", 0), ("evaluator", 1), ("chief", 0)])
def test_a_name_tells_the_job_the_role_and_the_index(job: str, role: str, index: int) -> None:
    assert names.parse_replica_name(names.replica_name(job, role, index)) == (job, role, index)


def test_other_names_are_refused() -> None:
    for name in ("nginx", "elasticdl-j-worker", "elasticdl-j-helper-0"):
        with pytest.raises(ValueError, match="not a replica"):
            names.parse_replica_name(name)


def test_labels_are_those_that_scripts_select_by() -> None:
    assert names.labels("j", "worker", 1) == {
        "app": "elasticdl",
        "elasticdl-job-name": "j",
        "elasticdl-replica-type": "worker",
        "elasticdl-replica-index": "1",
    }
    assert names.labels("j") == {"app": "elasticdl", "elasticdl-job-name": "j"}


@pytest.mark.parametrize("model", ["mnist.mnist_functional_api.custom_model", "A" * 80 + ".b", "", "x._y_.z", "job"])
def test_a_made_up_name_is_one_that_a_job_may_have(model: str) -> None:
    name = names.made_up_job_name(model, "a1b2c3")
    assert JobSpec(job_name=name).job_name == name
    assert name.endswith("-a1b2c3")


def test_the_environment_that_user_code_reads_keeps_its_names() -> None:
    assert (
        names.ENV_MASTER_ADDR,
        names.ENV_WORKER_ID,
        names.ENV_WORKER_NUM,
        names.ENV_POD_IP,
        names.ENV_TF_CONFIG,
    ) == (
        "MASTER_ADDR",
        "WORKER_ID",
        "WORKER_NUM",
        "MY_POD_IP",
        "TF_CONFIG",
    )


def test_the_files_of_a_job_lie_below_its_folder() -> None:
    paths = names.JobPaths(Path("/s"), "j")
    assert paths.job_file == Path("/s/j/job.json")
    assert paths.log("elasticdl-j-worker-0") == Path("/s/j/logs/elasticdl-j-worker-0.log")
    found = {value.name for name in vars(names.JobPaths) if isinstance(value := getattr(paths, name), Path)}
    assert found == {
        "j",
        "job.json",
        "token",
        "journal.sqlite",
        "logs",
        "launcher.sock",
        "datasets.json",
        "launcher.pid",
        "master.addr",
        "result.json",
        "checkpoint",
    }
