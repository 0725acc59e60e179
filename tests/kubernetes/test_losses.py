"""Pods of a job, and the ConfigMap that owns them, are deleted, evicted and killed on a real cluster: which return,
and how the job continues.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.job import names
from tests.cluster.kubernetes_stage import kubectl, kubectl_soon
from tests.kubernetes.cluster_jobs import KINDS, SECONDS, ClusterJob, submitted
from tests.kubernetes.witnesses import is_another, proven, witness

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]

Run = Callable[..., None]
SIGNAL = """
import os, signal, sys
module, number = sys.argv[1].encode(), signal.Signals[sys.argv[2]]
for pid in filter(str.isdigit, os.listdir("/proc")):
    words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")
    if module in words[:3]:
        os.kill(int(pid), number)
"""


async def end_process(job: ClusterJob, short: str, module: str, number: str) -> None:
    """Send a signal to the process of a pod, without the cluster."""
    with contextlib.suppress(AssertionError):  # its container ends during the command
        await job.execute(short, "python", "-c", SIGNAL, module, number)


def test_a_lost_worker_is_followed_by_the_next_index_and_a_lost_server_by_itself_and_each_loss_is_counted_by_its_kind(
    run: Run, jobs_namespace: str, shared: Path
) -> None:
    """The last server is lost without notice: it restarts from its snapshot."""

    async def story() -> None:
        async with submitted(jobs_namespace, "lost", *witness(shared, "lost", seconds=2.0)) as job:
            await job.until(lambda s: sum(bool(r.leases) for r in s.replicas) == 2)
            before = job.uids("ps-0", "ps-1", "worker-0", "worker-1")
            await job.delete("worker-0")
            await job.running("worker-2")
            after = await job.until(lambda s: any(r.name == job.full("worker-2") and r.leases for r in s.replicas))
            assert dict(after.incidents) == {"deleted": 1}
            assert job.uids("ps-0", "ps-1", "worker-1") == {k: v for k, v in before.items() if k != "worker-0"}

            await job.delete("ps-0")
            await job.pod_seen("ps-0", is_another(before, "ps-0"))
            await job.until(lambda s: s.timeline == 2 and s.phase == "training")
            assert job.uids("ps-1", "worker-1") == {k: before[k] for k in ("ps-1", "worker-1")}

            await end_process(job, "worker-1", "elasticdl.worker", "SIGABRT")
            await job.running("worker-3")
            third = await job.until(lambda s: s.checkpoint and s.version > int(s.checkpoint.rsplit("-", 1)[1]))
            assert dict(third.incidents) == {"deleted": 2, "crashed": 1}
            assert (third.losses, third.rollbacks) == (3, 1)

            before = job.uids("ps-1")
            await job.delete("ps-1", "--force", "--grace-period=0")
            await job.pod_seen("ps-1", is_another(before, "ps-1"))
            status = await proven(job, shared)
            assert status["incidents"] == {"deleted": 3, "crashed": 1}
            assert (status["losses"], status["rollbacks"]) == (4, 2)

    run(story(), SECONDS)


@pytest.mark.long
def test_a_drained_server_master_and_keeper_come_back_and_every_record_is_trained_once(
    run: Run, jobs_namespace: str, shared: Path
) -> None:
    async def story() -> None:
        async with submitted(jobs_namespace, "drained", *witness(shared, "drained", seconds=3.0)) as job:
            await job.until(lambda s: sum(bool(r.leases) for r in s.replicas) == 2)
            before = job.uids("master", "keeper", "ps-0", "ps-1", "worker-0", "worker-1")
            for short in ("ps-0", "master", "keeper"):  # at once, as when a node is drained
                await job.evict(short)
            for short in ("master", "keeper", "ps-0"):
                await job.pod_seen(short, is_another(before, short))
            after = await job.until(lambda s: s.master_starts == 2 and s.timeline == 2 and s.phase == "training")
            # Before 1.26 Kubernetes does not distinguish an eviction from a deletion.
            assert dict(after.incidents) in ({"evicted": 1}, {"deleted": 1})
            rest = ("ps-1", "worker-0", "worker-1")
            assert job.uids(*rest) == {short: before[short] for short in rest}
            status = await proven(job, shared)
            assert status["master_starts"] == 2
            assert await job.cleared() == ["pod/elasticdl-drained-master"]

    run(story(), SECONDS)


@pytest.mark.long
def test_a_job_all_of_whose_pods_are_drained_from_its_node_is_saved_first_and_goes_on_where_it_was(
    run: Run, jobs_namespace: str, shared: Path
) -> None:
    flags = [flag for flag in witness(shared, "off-node") if not flag.startswith("--checkpoint_seconds")]

    async def story() -> None:
        async with submitted(jobs_namespace, "off-node", *flags, "--checkpoint_seconds=600") as job:
            seen = await job.until(lambda s: s.version >= 4 and sum(bool(r.leases) for r in s.replicas) == 2)
            assert not seen.checkpoint, "what is not saved when the pods are drained is lost"
            all_of_it = ("master", "keeper", "ps-0", "ps-1", "worker-0", "worker-1")
            before = job.uids(*all_of_it)
            (node,) = {pod["spec"]["nodeName"] for pod in job.pods().values()}
            selector = f"--pod-selector={names.LABEL_JOB}={job.name}"
            try:
                await kubectl_soon("drain", node, selector, "--delete-emptydir-data", "--ignore-daemonsets")
                left = job.pods()
                assert not set(before.values()) & {pod["metadata"]["uid"] for pod in left.values()}
                assert all(pod["status"]["phase"] == "Pending" for pod in left.values()), "there is no other node"
            finally:
                kubectl("uncordon", node)  # not `kubectl_soon`: other jobs need it even if this test is cancelled
            for short in ("master", "keeper", "ps-0", "ps-1", "worker-2", "worker-3"):
                await job.pod_seen(short, lambda pod: pod["status"].get("phase") == "Running")
            after = await job.until(lambda s: s.master_starts == 2 and sum(bool(r.leases) for r in s.replicas) == 2)
            assert after.version >= seen.version and after.checkpoint
            status = await proven(job, shared)
            assert (status["master_starts"], status.get("repeated_batches", 0)) == (2, 0), status["decisions"]
            assert await job.cleared() == ["pod/elasticdl-off-node-master"]

    run(story(), SECONDS)


def test_a_deleted_keeper_master_and_one_that_is_killed_come_back_and_the_job_goes_on_in_the_same_pods(
    run: Run, jobs_namespace: str, shared: Path
) -> None:
    async def story() -> None:
        async with submitted(jobs_namespace, "headless", *witness(shared, "headless", seconds=2.0)) as job:
            await job.until(lambda s: sum(bool(r.leases) for r in s.replicas) == 2)
            rest = ("ps-0", "ps-1", "worker-0", "worker-1")
            before = job.uids("master", "keeper", *rest)
            await job.delete("keeper", "--grace-period=1")
            await job.pod_seen("keeper", is_another(before, "keeper"))  # the master's, which restarts the master below
            await job.delete("master")
            await job.pod_seen("master", is_another(before, "master"))
            second = await job.until(lambda s: s.master_starts == 2 and sum(bool(r.leases) for r in s.replicas) == 2)
            assert second.losses == 0

            killed = job.uids("master")
            await end_process(job, "master", "elasticdl.master", "SIGKILL")
            await job.pod_seen("master", is_another(killed, "master"))
            third = await job.until(lambda s: s.master_starts == 3 and sum(bool(r.leases) for r in s.replicas) == 2)
            assert third.losses == 0
            assert job.uids(*rest) == {k: before[k] for k in rest}
            status = await proven(job, shared)
            assert status["master_starts"] == 3
            assert status.get("rollbacks", 0) == 0

    run(story(), SECONDS)


def test_a_running_job_whose_config_map_is_deleted_leaves_nothing_at_all(
    run: Run, jobs_namespace: str, shared: Path
) -> None:
    async def story() -> None:
        async with submitted(jobs_namespace, "removed", *witness(shared, "removed")) as job:
            await job.until(lambda s: sum(bool(r.leases) for r in s.replicas) == 2)
            everything = (KINDS, "-l", f"{names.LABEL_JOB}={job.name}")
            objects = await kubectl_soon("get", *everything, "-o", "name", namespace=job.namespace)
            kinds = Counter(name.partition("/")[0] for name in objects.split())
            assert kinds == {
                "pod": 6, "configmap": 1, "secret": 1, "service": 1,
                "networkpolicy.networking.k8s.io": 1, "lease.coordination.k8s.io": 1,
            }  # fmt: skip
            await kubectl_soon("delete", "configmap", names.config_name(job.name), namespace=job.namespace)
            await kubectl_soon("wait", *everything, "--for=delete", "--timeout=100s", namespace=job.namespace)
            assert not await kubectl_soon("get", *everything, "-o", "name", namespace=job.namespace)

    run(story(), SECONDS)
