"""A namespace of a real Kubernetes cluster as a stage: pods that wait for orders from kubectl."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.cluster.kubernetes import credentials
from elasticdl.cluster.kubernetes.api import KubernetesApi
from elasticdl.cluster.kubernetes.cluster import LEAST_GRACE_SECONDS, KubernetesCluster
from elasticdl.cluster.kubernetes.credentials import Credentials
from elasticdl.cluster.kubernetes.pods import escaped
from elasticdl.cluster.kubernetes.reading import CONTAINER
from elasticdl.cluster.protocol import Cluster, Exit, ReplicaPhase, ReplicaRequest
from elasticdl.job import names

from .hearing import hear
from .stages import Stage

IMAGE = os.environ.get("ELASTICDL_K8S_IMAGE", "python:3.11-slim")  # with sh, mkfifo and python3
PULL = os.environ.get("ELASTICDL_K8S_PULL", "IfNotPresent")
CONTEXT = os.environ.get("ELASTICDL_K8S_CONTEXT") or None
WHERE = [f"--context={CONTEXT}"] if CONTEXT else []  # for commands that know contexts
JOB = "contract"
MANIFESTS = Path(__file__).parents[2] / "manifests"


def kubectl(*words: str, namespace: str | None = None, stdin: str | None = None, fails: bool = False) -> str:
    """The output of kubectl; `fails`: it may fail."""
    where = [*WHERE, *(["-n", namespace] if namespace else [])]
    done = subprocess.run(["kubectl", *where, *words], input=stdin, capture_output=True, text=True, timeout=120)
    assert fails or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
    return done.stdout


async def kubectl_soon(*words: str, **how: Any) -> str:
    """`kubectl` without blocking the event loop."""
    return await asyncio.to_thread(functools.partial(kubectl, *words, **how))


@functools.cache
def trouble() -> str:
    """Why there is no cluster to test on; empty if there is one."""
    try:
        kubectl("get", "--raw", "/readyz", "--request-timeout=5s")
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        return str(error).strip().splitlines()[-1]
    return ""


def require_cluster() -> None:
    """Skip if no cluster is reachable; fail if ELASTICDL_K8S=1 requires one."""
    if why := trouble():
        if os.environ.get("ELASTICDL_K8S") == "1":
            pytest.fail(f"no Kubernetes cluster is reachable: {why}")
        pytest.skip(f"no Kubernetes cluster is reachable: {why}")


@contextlib.contextmanager
def own_namespace() -> Iterator[str]:
    name = f"elasticdl-test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    try:
        yield name
    finally:
        # By force: the pods of a failed test may have long grace periods.
        kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false", namespace=name)
        kubectl("delete", "namespace", name, "--wait=false")


def pod_of(request: ReplicaRequest, **spec: Any) -> dict[str, Any]:
    """A small pod; `spec` is merged into its spec."""
    container = {
        "name": CONTAINER,
        "image": IMAGE,
        "imagePullPolicy": PULL,
        "command": [escaped(word) for word in request.command],
        "env": [{"name": key, "value": value} for key, value in request.env.items()],
        "resources": {"requests": {"cpu": "10m", "memory": "8Mi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": request.name, "labels": names.labels(JOB, request.role, request.index)},
        "spec": {
            "restartPolicy": "Never",
            "shareProcessNamespace": True,
            "automountServiceAccountToken": False,
            "containers": [container],
            **spec,
        },
    }


def make_api() -> KubernetesApi:
    return KubernetesApi(credentials.find(CONTEXT, prefer_file=CONTEXT is not None))


def as_account(found: Credentials, namespace: str, account: str) -> Credentials:
    return replace(found, user={**found.user, "as": f"system:serviceaccount:{namespace}:{account}"})


def grant(objects: list[dict[str, Any]], namespace: str, account: str) -> None:
    """Apply manifest objects, and wait until they are effective."""
    text = yaml.safe_dump_all(objects).replace("namespace: default", f"namespace: {namespace}")
    kubectl("apply", "-f", "-", namespace=namespace, stdin=text)
    user = f"--as=system:serviceaccount:{namespace}:{account}"
    deadline = time.monotonic() + 15
    while kubectl("auth", "can-i", "list", "events", user, namespace=namespace, fails=True).strip() != "yes":
        assert time.monotonic() < deadline, f"{account} was granted nothing within 15 s"


def _soon(script: str) -> str:
    """In the background, a moment later: kubectl hangs if the container ends during its command."""
    return f"(sleep 0.2; {script}) > /dev/null 2>&1 < /dev/null &"


class KubernetesStage:
    """Pods are shells that make a named pipe when they are ready, and read their exit code from it."""

    least_grace_seconds = float(LEAST_GRACE_SECONDS)

    def __init__(self, namespace: str, account: str | None = None) -> None:
        """With an account, the clients are that service account; otherwise the kubeconfig's user."""
        self.namespace, self._account = namespace, account
        self.clients: list[KubernetesCluster] = []
        self.cluster: Cluster = self.another_client()

    def another_client(self) -> KubernetesCluster:
        found = credentials.find(CONTEXT, prefer_file=CONTEXT is not None)
        if self._account is not None:
            found = as_account(found, self.namespace, self._account)
        client = KubernetesCluster(KubernetesApi(found), self.namespace, JOB, pod_of)
        self.clients.append(client)
        return client

    def request(self, name: str, *, stubborn: bool = False) -> ReplicaRequest:
        trap = "trap '' TERM; " if stubborn else ""
        script = (
            f"{trap}echo $$ > /tmp/pid; mkfifo /tmp/new; mv /tmp/new /tmp/orders; read code < /tmp/orders; exit $code"
        )
        return ReplicaRequest(name, "worker", 7, ("sh", "-c", script), {})

    async def ready(self, name: str, then: str = "") -> None:
        """Wait until the replica is ready and has run `then`."""
        await hear(self.cluster, name, ReplicaPhase.RUNNING)
        script = f"until [ -e /tmp/orders ]; do sleep 0.05; done; {then} echo there"
        async with asyncio.timeout(30):  # a running container cannot always be entered at once
            while "there" not in await kubectl_soon(
                "exec", name, "--", "sh", "-c", script, namespace=self.namespace, fails=True
            ):
                pass

    async def end(self, name: str, code: int) -> None:
        await self.ready(name, _soon(f"echo {code} > /tmp/orders"))

    async def signal(self, name: str, number: signal.Signals) -> None:
        await self.run_in(name, _soon(f"kill -{int(number)} $(cat /tmp/pid)"))

    async def run_in(self, name: str, script: str) -> str:
        return await kubectl_soon("exec", name, "--", "sh", "-c", script, namespace=self.namespace)

    def check_ended_by(self, exit: Exit, number: signal.Signals, because: str = "") -> None:
        """A kubelet before 1.22 may have forgotten how a deleted pod ended; then the reason says so."""
        if exit.signal is None:
            assert exit.reason in {f"{how}: Kubernetes did not keep its exit status" for how in ("stopped", "killed")}
            assert exit.from_outside
        else:
            assert (exit.code, exit.signal, exit.oom) == (None, number, False)
            assert exit.reason == f"killed by {number.name}{because}"

    async def close(self) -> None:
        for client in self.clients:
            await client.close()


@contextlib.asynccontextmanager
async def kubernetes_stage(_: Path) -> AsyncIterator[Stage]:
    """With the rights of a job's master, and no others."""
    require_cluster()
    with own_namespace() as namespace:
        objects = list(yaml.safe_load_all((MANIFESTS / "elasticdl-rbac.yaml").read_text()))
        await asyncio.to_thread(grant, objects, namespace, "elasticdl-master")
        stage = KubernetesStage(namespace, "elasticdl-master")
        try:
            yield stage
        finally:
            await stage.close()
