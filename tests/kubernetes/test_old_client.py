"""The client of ElasticDL 1.0 from its package index submits jobs that this version trains.

ELASTICDL_OLD_CLIENT names the folder of an environment that has it; without one it is installed for the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from elasticdl.job import names
from tests.cluster.kubernetes_stage import MANIFESTS, kubectl, kubectl_soon, own_namespace
from tests.kubernetes.cluster_jobs import (
    ROOT,
    SMALL,
    ClusterJob,
    allow_jobs,
    in_pods,
    local_claim,
    removed_at_the_end,
    require_image,
    require_this_machine,
)
from tests.kubernetes.digits import RECORDS as RECORDS_OF_DIGITS
from tests.kubernetes.digits import mnist, write_digits
from tests.processes.harness import audit_witness, write_ids
from tests.seeds.command_lines import COPY

pytestmark = pytest.mark.kubernetes

PACKAGES = ("elasticdl_client==1.0.0", "MarkupSafe==2.0.1", "requests<2.32", "urllib3<2")
RECORDS, EPOCHS = 600, 2
IMAGE = os.environ.get("ELASTICDL_TUTORIAL_IMAGE", "elasticdl:runtime")  # of this tree: scripts/travis/build_images.sh


@pytest.fixture(scope="module")
def old_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its `elasticdl` command."""
    named = os.environ.get("ELASTICDL_OLD_CLIENT")
    if named:
        return Path(named) / "bin" / "elasticdl"
    folder = tmp_path_factory.mktemp("old-client")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES]
    done = subprocess.run(install, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"the old client cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return folder / "bin" / "elasticdl"


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    require_this_machine()
    with own_namespace() as name:
        allow_jobs(name, from_inside=True)
        yield name


@contextlib.asynccontextmanager
async def submitted(client: Path, namespace: str, job: str, *flags: str) -> AsyncIterator[ClusterJob]:
    """A job of the old client's, removed at the end."""
    command = [str(client), "train", f"--job_name={job}", f"--namespace={namespace}", *SMALL, *flags]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    async with removed_at_the_end(namespace, job) as running:
        yield running


def witness(tmp: Path, *flags: str, **env: str) -> list[str]:
    data = write_ids(tmp / "ids", RECORDS)
    return [
        *in_pods(tmp, OMP_NUM_THREADS="1", **env), f"--model_zoo={ROOT / 'tests' / 'models'}",
        "--model_def=witness.custom_model", f"--training_data={data}", f"--num_epochs={EPOCHS}", "--minibatch_size=10",
        "--num_minibatches_per_task=4", "--aux_params=num_servers=1", f"--output={tmp / 'model'}", "--num_ps_pods=1",
        "--num_workers=2", "--distribution_strategy=ParameterServerStrategy", *flags,
    ]  # fmt: skip


def test_a_job_of_the_old_client_trains_every_record_once_though_its_master_is_deleted(
    old_client: Path, namespace: str, shared: Path
) -> None:
    slow = shared / "slow"  # while it exists: a deleted master remains for some seconds
    slow.touch()

    async def story() -> None:
        env = {"PEBBLE_SECONDS": "1", "PEBBLE_SLOW": str(slow)}
        flags = witness(shared, f"--validation_data={shared / 'ids'}", "--evaluation_steps=60", **env)
        async with submitted(old_client, namespace, "old", *flags) as job:
            await job.running("ps-0", "worker-0", "worker-1", "keeper")
            await job.until(lambda s: s.version >= 10)
            before = job.uids("master", "worker-0")
            await job.delete("master")
            await job.pod_seen("master", lambda pod: pod["metadata"]["uid"] != before["master"])
            slow.unlink()
            result = await job.result()
            assert result["outcome"] == "succeeded", job.story()
            assert int(result["status"]["records_done"]) == RECORDS * EPOCHS
            log = job.log("master")
            assert "Evaluation metrics[v=60]" in log or int(result["status"]["master_starts"]) == 2
            assert await job.cleared() == ["pod/elasticdl-old-master"]

    asyncio.run(story())
    audit_witness(shared / "model", RECORDS, EPOCHS, 1)


def test_what_is_wrong_with_a_job_of_the_old_client_is_in_its_pods_log(
    old_client: Path, namespace: str, shared: Path
) -> None:
    async def story() -> None:
        async with submitted(old_client, namespace, "wrong", *witness(shared, ELASTICDL_X="1")) as job:
            await job.pod_seen("master", lambda pod: pod["status"].get("phase") == "Failed")
            assert "--envs=ELASTICDL_X=1: set by ElasticDL itself. Remove ELASTICDL_X." in job.log("master")
            assert await job.cleared() == ["pod/elasticdl-wrong-master"], "nothing was made for it"

    asyncio.run(story())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_first_tutorials_all_reduce_job_of_the_old_client(old_client: Path, namespace: str, shared: Path) -> None:
    digits = write_digits(shared / "mnist")
    # Small batches: every hundredth step logs its loss.
    small = ("--minibatch_size=4", "--num_epochs=1", "--num_workers=2")
    flags = [*in_pods(shared), *mnist(digits, "AllreduceStrategy"), *small]

    async def story() -> None:
        async with submitted(old_client, namespace, "test-mnist-allreduce", *flags) as job:
            await job.running("worker-0", "worker-1")
            followed = asyncio.create_task(kubectl_soon("logs", "-f", job.full("worker-0"), namespace=namespace))
            seen = await job.until(lambda s: s.version >= 1 and len(s.world) == 2)
            assert sorted(seen.world) == [job.full("worker-0"), job.full("worker-1")]
            result = await job.result()
            assert result["outcome"] == "succeeded", job.story()
            assert int(result["status"]["records_done"]) == RECORDS_OF_DIGITS
            assert re.search(r"Loss = [\d.]+, steps = \d+", await followed)
            assert await job.cleared() == ["pod/elasticdl-test-mnist-allreduce-master"]

    asyncio.run(story())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_second_tutorials_job_of_the_old_client_has_its_priorities(
    old_client: Path, namespace: str, shared: Path
) -> None:
    digits = write_digits(shared / "mnist")
    kubectl("apply", "-f", str(MANIFESTS / "high.yaml"), "-f", str(MANIFESTS / "low.yaml"))
    flags = [
        *in_pods(shared), f"--model_zoo={ROOT / 'model_zoo'}", f"--training_data={digits / 'train'}",
        "--model_def=mnist_functional_api.mnist_functional_api.custom_model", f"--validation_data={digits / 'test'}",
        "--num_epochs=5", "--minibatch_size=64", "--num_minibatches_per_task=64", "--master_pod_priority=high",
        "--worker_pod_priority=low", "--ps_pod_priority=high", "--num_ps_pods=2", "--num_workers=4", "--log_level=INFO",
        "--evaluation_steps=20", "--grads_to_wait=1", "--distribution_strategy=ParameterServerStrategy",
    ]  # fmt: skip

    async def story() -> None:
        async with submitted(old_client, namespace, "test-mnist", *flags) as job:
            replicas = ("ps-0", "ps-1", "worker-0", "worker-1", "worker-2", "worker-3")
            for short in replicas:
                pod = await job.pod_seen(short, lambda _: True)
                assert pod["spec"]["priorityClassName"] == ("low" if short.startswith("worker") else "high"), short
            assert job.pods()["master"]["spec"]["priorityClassName"] == "high"
            result = await job.result()
            assert result["outcome"] == "succeeded", job.story()
            assert int(result["status"]["records_done"]) == 5 * RECORDS_OF_DIGITS
            assert "Evaluation metrics[v=20]: {'accuracy': " in job.log("master")

    asyncio.run(story())


# Pods of that client have no user, no group and no init container; images of this tree are not root.


def as_typed(tutorial: str, strategy: str, *ours: str) -> list[str]:
    """The command of a tutorial's job, with these flags and other sizes of pods; the image has no models."""
    lines = [line for line in COPY.read_text().splitlines() if line.startswith(f"{tutorial} elasticdl train")]
    (typed,) = (line[4:] for line in lines if f"--distribution_strategy={strategy}" in line)
    ours = (f"--image_name={IMAGE}", "--model_zoo=/data/model_zoo", *ours)
    changed = {flag.partition("=")[0] for flag in (*ours, *SMALL)} | {"--job_name"}
    return [*(flag for flag in shlex.split(typed)[2:] if flag.partition("=")[0] not in changed), *ours]


def fill(folder: Path) -> None:
    write_digits(folder / "mnist")
    shutil.copytree(ROOT / "model_zoo", folder / "model_zoo")
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (0, 0o755), "root's alone to write to, as a rule"


async def trained(job: ClusterJob, epochs: int, evaluated: Sequence[str]) -> None:
    """Wait for its end, with the master that the keeper started in place of the first one, at no cost."""
    result = await job.result()
    assert result["outcome"] == "succeeded", job.story()
    assert int(result["status"]["records_done"]) == epochs * RECORDS_OF_DIGITS
    assert int(result["status"]["master_starts"]) == 1, "the first one began nothing"
    log, meta = job.log("master"), job.pods()["master"]["metadata"]
    assert re.findall(r"Evaluation metrics\[v=(\d+)\]: \{'accuracy': ", log)[: len(evaluated)] == evaluated, log
    assert meta["annotations"][names.ANNOTATION_CRASHES] == "0"
    assert await job.cleared() == [f"pod/{job.full('master')}"]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.getuid() != 0, reason="only root makes a folder that is root's")
