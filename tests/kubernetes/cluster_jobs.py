"""Whole jobs on a real cluster: submitted by the command line, watched through their masters, disturbed by kubectl."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from elasticdl.cli.master_client import MasterClient
from elasticdl.cluster.kubernetes.api import KubernetesApi
from elasticdl.cluster.kubernetes.reading import Pod
from elasticdl.cluster.kubernetes.tunnel import Tunnel
from elasticdl.job import names
from elasticdl.wire import control_pb2 as pb
from tests.cluster.kubernetes_stage import (
    IMAGE,
    MANIFESTS,
    PULL,
    WHERE,
    grant,
    kubectl,
    kubectl_soon,
    make_api,
    require_cluster,
)

ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "--master_resource_request=cpu=0.1,memory=100Mi", "--master_resource_limit=cpu=1,memory=1500Mi",
    "--ps_resource_request=cpu=0.1,memory=100Mi", "--ps_resource_limit=cpu=1,memory=1000Mi",
    "--worker_resource_request=cpu=0.1,memory=100Mi", "--worker_resource_limit=cpu=1,memory=1500Mi",
)  # fmt: skip
UNTIL_SECONDS, SECONDS = 240.0, 840.0  # for one thing to happen; for a whole test: all share one machine
# The kinds of a job's objects, as kubectl names them.
KINDS = "pods,configmaps,secrets,services,networkpolicies,leases"


def require_this_machine() -> None:
    """Skip unless the cluster's nodes are this machine: its files are what the pods of these tests run."""
    require_cluster()
    nodes = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    theirs = {a["address"] for node in nodes for a in node["status"]["addresses"] if a["type"] == "InternalIP"}
    ours = {a.address for addresses in psutil.net_if_addrs().values() for a in addresses}
    if not theirs <= ours:
        pytest.skip("the pods of these tests run this tree, which only a node on this machine has")


def require_image(image: str) -> None:
    """Skip where the engine has no such image; scripts/travis/build_images.sh makes those of this tree, and says so."""
    label = '{{index .Config.Labels "elasticdl.tree"}}'
    found = subprocess.run(["docker", "image", "inspect", "-f", label, image], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"there is no image {image} on the engine: scripts/travis/build_images.sh makes it")
    here = subprocess.run(["git", "rev-parse", "HEAD:elasticdl"], cwd=ROOT, capture_output=True, text=True)
    if here.returncode == 0 and found.stdout != here.stdout:
        pytest.fail(f"the image {image} is of another tree; scripts/travis/build_images.sh makes it anew")


def allow_jobs(namespace: str, *, from_inside: bool = False) -> None:
    """What an administrator does once for a namespace; `from_inside`: also for its pods that submit jobs."""
    files = [MANIFESTS / "elasticdl-rbac.yaml", *([MANIFESTS / "examples/elasticdl-rbac.yaml"] if from_inside else [])]
    objects = [thing for file in files for thing in yaml.safe_load_all(file.read_text())]
    grant(objects, namespace, names.SERVICE_ACCOUNT)


