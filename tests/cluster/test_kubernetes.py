"""Pods on a real cluster: deleted, evicted, preempted, out of memory, never started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from elasticdl.cluster.kubernetes import credentials
from elasticdl.cluster.kubernetes.api import KubernetesApi
from elasticdl.cluster.kubernetes.cluster import KubernetesCluster
from elasticdl.cluster.kubernetes.credentials import Credentials
from elasticdl.cluster.kubernetes.pods import PodMaker
from elasticdl.cluster.kubernetes.reading import Pod
from elasticdl.cluster.protocol import ReplicaPhase, ReplicaRequest, ReplicaStatus
from elasticdl.errors import Refused, Unreachable
from elasticdl.job.spec import JobSpec

from .hearing import hear, hear_end, status_of
from .kubernetes_stage import (
    CONTEXT,
    IMAGE,
    JOB,
    PULL,
    WHERE,
    KubernetesStage,
    kubectl,
    kubectl_soon,
    make_api,
    own_namespace,
    pod_of,
    require_cluster,
)
from .wires import Wire

pytestmark = pytest.mark.kubernetes

Run = Callable[..., None]
Make = Callable[[ReplicaRequest], Pod]


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    require_cluster()
    with own_namespace() as name:
        yield name


@contextlib.asynccontextmanager
async def playing(
    namespace: str, make: Make = pod_of, api: KubernetesApi | None = None, **more: Any
) -> AsyncIterator[Any]:
    """A stage whose cluster builds pods with `make`, and removes them at the end."""
    stage = KubernetesStage(namespace)
    stage.cluster = KubernetesCluster(api or make_api(), namespace, JOB, make, **more)
    stage.clients.append(stage.cluster)
    try:
        yield stage
    finally:
        await stage.close()
        await kubectl_soon("delete", "pods", "--all", "--force", "--grace-period=0", namespace=namespace)


def shell(name: str, script: str) -> ReplicaRequest:
    return ReplicaRequest(name, "worker", 0, ("sh", "-c", script), {})


def with_resources(**amounts: str) -> Make:
    def make(request: ReplicaRequest) -> Pod:
        pod = pod_of(request)
        pod["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
        return pod

    return make


async def noted(cluster: KubernetesCluster, name: str) -> ReplicaStatus:
    """The first status with a note."""
    async with contextlib.aclosing(cluster.events()) as events:
        async for status in events:
            if status.name == name and status.note:
                return status
    raise AssertionError("the events ended")


def test_a_pod_deleted_by_others_was_taken_away(run: Run, namespace: str) -> None:
    async def story() -> None:
        async with playing(namespace) as stage:
            await stage.cluster.launch(stage.request("w-0"))
            await stage.ready("w-0")
            kubectl("delete", "pod", "w-0", "--wait=false", namespace=namespace)
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert exit.reason in ("deleted", "deleted (killed by SIGTERM)")
            assert exit.from_outside

    run(story(), 90)


def test_a_pod_removed_by_force_without_a_watch_is_missed_at_the_next_list(run: Run, namespace: str) -> None:
    async def story() -> None:
        async with playing(namespace) as stage:
            await stage.cluster.launch(stage.request("w-0"))
            await stage.cluster.list()  # without a watch
            kubectl("delete", "pod", "w-0", "--force", "--grace-period=0", namespace=namespace)
            (gone,) = await stage.cluster.list()
            assert gone.phase is ReplicaPhase.GONE
            assert gone.exit.reason.startswith("deleted")
            assert gone.exit.from_outside

    run(story(), 60)


def test_a_pod_that_uses_more_memory_than_its_limit_is_told_apart(run: Run, namespace: str) -> None:
    async def story() -> None:
        async with playing(namespace, with_resources(memory="32Mi", cpu="20m")) as stage:
            command = ("python3", "-c", "print('filling', flush=True); x = bytearray(1 << 30); print(len(x))")
            await stage.cluster.launch(ReplicaRequest("w-0", "worker", 0, command, {}))
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert exit.oom
            assert exit.reason == "out of memory: the kernel killed it at its limit of 32Mi"
            assert not exit.from_outside
            assert exit.last_lines == ("filling",)

    run(story(), 60)


def test_a_missing_image_is_reported_while_the_pod_waits(run: Run, namespace: str) -> None:
    def make(request: ReplicaRequest) -> Pod:
        pod = pod_of(request)
        pod["spec"]["containers"][0] |= {"image": "no-such-image:1", "imagePullPolicy": "Never"}
        return pod

    async def story() -> None:
        async with playing(namespace, make) as stage:
            await stage.cluster.launch(shell("w-0", "true"))
            status = await noted(stage.cluster, "w-0")
            assert status.phase is ReplicaPhase.PENDING
            assert status.note.startswith(
                "its image is not on the node, and the pull policy is Never (no-such-image:1): ErrImageNeverPull"
            )
            assert (await status_of(stage.cluster, "w-0")).note == status.note
            await stage.cluster.stop("w-0", grace_seconds=1)
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert exit.reason == "stopped before it started"

    run(story(), 90)


def test_a_missing_secret_is_reported_while_the_pod_waits(run: Run, namespace: str) -> None:
    def make(request: ReplicaRequest) -> Pod:
        pod = pod_of(request)
        source = {"secretKeyRef": {"name": "nothing", "key": "x"}}
        pod["spec"]["containers"][0]["env"] = [{"name": "X", "valueFrom": source}]
        return pod

    async def story() -> None:
        async with playing(namespace, make) as stage:
            await stage.cluster.launch(shell("w-0", "true"))
            note = (await noted(stage.cluster, "w-0")).note
            assert note.startswith("its container cannot be configured (")
            assert 'CreateContainerConfigError: secret "nothing" not found' in note

    run(story(), 60)


def test_a_pod_without_room_reports_the_schedulers_message(run: Run, namespace: str) -> None:
    async def story() -> None:
        async with playing(namespace, with_resources(cpu="1000")) as stage:
            await stage.cluster.launch(shell("w-0", "true"))
            status = await noted(stage.cluster, "w-0")
            assert status.phase is ReplicaPhase.PENDING
            assert re.match(r"unschedulable: 0/\d+ nodes are available: .*Insufficient cpu", status.note)
            await stage.cluster.kill("w-0")
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert exit.reason == "killed before it started"

    run(story(), 60)


def test_a_command_that_does_not_exist_is_gone_with_the_reason(run: Run, namespace: str) -> None:
    async def story() -> None:
        async with playing(namespace) as stage:
            await stage.cluster.launch(ReplicaRequest("w-0", "worker", 0, ("no-such-program",), {}))
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert (exit.code, exit.signal) == (None, None)
            assert exit.reason.startswith("could not be started: ")
            assert "no-such-program" in exit.reason

    run(story(), 60)


def test_a_crash_comes_with_the_end_of_the_log_to_a_client_that_sees_it_only_now(run: Run, namespace: str) -> None:
    async def story() -> None:
        async with playing(namespace) as stage:
            await stage.cluster.launch(shell("w-0", "for i in $(seq 30); do echo line $i; done; exit 9"))
            heard = await hear_end(stage.cluster, "w-0")
            assert heard.exit.code == 9
            assert heard.exit.last_lines == tuple(f"line {i}" for i in range(11, 31))
            assert await stage.another_client().list() == [heard]

    run(story(), 60)


@pytest.fixture
def priorities() -> Iterator[tuple[str, str]]:
    """Two PriorityClasses of this test alone: below and above everything else here."""
    require_cluster()
    suffix = uuid.uuid4().hex[:6]
    low, high = f"elasticdl-low-{suffix}", f"elasticdl-high-{suffix}"
    for name, value in ((low, "-10"), (high, "1000")):
        kubectl("create", "priorityclass", name, f"--value={value}")
    yield low, high
    kubectl("delete", "priorityclass", low, high)


def test_the_scheduler_takes_a_pod_away_for_one_of_higher_priority(
    run: Run, namespace: str, priorities: tuple[str, str]
) -> None:
    low, high = priorities
    node = json.loads(kubectl("get", "nodes", "-o", "json"))["items"][0]
    free = node["status"]["allocatable"]["cpu"]
    thousandths = int(free.removesuffix("m")) if free.endswith("m") else 1000 * int(free)
    cpu = f"{int(thousandths * 0.6)}m"  # one fits, two do not

    def make(request: ReplicaRequest) -> Pod:
        pod = with_resources(cpu=cpu)(request)
        pod["spec"]["priorityClassName"] = high if request.name == "vip" else low
        host = "kubernetes.io/hostname"
        pod["spec"]["nodeSelector"] = {host: node["metadata"]["labels"][host]}
        return pod

    async def story() -> None:
        async with playing(namespace, make) as stage:
            await stage.cluster.launch(stage.request("w-0"))
            await stage.ready("w-0")
            await stage.cluster.launch(stage.request("vip"))
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert exit.reason.startswith("preempted by the scheduler: ")
            assert exit.from_outside
            await hear(stage.cluster, "vip", ReplicaPhase.RUNNING)

    run(story(), 150)


def test_a_pod_evicted_through_the_eviction_api_was_taken_away(run: Run, namespace: str) -> None:
    async def story() -> None:
        async with playing(namespace) as stage:
            await stage.cluster.launch(stage.request("w-0"))
            await stage.ready("w-0")
            api = make_api()
            version = await api.call("GET", "/version")
            new = (int(version["major"]), int(re.sub(r"\D", "", version["minor"]))) >= (1, 22)
            body = {
                "apiVersion": "policy/v1" if new else "policy/v1beta1",
                "kind": "Eviction",
                "metadata": {"name": "w-0", "namespace": namespace},
            }
            await api.call("POST", f"/api/v1/namespaces/{namespace}/pods/w-0/eviction", body=body)
            await api.close()
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert exit.from_outside
            # Before 1.26 Kubernetes does not distinguish an eviction from a deletion.
            assert exit.reason.startswith(("evicted", "deleted"))

    run(story(), 90)


def test_a_name_is_used_again_while_its_old_pod_still_ends(run: Run, namespace: str) -> None:
    async def story() -> None:
        async with playing(namespace) as stage:
            await stage.cluster.launch(stage.request("w-0"))
            await stage.ready("w-0")
            (old,) = await stage.cluster.list()
            await stage.cluster.stop("w-0", grace_seconds=2)
            await asyncio.gather(*(stage.cluster.launch(stage.request("w-0")) for _ in range(3)))
            new = await hear(stage.cluster, "w-0", ReplicaPhase.RUNNING, other_than_uid=old.uid)
            assert [status.uid for status in await stage.cluster.list()] == [new.uid]

    run(story(), 120)


@pytest.mark.parametrize(
    ("name", "where", "words"),
    [
        ("Not_A_Name", None, "Invalid value"),
        ("w-0", "no-such-namespace", 'namespaces "no-such-namespace" not found'),
    ],
)
def test_what_can_never_be_is_refused_in_the_servers_words(
    run: Run, namespace: str, name: str, where: str | None, words: str
) -> None:
    async def story() -> None:
        cluster = KubernetesCluster(make_api(), where or namespace, JOB, pod_of)
        with pytest.raises(Refused, match=words):
            await cluster.launch(shell(name, "true"))
        await cluster.close()

    run(story())


def test_a_quota_that_is_used_up_refuses_in_the_servers_words(run: Run) -> None:
    require_cluster()

    async def story(namespace: str) -> None:
        cluster = KubernetesCluster(make_api(), namespace, JOB, pod_of)
        with pytest.raises(Refused, match="exceeded quota: none"):
            await cluster.launch(shell("w-0", "true"))
        await cluster.close()

    with own_namespace() as namespace:
        kubectl("create", "quota", "none", "--hard=pods=0", namespace=namespace)
        run(story(namespace))


def through(wire: Wire, found: Credentials) -> Credentials:
    """The same server through the wire."""
    cluster = {"tls-server-name": urlsplit(found.server).hostname, **found.cluster}
    return replace(found, server=f"https://127.0.0.1:{wire.port}", cluster=cluster)


def real_server() -> tuple[Credentials, str, int]:
    found = credentials.find(CONTEXT, prefer_file=CONTEXT is not None)
    url = urlsplit(found.server)
    return found, str(url.hostname), url.port or 443


def test_a_watch_that_is_cut_misses_nothing(run: Run, namespace: str) -> None:
    async def story() -> None:
        found, host, port = real_server()
        async with Wire(host, port) as wire, playing(namespace, api=KubernetesApi(through(wire, found))) as stage:
            await stage.cluster.launch(stage.request("w-0"))
            await stage.ready("w-0")
            hearing = asyncio.create_task(hear_end(stage.cluster, "w-0"))
            await asyncio.sleep(0)
            await wire.cut()
            await stage.run_in("w-0", "(sleep 0.1; echo 7 > /tmp/orders) > /dev/null 2>&1 < /dev/null &")
            kubectl("wait", "--for=condition=Ready=false", "pod/w-0", "--timeout=30s", namespace=namespace)
            assert not hearing.done()
            await wire.mend()
            assert (await hearing).exit.code == 7

    run(story(), 90)


def test_a_server_that_cannot_be_reached_for_a_while_is_asked_again(run: Run, namespace: str) -> None:
    async def story() -> None:
        found, host, port = real_server()
        async with Wire(host, port) as wire, playing(namespace, api=KubernetesApi(through(wire, found))) as stage:
            await wire.cut()
            launching = asyncio.create_task(stage.cluster.launch(stage.request("w-0")))
            done, _ = await asyncio.wait({launching}, timeout=1)
            assert not done
            await wire.mend()
            await launching
            await hear(stage.cluster, "w-0", ReplicaPhase.RUNNING)

    run(story(), 60)


def test_a_server_that_stays_away_is_unreachable_for_calls_and_for_events(run: Run, namespace: str) -> None:
    async def story() -> None:
        found, host, port = real_server()
        async with Wire(host, port) as wire:
            api = KubernetesApi(through(wire, found), deadline_seconds=1)
            async with playing(namespace, api=api, outage_seconds=2) as stage:
                await stage.cluster.launch(stage.request("w-0"))
                await hear(stage.cluster, "w-0", ReplicaPhase.RUNNING)
                await wire.cut()
                with pytest.raises(Unreachable, match=r"no answer from https://127.0.0.1:\d+ within 1 s: "):
                    await stage.cluster.kill("w-0")
                with pytest.raises(Unreachable, match="cannot watch the pods: no answer from"):
                    await hear_end(stage.cluster, "w-0")

    run(story(), 60)


@contextlib.asynccontextmanager
async def plain_server() -> AsyncIterator[int]:
    """The API server without TLS, so that the wire can change its answers."""
    command = ["kubectl", *WHERE, "proxy", "--port=0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        yield int(line.strip().rsplit(":", 1)[1])
    finally:
        process.terminate()
        await process.wait()


def test_a_watch_from_a_version_that_the_server_forgot_starts_over(run: Run, namespace: str) -> None:
    old = re.compile(rb"resourceVersion=(\d+)")
    asked: list[bytes] = []

    def forget(data: bytes) -> bytes:
        if b"watch=true" in data and len(asked) < 3:
            asked.append(data)
            return old.sub(lambda found: b"resourceVersion=" + b"1".zfill(len(found[1])), data)
        return data

    async def story() -> None:
        async with plain_server() as port, Wire("127.0.0.1", port, forget) as wire:
            api = KubernetesApi(Credentials(f"http://127.0.0.1:{wire.port}"))
            async with playing(namespace, api=api) as stage:
                await stage.cluster.launch(stage.request("w-0"))
                await stage.end("w-0", 5)
                assert (await hear_end(stage.cluster, "w-0")).exit.code == 5
        assert len(asked) == 3

    run(story(), 60)


def test_the_server_takes_a_pod_with_everything_a_job_can_ask_for(run: Run, namespace: str) -> None:
    spec = JobSpec.model_validate(
        {
            "job_name": "full",
            "image_name": IMAGE,
            "namespace": namespace,
            "image_pull_policy": "Never",
            "worker_resource_request": "cpu=0.05,memory=16Mi",
            "worker_resource_limit": "cpu=1,memory=64Mi,gpu=1,vendor.com/nic=2,ephemeral-storage=10Mi",
            "volume": "host_path=/tmp,mount_path=/data,sub_path=x;claim_name=c,mount_path=/claim",
            "cluster_spec_json": '{"spec": {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}}}',
        }
    )
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "elasticdl-full", "uid": str(uuid.uuid4())}

    async def story() -> None:
        api = make_api()
        maker = PodMaker(spec, owner=owner, secret="elasticdl-full", run_as=1000)
        request = ReplicaRequest("w-0", "worker", 0, ("true",), {"ELASTICDL_TOKEN": "x"})
        path = f"/api/v1/namespaces/{namespace}/pods"
        taken = await api.call("POST", path, body=maker(request), params={"dryRun": "All", "fieldValidation": "Strict"})
        await api.close()
        assert taken["metadata"]["ownerReferences"][0]["uid"] == owner["uid"]
        assert taken["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"

    run(story())


def test_a_pod_without_root_runs_the_users_words_as_written_and_hears_sigterm(run: Run, namespace: str) -> None:
    values = {"job_name": JOB, "image_name": IMAGE, "namespace": namespace, "image_pull_policy": PULL}
    small = {"worker_resource_request": "cpu=0.01,memory=16Mi", "worker_resource_limit": "cpu=1,memory=128Mi"}
    spec = JobSpec.model_validate({**values, **small})
    script = 'id -u; echo "$(echo $A)" $$ > /tmp/said; cat /tmp/said; touch /no 2> /dev/null || echo read-only'
    wait = "; test -e /var/run/secrets/kubernetes.io || echo no token; while :; do sleep 0.1; done"

    async def story() -> None:
        async with playing(namespace, PodMaker(spec, run_as=1000)) as stage:
            request = ReplicaRequest("w-0", "worker", 0, ("sh", "-c", script + wait), {"A": "$(B) $$ ${C}"})
            await stage.cluster.launch(request)
            await hear(stage.cluster, "w-0", ReplicaPhase.RUNNING)
            await stage.run_in("w-0", "until [ -e /tmp/said ]; do sleep 0.05; done; sleep 0.3")
            said = kubectl("logs", "w-0", namespace=namespace).splitlines()
            number = said[1].rsplit(" ", 1)[1]
            assert said == ["1000", f"$(B) $$ ${{C}} {number}", "read-only", "no token"]
            assert number != "1"
            await stage.run_in("w-0", f"(sleep 0.2; kill -15 {number}) > /dev/null 2>&1 < /dev/null &")
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert exit.signal == signal.SIGTERM

    run(story(), 60)
