"""Whole jobs from an image alone, on any cluster: nothing of this machine is mounted.

ELASTICDL_K8S_JOB_IMAGE names an image that the cluster's nodes can have: the development image of this tree, built with
GEN_DATA=yes and pushed. Without it, elasticdl:dev, where the cluster's engine is this machine's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.kubernetes_stage import own_namespace, require_cluster
from tests.kubernetes.cluster_jobs import (
    SECONDS,
    ClusterJob,
    allow_jobs,
    require_image,
    require_this_machine,
    submitted,
)

pytestmark = [pytest.mark.kubernetes, pytest.mark.long, pytest.mark.timeout(900)]

Run = Callable[..., None]
NAMED = os.environ.get("ELASTICDL_K8S_JOB_IMAGE")
RECORDS = 10_000
MNIST = (
    f"--image_name={NAMED or 'elasticdl:dev'}", f"--image_pull_policy={'IfNotPresent' if NAMED else 'Never'}",
    "--model_zoo=/elasticdl/model_zoo", "--model_def=mnist.mnist_functional_api.custom_model",
    "--training_data=/data/mnist/test", "--num_epochs=1", "--num_workers=2", "--num_minibatches_per_task=4",
)  # fmt: skip


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    require_cluster()
    if not NAMED:
        require_this_machine()
        require_image("elasticdl:dev")
    with own_namespace() as name:
        allow_jobs(name)
        yield name


async def trained_though_a_worker_is_deleted(job: ClusterJob, next_worker: str) -> None:
    await job.until(lambda s: s.version >= 5)
    await job.delete("worker-0")
    await job.running(next_worker)
    result = await job.result()
    assert result["outcome"] == "succeeded", f"{result}\n{job.story()}"
    assert int(result["status"]["records_done"]) == RECORDS
    assert await job.cleared() == [f"pod/{job.full('master')}"]


def test_a_job_with_a_parameter_server(run: Run, namespace: str) -> None:
    flags = (*MNIST, "--minibatch_size=64", "--num_ps_pods=1", "--distribution_strategy=ParameterServerStrategy",
             "--validation_data=/data/mnist/test", "--evaluation_steps=50")  # fmt: skip

    async def story() -> None:
        async with submitted(namespace, "anywhere", *flags) as job:
            await trained_though_a_worker_is_deleted(job, "worker-2")
            assert re.search(r"Evaluation metrics\[v=50\]: \{'accuracy': ", job.log("master"))

    run(story(), SECONDS)


def test_an_all_reduce_job(run: Run, namespace: str) -> None:
    flags = (*MNIST, "--minibatch_size=64", "--distribution_strategy=AllreduceStrategy", "--audit=true")

    async def story() -> None:
        async with submitted(namespace, "anywhere-allreduce", *flags) as job:
            await trained_though_a_worker_is_deleted(job, "worker-2")

    run(story(), SECONDS)