def in_pods(shared: Path, *more: str, **env: str) -> list[str]:
    """Flags that mount this tree, its Python and a folder of the test in pods, at the same paths."""
    places = dict.fromkeys([shared, ROOT, Path(sys.prefix), Path(sys.base_prefix)])  # a virtual environment has both
    places.pop(Path("/usr"), None)  # the image's own
    volumes = ";".join(f"host_path={place},mount_path={place}" for place in places)
    given = {"PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), **env}
    envs = ",".join(f"{key}={value}" for key, value in given.items())
    return [f"--image_name={IMAGE}", f"--image_pull_policy={PULL}", f"--volume={volumes}", f"--envs={envs}", *more]


@contextlib.contextmanager
def local_claim(namespace: str, name: str, folder: Path) -> Iterator[None]:
    """A claim to a folder of this machine: root's, unless a pod's fsGroup makes it the pod's as well. Kubelets do that
    where no other pod has it mounted."""
    folder.mkdir(mode=0o755, exist_ok=True)
    nodes = [node["metadata"]["name"] for node in json.loads(kubectl("get", "nodes", "-o", "json"))["items"]]
    there = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": nodes[:1]}]}
    both = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        **both,
        "capacity": {"storage": "100Mi"},
        "local": {"path": str(folder)},
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": namespace, "name": name},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [there]}},
    }
    volume_name = f"{namespace}-{name}"
    asked = {**both, "resources": {"requests": {"storage": "100Mi"}}, "volumeName": volume_name}
    kinds = (("PersistentVolume", {"name": volume_name}, volume), ("PersistentVolumeClaim", {"name": name}, asked))
    objects = [{"apiVersion": "v1", "kind": kind, "metadata": meta, "spec": spec} for kind, meta, spec in kinds]
    kubectl("apply", "-f", "-", namespace=namespace, stdin=yaml.safe_dump_all(objects))
    try:
        yield
    finally:
        kubectl("delete", "pvc", name, "--wait=false", namespace=namespace)
        kubectl("delete", "pv", volume_name, "--wait=false")


