"""All-reduce workers that are evicted, or preempted by the real scheduler and restarted when there is room."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticdl.api import state_files
from elasticdl.wire import control_pb2 as pb
from tests.cluster.kubernetes_stage import IMAGE, PULL, kubectl, kubectl_soon, make_api
from tests.kubernetes.cluster_jobs import ROOT, SECONDS, ClusterJob, in_pods, submitted
from tests.processes import allreduce

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]

Run = Callable[..., None]
# Epochs enough for all that happens here, at the pace until it has.
PLAIN = allreduce.Description(records=509, epochs=10, workers=2, virtual=8, evaluation_steps=0)
FOUR = allreduce.Description(records=509, epochs=20, workers=4, virtual=8, minibatch=8, evaluation_steps=0)


def pebbles(shared: Path, name: str, description: allreduce.Description, *flags: str, seconds: float) -> list[str]:
    (shared / f"{name}-slow").touch()
    if not (shared / "pebbles").exists():
        allreduce.write_data(shared / "pebbles", description.records)
    given = description.spec(shared / "pebbles").with_values(model_zoo=str(ROOT / "tests/models")).given()
    spelled = [f"--{knob}={str(value).lower() if isinstance(value, bool) else value}" for knob, value in given.items()]
    return [
        *spelled, f"--checkpoint_dir={shared / name}-checkpoints", f"--checkpoint_steps={description.steps}",
        "--checkpoint_seconds=0", *flags,
        *in_pods(shared, PEBBLE_SECONDS=str(seconds), PEBBLE_SLOW=str(shared / f"{name}-slow")),
    ]  # fmt: skip


async def equal(job: ClusterJob, shared: Path, description: allreduce.Description) -> dict[str, Any]:
    """Let it continue fast; it ends with the same bytes as a single process, and no step was computed twice."""
    (shared / f"{job.name}-slow").unlink()
    result = await job.result()
    assert result["outcome"] == "succeeded", f"{result}\n{job.story()}"
    status: dict[str, Any] = result["status"]
    assert status["audit"] == f"{description.records} records, each trained exactly {description.epochs} times"
    assert int(status.get("repeated_batches", 0)) == 0
    folder = shared / f"{job.name}-checkpoints" / f"version-{description.steps}"
    state, _ = state_files.read(folder, description.steps)
    alone, _ = allreduce.train_alone(description, shared / "pebbles")
    different = [name for name, tensor in state.items() if not torch.equal(tensor, alone[name])]
    assert state.keys() == alone.keys() and not different, f"not what one worker alone gets: {different}"
    return status


def test_an_evicted_worker_leaves_at_the_end_of_a_step_and_nothing_is_lost(
    run: Run, jobs_namespace: str, shared: Path
) -> None:
    async def story() -> None:
        flags = pebbles(shared, "evicted", PLAIN, seconds=0.2)
        async with submitted(jobs_namespace, "evicted", *flags) as job:
            await job.until(lambda s: allreduce.together(s, 2) and s.version >= 3)
            survivor = job.uids("worker-1")
            await job.evict("worker-0")
            await job.until(lambda s: list(s.world) == [job.full("worker-1")])
            await job.until(lambda s: set(s.world) == {job.full("worker-1"), job.full("worker-2")})
            assert allreduce.BROKE not in job.log("worker-1"), "a leave at the end of a step breaks nothing"
            assert job.uids("worker-1") == survivor
            status = await equal(job, shared, PLAIN)
            # Before 1.26 Kubernetes does not distinguish an eviction from a deletion.
            assert status["incidents"] in ({"evicted": 1}, {"deleted": 1})

    run(story(), SECONDS)


@pytest.fixture
def slots() -> Iterator[str]:
    """An extended resource of the node, with four units, which other pods do not use."""
    (node,) = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    name = f"elasticdl.test/slot-{uuid.uuid4().hex[:6]}"
    patch(node, "add", name, "4")
    yield name
    patch(node, "remove", name, None)


def patch(node: dict[str, Any], op: str, resource: str, value: str | None) -> None:
    path = "/status/capacity/" + resource.replace("/", "~1")
    body = json.dumps([{"op": op, "path": path, **({} if value is None else {"value": value})}])

    async def send() -> None:
        api = make_api()
        try:
            where = f"/api/v1/nodes/{node['metadata']['name']}/status"
            await api.call("PATCH", where, body=json.loads(body), content_type="application/json-patch+json")
        finally:
            await api.close()

    asyncio.run(send())


@pytest.fixture
def priorities() -> Iterator[tuple[str, str]]:
    suffix = uuid.uuid4().hex[:6]
    low, high = f"elasticdl-low-{suffix}", f"elasticdl-high-{suffix}"
    for name, value in ((low, "0"), (high, "1000")):  # others here have 0 too: they take nothing from each other
        kubectl("create", "priorityclass", name, f"--value={value}")
    yield low, high
    kubectl("delete", "priorityclass", low, high)


def guests(namespace: str, slots: str, priority: str, replicas: int) -> str:
    """A Deployment of higher priority that needs slots."""
    container = {
        "name": "guest",
        "image": IMAGE,
        "imagePullPolicy": PULL,
        "command": ["sleep", "600"],
        "resources": {"requests": {slots: "1", "cpu": "1m"}, "limits": {slots: "1", "cpu": "100m"}},
    }
    spec = {"terminationGracePeriodSeconds": 0, "priorityClassName": priority, "containers": [container]}
    labels = {"app": "guests"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "guests", "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    return json.dumps(deployment)


def test_low_priority_workers_make_room_and_take_it_back(
    run: Run, jobs_namespace: str, shared: Path, slots: str, priorities: tuple[str, str]
) -> None:
    low, high = priorities

    def waits(status: pb.Status) -> list[str]:
        held = [r for r in status.replicas if r.detail.startswith("unschedulable: ")]
        return sorted(r.name.rsplit("-", 1)[1] for r in held)

    async def story() -> None:
        flags = pebbles(
            shared, "elastic", FOUR, f"--worker_pod_priority={low}",
            f"--worker_resource_request=cpu=0.1,memory=100Mi,{slots}=1",
            f"--worker_resource_limit=cpu=1,memory=1500Mi,{slots}=1", seconds=0.2,
        )  # fmt: skip
        async with submitted(jobs_namespace, "elastic", *flags) as job:
            four = await job.until(lambda s: allreduce.together(s, 4))
            before = Counter(dict(four.incidents))  # one may have waited for room that others gave back
            await kubectl_soon("apply", "-f", "-", stdin=guests(jobs_namespace, slots, high, 3))
            one = await job.until(lambda s: len(s.world) == 1 and len(waits(s)) == 3)
            assert waits(one) == ["4", "5", "6"], "the replacements wait, under the next numbers"
            assert Counter(dict(one.incidents)) - before == {"preempted": 3, "unschedulable": 3}
            await job.until(lambda s: s.version > one.version)
            await kubectl_soon("scale", "deployment", "guests", "--replicas=0", namespace=jobs_namespace)
            await job.until(lambda s: allreduce.together(s, 4))
            status = await equal(job, shared, FOUR)
            assert status["incidents"]["preempted"] == 3
            assert all("preempted by the scheduler" in d["text"] for d in status["decisions"] if "is gone" in d["text"])

    run(story(), SECONDS)