@pytest.mark.parametrize("restart", ["Never", "Always"])
def test_the_first_tutorials_parameter_server_job_of_the_old_client_on_a_directory_that_is_roots(
    old_client: Path, namespace: str, tmp_path: Path, restart: str
) -> None:
    require_image(IMAGE)
    (tmp_path / "data").mkdir(mode=0o755)
    fill(tmp_path / "data")
    volume = f"--volume=host_path={tmp_path / 'data'},mount_path=/data"
    flags = as_typed("000", "ParameterServerStrategy", volume, "--evaluation_steps=10", f"--restart_policy={restart}")

    async def story() -> None:
        async with submitted(old_client, namespace, f"test-mnist-{restart.lower()}", *flags) as job:
            await job.running("ps-0", "worker-0")
            assert "Replacing the master: cannot write the job's state to /data" in job.log("keeper")
            assert job.pods()["master"]["spec"]["initContainers"][0]["name"] == "state-folder"
            await trained(job, epochs=2, evaluated=["10", "20", "30"])

    asyncio.run(story())


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.getuid() != 0, reason="only root makes a folder that is root's")
def test_the_first_tutorials_all_reduce_job_of_the_old_client_on_an_image_of_this_tree(
    old_client: Path, namespace: str, tmp_path: Path
) -> None:
    require_image(IMAGE)
    (tmp_path / "data").mkdir(mode=0o755)
    fill(tmp_path / "data")
    volume = f"--volume=host_path={tmp_path / 'data'},mount_path=/data"
    flags = as_typed("000", "AllreduceStrategy", volume)

    async def story() -> None:
        async with submitted(old_client, namespace, "test-mnist-on-image", *flags) as job:
            await job.running("worker-0", "worker-1")
            result = await job.result()
            assert result["outcome"] == "succeeded", job.story()
            assert int(result["status"]["records_done"]) == RECORDS_OF_DIGITS
            assert await job.cleared() == [f"pod/{job.full('master')}"]

    asyncio.run(story())


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.getuid() != 0, reason="only root makes a folder that is root's")
def test_the_second_tutorials_job_of_the_old_client_on_a_claim_that_is_roots(
    old_client: Path, namespace: str, tmp_path: Path
) -> None:
    require_image(IMAGE)
    kubectl("apply", "-f", str(MANIFESTS / "high.yaml"), "-f", str(MANIFESTS / "low.yaml"))
    claimed = tmp_path / "claimed"
    flags = as_typed("001", "ParameterServerStrategy", "--evaluation_steps=10", "--image_pull_policy=Never")
    assert "--volume=mount_path=/data,claim_name=fileserver-claim" in flags

    async def story() -> None:
        async with submitted(old_client, namespace, "test-mnist-claimed", *flags) as job:
            replicas = ("ps-0", "ps-1", "worker-0", "worker-1", "worker-2", "worker-3")
            for short in replicas:
                pod = await job.pod_seen(short, lambda _: True)
                assert pod["spec"]["priorityClassName"] == ("low" if short.startswith("worker") else "high"), short
                assert all("hostPath" not in volume for volume in pod["spec"]["volumes"]), short
            await trained(job, epochs=5, evaluated=["10"])  # four workers are soon past the next

    with local_claim(namespace, "fileserver-claim", claimed):
        fill(claimed)
        asyncio.run(story())


def test_a_master_without_rights_names_the_command_that_grants_them(old_client: Path, shared: Path) -> None:
    require_this_machine()

    async def story(namespace: str) -> None:
        async with submitted(old_client, namespace, "unlawful", *witness(shared)) as job:
            await job.pod_seen("master", lambda pod: pod["status"].get("phase") == "Failed")
            (remedy,) = re.findall(r"An administrator allows it once: (.*)\.?$", job.log("master"), re.MULTILINE)
            command = ["bash", "-euo", "pipefail", "-c", remedy]
            await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=True, timeout=60)
            for account in ("default", names.SERVICE_ACCOUNT):
                asked = ("auth", "can-i", "create", "pods", f"--as=system:serviceaccount:{namespace}:{account}")
                assert (await kubectl_soon(*asked, namespace=namespace)).strip() == "yes"

    with own_namespace() as namespace:
        asyncio.run(story(namespace))


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that pods of every user can write to."""
    tmp_path.chmod(0o777)
    return tmp_path
