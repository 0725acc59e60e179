"""Jobs as pods of a real cluster: both strategies, jobs that cannot begin, and outsiders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.data.example import encode_example
from elasticdl.data.recordio import RecordIOWriter
from elasticdl.job import names
from tests.cluster.kubernetes_stage import kubectl_soon
from tests.kubernetes.cluster_jobs import ROOT, SECONDS, ClusterJob, in_pods, submitted
from tests.kubernetes.witnesses import proven, witness

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]

Run = Callable[..., None]

# The jobs of the first tutorial.


@pytest.fixture(scope="module")
def digits(shared: Path) -> Path:
    """MNIST's shape and RecordIO form, of 8x8 digits blown up."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    large = np.pad(np.kron(images.reshape(-1, 8, 8), np.ones((3, 3))) * (255 / 16), ((0, 0), (2, 2), (2, 2)))
    for name, part in (("train", range(960)), ("test", range(960, 1216))):
        (shared / "mnist" / name).mkdir(parents=True)
        with RecordIOWriter(shared / "mnist" / name / "part-0.recordio") as writer:
            for i in part:
                writer.write(encode_example({"image": large[i].astype(np.uint8).tobytes(), "label": int(labels[i])}))
    return shared / "mnist"


def mnist(digits: Path, strategy: str) -> list[str]:
    """The flags of the tutorial, but for the sizes of data and pods."""
    return [
        f"--model_zoo={ROOT / 'model_zoo'}", "--model_def=mnist.mnist_functional_api.custom_model",
        f"--training_data={digits / 'train'}", "--minibatch_size=64", "--num_minibatches_per_task=2",
        "--log_loss_steps=5", f"--distribution_strategy={strategy}",
    ]  # fmt: skip


def test_a_job_with_a_parameter_server_trains_evaluates_and_leaves_only_its_masters_pod(
    run: Run, jobs_namespace: str, shared: Path, digits: Path
) -> None:
    flags = [
        *mnist(digits, "ParameterServerStrategy"), f"--validation_data={digits / 'test'}", "--num_epochs=2",
        "--num_ps_pods=1", "--num_workers=1", "--evaluation_steps=10", *in_pods(shared),
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


# Outsiders.


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
            told = json.loads(job.log("outsider").splitlines()[-1])  # gRPC complains before
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
    """A pod with everything that a worker has but the job's secret and labels."""
    worker = job.pods()["worker-0"]["spec"]
    (main,) = [c for c in worker["containers"] if c["name"] == "main"]
    env = [entry for entry in main["env"] if "value" in entry and not entry["name"].startswith(names.OWN_ENV)]
    container = {**main, "command": words, "env": env}
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": worker["volumes"]}
    meta = {"name": job.full("outsider"), "namespace": job.namespace}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
