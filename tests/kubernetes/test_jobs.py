"""Jobs as pods of a real cluster: both strategies, jobs that cannot begin, and pods that are not the job's."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from elasticdl.job import names
from tests.cluster.kubernetes_stage import MANIFESTS, kubectl, kubectl_soon, own_namespace
from tests.kubernetes.cluster_jobs import (
    ROOT,
    SECONDS,
    ClusterJob,
    allow_jobs,
    in_pods,
    local_claim,
    require_image,
    require_this_machine,
    submitted,
)
from tests.kubernetes.digits import mnist, write_digits
from tests.kubernetes.witnesses import proven, witness
from tests.processes.harness import audit_witness, write_ids

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]

Run = Callable[..., None]

# The jobs of the first tutorial.


@pytest.fixture(scope="module")
def digits(shared: Path) -> Path:
    return write_digits(shared / "mnist")


def test_a_job_with_a_parameter_server_trains_evaluates_and_leaves_only_its_masters_pod(
    run: Run, jobs_namespace: str, shared: Path, digits: Path
) -> None:
    flags = [
        *mnist(digits, "ParameterServerStrategy"), f"--validation_data={digits / 'test'}", "--num_epochs=2",
        "--log_loss_steps=5", "--num_ps_pods=1", "--num_workers=1", "--evaluation_steps=10", *in_pods(shared),
    ]  # fmt: skip

    before = set((shared / ".elasticdl").glob("*"))

    async def story() -> None:
        async with submitted(jobs_namespace, "test-mnist", *flags) as job:
            await job.until(lambda s: s.version >= 10)
            pods = {pod["metadata"]["name"] for pod in job.pods().values()}
            roles = ("keeper", "master", "ps-0", "worker-0")
            assert pods == {f"elasticdl-test-mnist-{role}" for role in roles}
            assert "Loss = " in job.log("worker-0")
            for short in ("worker-0", "ps-0"):
                spec = job.pods()[short]["spec"]
                assert spec["automountServiceAccountToken"] is False
            result = await job.result()
            assert (result["outcome"], result["exit_code"]) == ("succeeded", 0), result
            assert int(result["status"]["records_done"]) == 2 * 960
            log = job.log("master")
            assert re.search(r"Evaluation service started", log), log
            steps = re.findall(r"Evaluation metrics\[v=(\d+)\]: \{'accuracy': [\d.]+\}", log)
            assert steps[:3] == ["10", "20", "30"], log
            assert re.search(r"Evaluation service stopped", log), log
            assert await job.cleared() == ["pod/elasticdl-test-mnist-master"]
            assert job.pods()["master"]["status"]["phase"] == "Succeeded"
            assert set((shared / ".elasticdl").iterdir()) <= before, (
                "a job that is done leaves no journal on the volume"
            )

    run(story(), SECONDS)


def test_an_all_reduce_job_of_two_workers(run: Run, jobs_namespace: str, shared: Path, digits: Path) -> None:
    flags = [
        *mnist(digits, "AllreduceStrategy"), "--num_epochs=1", "--num_workers=2", "--audit=true",
        f"--output={shared / 'mnist-model'}", *in_pods(shared),
    ]  # fmt: skip

    async def story() -> None:
        async with submitted(jobs_namespace, "test-mnist-allreduce", *flags) as job:
            seen = await job.until(lambda s: s.version >= 1 and len(s.world) == 2)
            assert sorted(seen.world) == [job.full("worker-0"), job.full("worker-1")]
            result = await job.result()
            assert result["outcome"] == "succeeded", result
            assert result["status"]["audit"] == "960 records, each trained exactly 1 time"
            assert (shared / "mnist-model" / "manifest.json").exists()

    run(story(), SECONDS)


# As pods run where no directory of a node is mounted: not as root, with nothing to write to but volumes and /tmp.

IMAGE = os.environ.get("ELASTICDL_TUTORIAL_IMAGE", "elasticdl:runtime")  # of this tree: scripts/travis/build_images.sh
LOOK = "id -u; id -G; touch /opt/elasticdl/mine 2>&1; touch /tmp/mine && echo tmp is writable"


@pytest.fixture
def claim(jobs_namespace: str, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    with local_claim(jobs_namespace, "claimed", tmp_path / "claimed"):
        yield "claimed", tmp_path / "claimed"


def on_claim(name: str, folder: Path) -> list[str]:
    """The witness model, which is not in the image."""
    write_ids(folder / "ids", 400)
    for model in ("witness.py", "pebble.py"):
        shutil.copy(ROOT / "tests" / "models" / model, folder)
    return [
        f"--image_name={IMAGE}", "--image_pull_policy=Never", f"--volume=claim_name={name},mount_path=/claimed",
        "--model_zoo=/claimed", "--model_def=witness.custom_model", "--training_data=/claimed/ids",
        "--num_epochs=2", "--minibatch_size=8", "--num_minibatches_per_task=4", "--num_ps_pods=1", "--num_workers=1",
    ]  # fmt: skip


def test_a_job_of_an_image_trains_on_a_claim_without_being_root_anywhere(
    run: Run, jobs_namespace: str, claim: tuple[str, Path]
) -> None:
    require_image(IMAGE)
    name, folder = claim
    (folder / "slow").touch()
    flags = [
        *on_claim(name, folder), "--output=/claimed/model", "--checkpoint_seconds=3",
        "--envs=PEBBLE_SECONDS=0.5,PEBBLE_SLOW=/claimed/slow",
    ]  # fmt: skip

    async def story() -> None:
        async with submitted(jobs_namespace, "claimed", *flags) as job:
            seen = await job.until(lambda s: bool(s.checkpoint))
            assert seen.checkpoint.startswith("/claimed/.elasticdl/")
            for short, pod in job.pods().items():
                assert pod["spec"]["securityContext"]["runAsNonRoot"], short
                assert all("hostPath" not in volume for volume in pod["spec"]["volumes"]), short
                told = (await job.execute(short, "sh", "-c", LOOK)).splitlines()
                assert (told[0], "1000" in told[1].split(), told[3]) == ("1000", True, "tmp is writable"), told
                assert "Read-only file system" in told[2]
            (folder / "slow").unlink()
            result = await job.result()
            assert result["outcome"] == "succeeded", f"{result}\n{job.story()}"

    run(story(), SECONDS)
    audit_witness(folder / "model", records=400, epochs=2, servers=1)
    assert (folder / "model").stat().st_uid == 1000
    assert not list((folder / ".elasticdl").iterdir()), "a job that is done leaves no journal on the volume"


@pytest.fixture
def roots(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A namespace, and the folder of its claim, which another pod has mounted, as in the second tutorial. The folder
    then still belongs to root, as on NFS."""
    require_this_machine()
    require_image(IMAGE)
    pod = yaml.safe_load((MANIFESTS / "examples" / "my-pod.yaml").read_text())
    pod["spec"]["containers"][0] |= {"image": IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "600"]}
    pod["spec"]["containers"][0]["securityContext"] = {"runAsUser": 0}
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    with own_namespace() as namespace, local_claim(namespace, "fileserver-claim", tmp_path / "claimed"):
        allow_jobs(namespace)
        kubectl("apply", "-f", "-", namespace=namespace, stdin=yaml.safe_dump(pod))
        kubectl("wait", "--for=condition=Ready", "pod/my-pod", "--timeout=60s", namespace=namespace)
        yield namespace, tmp_path / "claimed"


