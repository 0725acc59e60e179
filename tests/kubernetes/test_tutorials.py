"""Runs the script that writes the transcripts of docs/tutorials, on a real cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cli import docker_registry
from tests.cluster.kubernetes_stage import MANIFESTS, kubectl, kubectl_soon, own_namespace
from tests.kubernetes.cluster_jobs import ROOT, ClusterJob, allow_jobs, require_image, require_this_machine
from tests.kubernetes.digits import write_digits

pytestmark = [pytest.mark.kubernetes, pytest.mark.long]

Run = Callable[..., None]

# Of this tree, as scripts/travis/build_images.sh makes them; the last one is made by the first tutorial.
IMAGE = os.environ.get("ELASTICDL_TUTORIAL_IMAGE", "elasticdl:runtime")
DEV_IMAGE = os.environ.get("ELASTICDL_TUTORIAL_DEV_IMAGE", "elasticdl:dev")
ZOO_IMAGE = "elasticdl:mnist_ps"


def play(story: str, out: Path, image: str, *flags: str) -> str:
    require_this_machine()
    if "--mounts" not in " ".join(flags) and not Path("/data/mnist/train").is_dir():
        pytest.skip("there is no MNIST in /data/mnist: scripts/gen_dataset.sh /data makes it")
    require_image(image)
    with own_namespace() as namespace:
        allow_jobs(namespace)
        command = [
            sys.executable,
            str(ROOT / "scripts" / "tutorials"),
            story,
            f"--out={out}",
            f"--namespace={namespace}",
        ]
        subprocess.run([*command, *flags], check=True, timeout=1500)
    return out.read_text()


@pytest.mark.timeout(1600)
def test_the_tutorial_of_one_node(tmp_path: Path) -> None:
    text = play("one-node", tmp_path / "page.md", IMAGE, f"--base_image={IMAGE}")
    for pod in ("test-mnist-master", "test-mnist-ps-0", "test-mnist-worker-0", "test-mnist-allreduce-worker-1"):
        assert re.search(rf"^elasticdl-{pod} +1/1 +Running", text, re.MULTILINE), pod
    assert "Evaluation service started" in text and "Evaluation metrics[v=50]: {'accuracy': 0." in text
    assert re.search(r"Loss = [\d.]+, steps = 100", text)
    assert re.search(r"^elasticdl-test-mnist-master +0/1 +Completed", text, re.MULTILINE)


@pytest.mark.timeout(1600)
def test_the_tutorial_of_coming_and_going(tmp_path: Path) -> None:
    text = play("coming-and-going", tmp_path / "page.md", ZOO_IMAGE, "--stand_in=debian-python:bookworm")
    assert re.search(r"^elasticdl-test-mnist-worker-4 +1/1 +Running", text, re.MULTILINE)
    assert re.search(r"^elasticdl-test-mnist-worker-\d+ +1/1 +Terminating", text, re.MULTILINE)
    assert re.search(r"^elasticdl-test-mnist-worker-\d+ +0/1 +Pending", text, re.MULTILINE)
    assert len(re.findall(r"^test-nginx-\S+ +1/1 +Running", text, re.MULTILINE)) >= 5


def demo(run: Run, manifest: str, image: str) -> None:
    """Apply the pod of a demo, with another image name and less data."""
    pod = yaml.safe_load((MANIFESTS / "examples" / manifest).read_text())
    (container,) = pod["spec"]["containers"]
    ours = {
        f"--image_name={container['image']}": f"--image_name={image}",
        "--training_data=/data/mnist/train": "--training_data=/data/mnist/test/data-00000.recordio",
    }
    assert set(ours) <= set(container["args"])
    container["args"] = [ours.get(word, word) for word in container["args"]]
    container["image"] = image

    async def story(namespace: str) -> None:
        await kubectl_soon("apply", "-f", "-", namespace=namespace, stdin=yaml.safe_dump(pod))
        job = ClusterJob(namespace, "demo")
        try:
            await job.running("ps-0", "worker-0", "worker-1")
            for each in job.pods().values():
                assert all("hostPath" not in volume for volume in each["spec"]["volumes"])
                (main,) = each["spec"]["containers"]
                assert (main["image"], main["imagePullPolicy"]) == (image, container["imagePullPolicy"])
            assert (await job.execute("worker-0", "id", "-u")).strip() == "1000"
            result = await job.result()
            assert result["outcome"] == "succeeded", job.story()
            assert await job.cleared() == ["pod/elasticdl-demo-master"]
        finally:
            await job.api.close()

    with own_namespace() as namespace:
        allow_jobs(namespace, from_inside=True)
        run(story(namespace), 500)
        assert "Submitted demo to in-cluster" in kubectl("logs", "elasticdl-demo", namespace=namespace)


@pytest.mark.timeout(600)
def test_the_demo_of_a_small_cluster_submits_a_job_that_trains_without_a_volume(run: Run) -> None:
    require_this_machine()
    require_image(DEV_IMAGE)
    demo(run, "elasticdl-demo-minikube.yaml", DEV_IMAGE)


@pytest.mark.docker
@pytest.mark.timeout(900)
@pytest.mark.skipif(docker_registry.PROGRAM is None, reason="docker-registry is not installed")
def test_the_demo_of_other_clusters_takes_its_image_from_a_registry(run: Run, tmp_path: Path) -> None:
    require_this_machine()
    require_image(DEV_IMAGE)
    with docker_registry.registry(tmp_path) as host:
        image = f"{host}/elasticdl/elasticdl:dev"
        subprocess.run(["docker", "tag", DEV_IMAGE, image], check=True, timeout=60)
        try:
            push = [sys.executable, "-m", "elasticdl", "zoo", "push", image]
            subprocess.run(push, check=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)})
            subprocess.run(["docker", "rmi", image], check=True, timeout=60)  # only the registry knows that name now
            demo(run, "elasticdl-demo-k8s.yaml", image)
        finally:
            subprocess.run(["docker", "rmi", image], capture_output=True, timeout=60)


@pytest.mark.timeout(1600)
def test_the_tutorial_by_hand(tmp_path: Path) -> None:
    write_digits(tmp_path / "data" / "mnist")
    mounts = f"--mounts=-v {tmp_path}/data:/data"
    text = play("by-hand", tmp_path / "page.md", DEV_IMAGE, f"--dev_image={DEV_IMAGE}", mounts)
    assert "No --token_file is given" in text
    assert "Evaluation metrics" in text
