"""Jobs that are submitted to a real cluster and observed from outside.

Their pods run little shell scripts, put there by an overlay.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from elasticdl.cli.submit import secrets_of
from elasticdl.cluster.kubernetes import credentials
from elasticdl.cluster.kubernetes.api import KubernetesApi
from elasticdl.cluster.kubernetes.submission import submit
from elasticdl.job.spec import JobSpec
from tests.cluster.kubernetes_stage import CONTEXT, as_account, kubectl

MASTER = "elasticdl-j-master"
KINDS = "configmaps,secrets,services,networkpolicies,leases,pods"
# Scripts of masters. The test annotates the pod of one that ends with its result.
# It ends a moment later: kubectl may wait forever for a command whose container is gone.
ENDS = "echo Evaluation metrics; until [ -e /tmp/end ]; do sleep 0.1; done; sleep 3"
WAITS, CRASHES = "echo $$ > /tmp/pid; trap 'exit 143' TERM; sleep 600 & wait", "echo last words; exit 3"
DEAF = "trap '' TERM; while true; do sleep 1; done"
OVERLAY = """
SCRIPTS = {{"master": {script!r}, "keeper": "sleep 600"}}

def with_pod(pod):
    script = SCRIPTS.get(pod["metadata"]["labels"]["elasticdl-replica-type"], "sleep 600")
    main = pod["spec"]["containers"][0]
    main["command"] = ["sh", "-c", script.replace("$", "$$")]
    if pod["metadata"]["name"].endswith("keeper"):
        pod["spec"]["terminationGracePeriodSeconds"] = 1
    main["resources"] = {{"requests": {{"cpu": "10m", "memory": "16Mi"}}}}
    {more}
"""

Make = Callable[..., JobSpec]


@contextlib.asynccontextmanager
async def reach(account: str | None = None, namespace: str = "") -> AsyncIterator[KubernetesApi]:
    """The API server as ourselves, or as a service account."""
    found = credentials.find(CONTEXT, prefer_file=CONTEXT is not None)
    api = KubernetesApi(found if account is None else as_account(found, namespace, account))
    try:
        yield api
    finally:
        await api.close()


def run(story: Coroutine[Any, Any, Any], seconds: float = 180.0) -> None:
    asyncio.run(asyncio.wait_for(story, seconds))


def there(namespace: str) -> list[str]:
    """The objects of jobs, as kind/name."""
    found = json.loads(kubectl("get", KINDS, "-l", "app=elasticdl", "-o", "json", namespace=namespace))["items"]
    return sorted(f"{thing['kind']}/{thing['metadata']['name']}" for thing in found)


async def until(what: Callable[[], Any], seconds: float = 120.0) -> None:
    """Wait until kubectl sees it."""
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(what):
        if time.monotonic() > deadline:
            pytest.fail(f"not so within {seconds:g} s:\n{kubectl('get', KINDS, '-A', '-l', 'app=elasticdl')}")
        await asyncio.sleep(0.3)


def master(namespace: str) -> dict[str, Any]:
    text = kubectl("get", "pod", MASTER, "-o", "json", namespace=namespace, fails=True)
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def phase(namespace: str) -> str:
    return str(master(namespace).get("status", {}).get("phase", "gone"))


async def end_master(namespace: str) -> None:
    """End a master that `ENDS`. A running pod cannot always be entered at once."""
    words = ("exec", MASTER, "--", "sh", "-c", "touch /tmp/end; echo done")
    await until(lambda: "done" in kubectl(*words, namespace=namespace, fails=True))


async def submitted(
    api: KubernetesApi, spec: JobSpec, said: list[str] | None = None, over_seconds: float = 90.0
) -> str:
    tell = (said if said is not None else []).append
    return await submit(api, spec, secrets_of(spec), tell=tell, over_seconds=over_seconds)


ALL = [
    "ConfigMap/elasticdl-j", "NetworkPolicy/elasticdl-j", "Pod/elasticdl-j-keeper", f"Pod/{MASTER}",
    "Secret/elasticdl-j", f"Service/{MASTER}",
]  # fmt: skip