def submit(namespace: str, job: str, *flags: str) -> str:
    """Run `elasticdl train`; returns its output."""
    command = [sys.executable, "-m", "elasticdl", "train", f"--job_name={job}", f"--namespace={namespace}", *WHERE]
    done = subprocess.run(
        [*command, *flags], cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass
class ClusterJob:
    """One submitted job, observed from outside."""

    namespace: str
    name: str
    api: KubernetesApi = field(default_factory=make_api)
    _client: MasterClient | None = None

    def full(self, short: str) -> str:
        return f"elasticdl-{self.name}-{short}"

    # Pods.

    def pods(self) -> dict[str, Pod]:
        """By their short names: master, worker-0 …"""
        label = f"{names.LABEL_JOB}={self.name}"
        found = json.loads(kubectl("get", "pods", "-l", label, "-o", "json", namespace=self.namespace))["items"]
        return {pod["metadata"]["name"].removeprefix(self.full("")): pod for pod in found}

    def uids(self, *shorts: str) -> dict[str, str]:
        pods = self.pods()
        return {short: pods[short]["metadata"]["uid"] for short in shorts}

    async def pod_seen(self, short: str, condition: Callable[[Pod], bool], seconds: float = UNTIL_SECONDS) -> Pod:
        """The pod of this name as soon as the condition holds."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        only = {"fieldSelector": f"metadata.name={self.full(short)}"}
        try:
            async with asyncio.timeout(seconds):
                while True:
                    answer = await self.api.call("GET", path, params=only)
                    for pod in answer["items"]:
                        if condition(pod):
                            return pod
                    params = {**only, "resourceVersion": answer["metadata"]["resourceVersion"]}
                    async with contextlib.aclosing(self.api.watch(path, params, seconds=60)) as changes:
                        async for kind, pod in changes:
                            if kind in ("ADDED", "MODIFIED") and condition(pod):
                                return pod
        except TimeoutError:
            raise AssertionError(f"{short} was not seen so within {seconds:g} s\n{self.story()}") from None

    async def running(self, *shorts: str) -> None:
        for short in shorts:
            await self.pod_seen(short, lambda pod: pod["status"].get("phase") == "Running")

    async def delete(self, short: str, *flags: str) -> None:
        await kubectl_soon("delete", "pod", self.full(short), "--wait=false", *flags, namespace=self.namespace)

    async def evict(self, short: str) -> None:
        """Like `kubectl drain`."""
        version = await self.api.call("GET", "/version")
        new = (int(version["major"]), int(re.sub(r"\D", "", version["minor"]))) >= (1, 22)
        body = {
            "apiVersion": "policy/v1" if new else "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": self.full(short), "namespace": self.namespace},
        }
        await self.api.call("POST", f"/api/v1/namespaces/{self.namespace}/pods/{self.full(short)}/eviction", body=body)

    async def execute(self, short: str, *command: str) -> str:
        return await kubectl_soon("exec", self.full(short), "-c", "main", "--", *command, namespace=self.namespace)

    def log(self, short: str) -> str:
        return kubectl("logs", self.full(short), namespace=self.namespace, fails=True)

    # The master's status.

    async def client(self, address: str) -> MasterClient:
        if self._client is None:
            path = f"/api/v1/namespaces/{self.namespace}/secrets/{names.config_name(self.name)}"
            data = (await self.api.call("GET", path))["data"]
            token, certificate = (base64.b64decode(data[key]).decode() for key in (names.ENV_TOKEN, names.ENV_TLS_CERT))
            self._client = MasterClient("", token, certificate)
        return MasterClient(address, self._client.token, self._client.certificate)

    @contextlib.asynccontextmanager
    async def reached(self) -> AsyncIterator[MasterClient]:
        async with Tunnel(self.api, self.namespace, self.full("master")).open() as address:
            yield await self.client(address)

    async def until(self, condition: Callable[[pb.Status], bool], seconds: float = UNTIL_SECONDS) -> pb.Status:
        """The first status for which this holds, over restarts of the master."""
        last = None
        try:
            async with (
                asyncio.timeout(seconds),
                self.reached() as client,
                contextlib.aclosing(client.watch()) as statuses,
            ):
                async for status in statuses:
                    last = status or last
                    if status is not None and condition(status):
                        return status
        except TimeoutError:
            raise AssertionError(f"not within {seconds:g} s; last:\n{last}\n{self.story()}") from None
        raise AssertionError(f"the job ended before it was so; last:\n{last}\n{self.story()}")

    async def result(self, seconds: float = UNTIL_SECONDS) -> dict[str, Any]:
        """How the job ended, as the master's pod says."""

        def told(pod: Pod) -> bool:
            return names.ANNOTATION_RESULT in pod["metadata"].get("annotations", {})

        pod = await self.pod_seen("master", told, seconds)
        found: dict[str, Any] = json.loads(pod["metadata"]["annotations"][names.ANNOTATION_RESULT])
        return found

    async def cleared(self, seconds: float = 180.0) -> list[str]:
        """The remaining objects of the job, as kind/name. A kubelet may need a minute to remove a pod."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            left = await kubectl_soon(
                "get", KINDS, "-l", f"{names.LABEL_JOB}={self.name}", "-o", "name", namespace=self.namespace
            )
            found = left.split()
            if len(found) <= 1 or asyncio.get_running_loop().time() > deadline:
                return found
            await asyncio.sleep(0.5)

    def story(self) -> str:
        parts = [kubectl("get", "pods", "-o", "wide", namespace=self.namespace, fails=True)]
        for short in sorted(self.pods()):
            log = kubectl("logs", "--tail=40", self.full(short), namespace=self.namespace, fails=True)
            parts.append(f"--- {short}\n{log}")
        return "\n".join(parts)


@contextlib.asynccontextmanager
async def submitted(namespace: str, job: str, *flags: str) -> AsyncIterator[ClusterJob]:
    """A job that is removed at the end in any case."""
    given = {flag.partition("=")[0] for flag in flags}
    small = [flag for flag in SMALL if flag.partition("=")[0] not in given]
    await asyncio.to_thread(submit, namespace, job, *small, *flags)
    async with removed_at_the_end(namespace, job) as running:
        yield running


@contextlib.asynccontextmanager
async def removed_at_the_end(namespace: str, job: str) -> AsyncIterator[ClusterJob]:
    running = ClusterJob(namespace, job)
    try:
        yield running
    finally:
        await running.api.close()
        label = f"{names.LABEL_JOB}={job}"
        await kubectl_soon("delete", "configmaps", "-l", label, "--wait=false", namespace=namespace)
        gone: Sequence[str] = ("--grace-period=0", "--force", "--wait=false")
        with contextlib.suppress(AssertionError):
            await kubectl_soon("delete", "pods", "-l", label, *gone, namespace=namespace)