def test_on_a_claim_that_stays_roots_a_pod_that_is_root_makes_the_jobs_folder(
    run: Run, roots: tuple[str, Path]
) -> None:
    namespace, folder = roots

    async def story() -> None:
        async with submitted(namespace, "roots", *on_claim("fileserver-claim", folder)) as job:
            result = await job.result()
            assert result["outcome"] == "succeeded", f"{result}\n{job.story()}"
            assert int(result["status"]["records_done"]) == 800
            assert "Permission denied; starting a root pod to create it" in job.log("master")
            assert "initContainers" not in job.pods()["master"]["spec"]
            assert await job.cleared() == ["pod/elasticdl-roots-master"]
            assert not kubectl("get", "pod", "elasticdl-roots-master-folder", "--ignore-not-found", namespace=namespace)
            assert (folder / ".elasticdl").stat().st_mode & 0o7777 == 0o1777
            assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (0, 0o755), "no more was changed"

    run(story(), SECONDS)


def test_where_no_such_pod_may_be_made_the_job_fails_with_the_reason_and_the_remedy(
    run: Run, roots: tuple[str, Path]
) -> None:
    namespace, folder = roots
    kubectl("create", "quota", "few", "--hard=pods=3", namespace=namespace)  # that one, master and keeper

    async def story() -> None:
        async with submitted(namespace, "roots", *on_claim("fileserver-claim", folder)) as job:
            result = await job.result()
            assert (result["outcome"], result["exit_code"]) == ("failed", 2)
            assert re.search(
                r"Permission denied. A root pod could not create it either: .*exceeded quota", result["reason"]
            )
            assert "Mount a volume that user 1000 may write to" in result["reason"]

    run(story(), SECONDS)


# Jobs that cannot begin.


def test_a_job_whose_data_is_not_there_fails_in_the_masters_words_and_is_not_tried_again(
    run: Run, jobs_namespace: str, shared: Path
) -> None:
    flags = [flag for flag in witness(shared, "nothing") if not flag.startswith("--training_data")]

    async def story() -> None:
        async with submitted(jobs_namespace, "nothing", *flags, f"--training_data={shared / 'no-such'}") as job:
            result = await job.result()
            assert (result["outcome"], result["exit_code"]) == ("failed", 2)
            assert "there is no such file or directory" in result["reason"]
            assert "there is no such file or directory" in job.log("master")
            assert await job.cleared() == ["pod/elasticdl-nothing-master"]
            ended = job.pods()["master"]["status"]["containerStatuses"][0]["state"]["terminated"]
            assert (ended["exitCode"], ended.get("signal")) == (2, None)

    run(story(), SECONDS)


# Pods that are not the job's.


def test_a_pod_whose_account_may_submit_looks_after_a_job_from_inside(
    run: Run, jobs_namespace: str, shared: Path
) -> None:
    allow_jobs(jobs_namespace, from_inside=True)
    commands = ("list", "status inside", "logs inside", "logs inside ps-0", "scale inside --workers=2", "stop inside")
    script = " && ".join(f"echo ==== {words} && python -m elasticdl {words}" for words in commands)

    async def story() -> None:
        async with submitted(jobs_namespace, "inside", *witness(shared, "inside", workers=1)) as job:
            await job.until(lambda s: s.version >= 1)
            await kubectl_soon("apply", "-f", "-", stdin=outsider(job, ["sh", "-c", script]))
            await job.pod_seen("outsider", lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"))
            said = job.log("outsider")
            _, *parts = re.split(r"^==== (.*)\n", said, flags=re.MULTILINE)
            told = dict(zip(parts[::2], parts[1::2], strict=True))
            assert list(told) == list(commands), said
            assert re.search(rf"^inside +in-cluster/{jobs_namespace} +running", told["list"], re.MULTILINE), said
            assert re.search(r"^worker-0 +working", told["status inside"], re.MULTILINE), said
            assert "Starting elasticdl-inside-worker-0 (initial worker)" in told["logs inside"]
            assert "Serving parameters at tcp://" in told["logs inside ps-0"]
            assert (await job.result())["outcome"] == "stopped"

    run(story(), SECONDS)


def test_a_pod_without_the_jobs_secret_gets_nowhere(run: Run, jobs_namespace: str, shared: Path) -> None:
    async def story() -> None:
        async with submitted(jobs_namespace, "closed", *witness(shared, "closed", workers=1)) as job:
            await job.until(lambda s: s.version >= 1)
            (server,) = re.findall(r"Serving parameters at (tcp://\S+)", job.log("ps-0"))
            assert server.split(":")[1] == f"//{job.pods()['ps-0']['status']['podIP']}"
            words = ["python", str(ROOT / "tests/kubernetes/outsider.py")]
            words += [names.master_address("closed", jobs_namespace), server]
            await kubectl_soon("apply", "-f", "-", stdin=outsider(job, words))
            await job.pod_seen("outsider", lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"))
            lines = job.log("outsider").splitlines()  # gRPC logs before and after
            told = json.loads(next(line for line in lines if line.startswith("{")))
            assert told["control"] == {
                "in plain text": "UNAVAILABLE",
                "trusting another certificate": "UNAVAILABLE",
                "without a token": "UNAUTHENTICATED",
                "with a guessed token": "UNAUTHENTICATED",
            }
            assert told["data"] == {"in plain text": "silence", "with another key": "silence"}
            await proven(job, shared)

    run(story(), SECONDS)


def outsider(job: ClusterJob, words: list[str]) -> str:
    """A pod like a worker's, without the job's secret and labels."""
    worker = job.pods()["worker-0"]["spec"]
    (main,) = [c for c in worker["containers"] if c["name"] == "main"]
    env = [entry for entry in main["env"] if "value" in entry and not entry["name"].startswith(names.OWN_ENV)]
    container = {**main, "command": words, "env": env}
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": worker["volumes"]}
    meta = {"name": job.full("outsider"), "namespace": job.namespace}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
