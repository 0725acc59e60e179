"""The master's service account: manifests/elasticdl-rbac.yaml grants enough, and nothing that is not needed. And what
manifests/examples/elasticdl-rbac.yaml adds for submissions from inside the cluster.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from elasticdl.cluster.kubernetes import credentials
from elasticdl.cluster.kubernetes.api import KubernetesApi
from elasticdl.cluster.kubernetes.cluster import KubernetesCluster
from elasticdl.cluster.kubernetes.keeper import Keeper
from elasticdl.cluster.kubernetes.lease import Lease
from elasticdl.cluster.kubernetes.submission import remove_config, submit
from elasticdl.cluster.protocol import ReplicaPhase, ReplicaRequest
from elasticdl.errors import Refused
from elasticdl.job.resolve import resolve
from elasticdl.job.spec import JobSpec

from .hearing import hear, hear_end
from .kubernetes_stage import (
    CONTEXT,
    IMAGE,
    JOB,
    MANIFESTS,
    KubernetesStage,
    as_account,
    grant,
    kubectl,
    own_namespace,
    pod_of,
    require_cluster,
)

pytestmark = pytest.mark.kubernetes

Run = Callable[..., None]
ACCOUNT, ROLE, BINDING = yaml.safe_load_all((MANIFESTS / "elasticdl-rbac.yaml").read_text())
SUBMIT, *SUBMIT_BINDINGS = yaml.safe_load_all((MANIFESTS / "examples" / "elasticdl-rbac.yaml").read_text())
BESIDES_REPLICAS = {
    ("configmaps", "get"), ("configmaps", "delete"), ("events", "create"),
    *(("leases", verb) for verb in ("get", "create", "update")),
}  # fmt: skip


def grants(role: dict[str, Any]) -> list[tuple[str, str]]:
    return [(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]]


GRANTS = grants(ROLE)
SUBMITTERS = [(resource, "create") for resource in ("configmaps", "secrets", "services")]  # needed to submit


def account_without(resource: str, verb: str, *roles: dict[str, Any]) -> list[dict[str, Any]]:
    """An account with these roles, and one verb less."""
    name = f"no-{verb}-{resource.replace('/', '-')}"
    rules = [
        {**rule, "resources": [each], "verbs": [v for v in rule["verbs"] if (resource, verb) != (each, v)]}
        for role in roles
        for rule in role["rules"]
        for each in rule["resources"]
    ]
    rules = [rule for rule in rules if rule["verbs"]]
    meta = {"metadata": {"name": name}}
    subjects = [{**BINDING["subjects"][0], "name": name}]
    binding = {**BINDING, **meta, "roleRef": {**BINDING["roleRef"], "name": name}, "subjects": subjects}
    return [{**ACCOUNT, **meta}, {**ROLE, **meta, "rules": rules}, binding]


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    require_cluster()
    with own_namespace() as name:
        objects = [ACCOUNT, ROLE, BINDING, *(o for grant in GRANTS for o in account_without(*grant, ROLE))]
        objects += [o for grant in SUBMITTERS for o in account_without(*grant, ROLE, SUBMIT)]
        grant([*objects, SUBMIT, *SUBMIT_BINDINGS], name, "elasticdl-master")
        yield name


def api_as(account: str, namespace: str) -> KubernetesApi:
    found = credentials.find(CONTEXT, prefer_file=CONTEXT is not None)
    return KubernetesApi(as_account(found, namespace, account))


def cluster_as(account: str, namespace: str) -> KubernetesCluster:
    return KubernetesCluster(api_as(account, namespace), namespace, JOB, pod_of)


def job(name: str, namespace: str) -> JobSpec:
    values = {
        "job_name": name,
        "image_name": IMAGE,
        "model_def": "a.b.c",
        "training_data": "/d",
        "namespace": namespace,
    }
    return resolve(JobSpec.model_validate(values)).require()


def config_of(name: str, namespace: str) -> dict[str, str]:
    """A job's ConfigMap, as an owner."""
    kubectl("create", "configmap", f"elasticdl-{name}", namespace=namespace)
    uid = kubectl("get", "configmap", f"elasticdl-{name}", "-o", "jsonpath={.metadata.uid}", namespace=namespace)
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": f"elasticdl-{name}", "uid": uid}


def crash(name: str) -> ReplicaRequest:
    return ReplicaRequest(name, "worker", 0, ("sh", "-c", "echo last words; exit 3"), {})


def report_preemption(pod: str, namespace: str) -> None:
    """Create an event like that of the scheduler before Kubernetes 1.26."""
    uid = kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}", namespace=namespace)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod}.preempted"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": pod, "namespace": namespace, "uid": uid},
        "reason": "Preempted",
        "message": "by others",
        "type": "Normal",
    }
    kubectl("apply", "-f", "-", namespace=namespace, stdin=yaml.safe_dump(event))


def test_the_manifest_grants_all_that_a_master_does_with_pods(run: Run, namespace: str) -> None:
    async def story() -> None:
        stage = KubernetesStage(namespace)
        cluster = cluster_as("elasticdl-master", namespace)
        stage.cluster = cluster
        stage.clients.append(cluster)
        try:
            await cluster.launch(crash("w-0"))
            first = await hear_end(cluster, "w-0")
            assert first.exit is not None
            assert (first.exit.code, first.exit.last_lines) == (3, ("last words",))
            await cluster.launch(stage.request("w-0"))  # removes the old pod
            await hear(cluster, "w-0", ReplicaPhase.RUNNING, other_than_uid=first.uid)
            report_preemption("w-0", namespace)
            kubectl("delete", "pod", "w-0", "--wait=false", "--grace-period=1", namespace=namespace)
            taken = (await hear_end(cluster, "w-0", other_than_uid=first.uid)).exit
            assert taken is not None
            assert taken.reason.startswith("preempted by the scheduler: by others")
            await cluster.launch(stage.request("w-1"))
            await hear(cluster, "w-1", ReplicaPhase.RUNNING)
            await cluster.kill("w-1")
            await hear_end(cluster, "w-1")
        finally:
            await stage.close()

    run(story(), 120)


@pytest.mark.parametrize(("resource", "verb"), GRANTS)
def test_nothing_of_the_manifest_can_be_dropped(run: Run, namespace: str, resource: str, verb: str) -> None:
    name = f"{verb}-{resource.replace('/', '-')}"

    async def story() -> None:
        cluster = cluster_as(f"no-{name}", namespace)
        admin = KubernetesStage(namespace)
        try:
            async with asyncio.timeout(60):
                await attempt(cluster, admin)
        finally:
            await cluster.close()
            await admin.close()

    async def attempt(cluster: KubernetesCluster, admin: KubernetesStage) -> None:
        refused = pytest.raises(Refused, match=f'cannot {verb} resource "{resource}"')
        match resource, verb:
            case "pods", "create":
                with refused:
                    await cluster.launch(admin.request(name))
            case "pods", "list":
                with refused:
                    await cluster.list()
            case "pods", "watch":
                with refused:
                    await hear_end(cluster, "nobody")
            case "pods", _:  # get, delete, patch
                await cluster.launch(admin.request(name))
                with refused:
                    await cluster.kill(name)
            case "pods/log", _:
                await cluster.launch(crash(name))
                crashed = (await hear_end(cluster, name)).exit
                assert crashed is not None
                assert crashed.last_lines == ()
            case "events", "list":
                await cluster.launch(admin.request(name))
                await hear(cluster, name, ReplicaPhase.RUNNING)
                report_preemption(name, namespace)
                kubectl("delete", "pod", name, "--wait=false", "--grace-period=1", namespace=namespace)
                taken = (await hear_end(cluster, name)).exit
                assert taken is not None
                assert taken.reason.startswith("deleted")
            case _:
                pytest.fail(f"no test for {verb} of {resource}")

    run(attempt_besides(name, namespace, resource, verb) if (resource, verb) in BESIDES_REPLICAS else story(), 90)


async def attempt_besides(name: str, namespace: str, resource: str, verb: str) -> None:
    """What master and keeper do besides managing replicas, with an account that lacks one verb."""
    refused = pytest.raises(Refused, match=f'cannot {verb} resource "{resource}"')
    api, admin = (
        api_as(f"no-{name}", namespace),
        KubernetesApi(credentials.find(CONTEXT, prefer_file=CONTEXT is not None)),
    )
    try:
        match resource, verb:
            case "configmaps", "get":
                with refused:
                    await Keeper(api, namespace, name).run()
            case "configmaps", "delete":
                owner = config_of(name, namespace)
                with refused:
                    await remove_config(api, namespace, owner["name"], owner["uid"])
            case "leases", _:
                owner = config_of(name, namespace)
                if verb == "update":
                    await Lease(admin, namespace, name, "me", owner).acquire()
                with refused:
                    await Lease(api, namespace, name, "me", owner).acquire()
            case "events", "create":
                pod = {"metadata": {"name": name, "uid": "7"}}
                for client, heard in ((api, ""), (admin, "MasterLost")):
                    await Keeper(client, namespace, name).tell(pod, "MasterLost", "it was killed")
                    words = (
                        "events",
                        f"--field-selector=involvedObject.name={name}",
                        "-o",
                        "jsonpath={.items[*].reason}",
                    )
                    assert kubectl("get", *words, namespace=namespace) == heard
    finally:
        await api.close()
        await admin.close()


@pytest.mark.parametrize("account", ["elasticdl-master", "default"])
def test_only_the_account_that_submits_from_inside_reads_secrets(namespace: str, account: str) -> None:
    asked = ("auth", "can-i", "get", "secrets", f"--as=system:serviceaccount:{namespace}:{account}")
    assert kubectl(*asked, namespace=namespace, fails=True).strip() == ("yes" if account == "default" else "no")


@pytest.mark.parametrize(("resource", "verb"), SUBMITTERS)
def test_a_submission_from_inside_needs_what_the_examples_grant(
    run: Run, namespace: str, resource: str, verb: str
) -> None:
    async def story() -> None:
        without, default = api_as(f"no-{verb}-{resource}", namespace), api_as("default", namespace)
        name = f"inside-{resource}"
        try:
            with pytest.raises(Refused, match=f'cannot {verb} resource "{resource}"'):
                await submit(without, job(name, namespace), {"ELASTICDL_TOKEN": "t"})
            uid = await submit(default, job(name, namespace), {"ELASTICDL_TOKEN": "t"})
            await remove_config(default, namespace, f"elasticdl-{name}", uid)
        finally:
            await without.close()
            await default.close()

    run(story(), 90)


def test_the_examples_grant_nothing_for_submitters_that_the_masters_role_has() -> None:
    """Except for ConfigMaps, of which they need all: a right in both files could be removed from one."""
    assert {resource for resource, _ in set(grants(SUBMIT)) & set(GRANTS)} == {"configmaps"}


def test_a_master_in_a_pod_is_known_by_its_token_and_keeps_up_with_its_replacement(
    run: Run, namespace: str, tmp_path: Path
) -> None:
    found = credentials.find(CONTEXT, prefer_file=CONTEXT is not None)
    server, authority = urlsplit(found.server), found.cluster.get("certificate-authority-data")
    if authority is None:
        authority = base64.b64encode(Path(found.cluster["certificate-authority"]).read_bytes()).decode()
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(authority))
    (tmp_path / "namespace").write_text(namespace)
    (tmp_path / "token").write_text("one that has run out")

    async def story() -> None:
        env = {"KUBERNETES_SERVICE_HOST": str(server.hostname), "KUBERNETES_SERVICE_PORT": str(server.port or 443)}
        cluster = KubernetesCluster(KubernetesApi(credentials.in_cluster(env, tmp_path)), namespace, JOB, pod_of)
        try:
            with pytest.raises(Refused, match="Unauthorized"):
                await cluster.list()
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/elasticdl-master/token"
            wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            admin = KubernetesApi(found)
            answer = await admin.call("POST", path, body=wanted)
            await admin.close()
            (tmp_path / "token").write_text(answer["status"]["token"])
            await cluster.list()
        finally:
            await cluster.close()

    run(story())


def test_the_priority_classes_are_taken_by_the_server_and_high_is_above_low() -> None:
    require_cluster()
    values = {}
    for name in ("high", "low"):
        text = (MANIFESTS / f"{name}.yaml").read_text()
        values[name] = yaml.safe_load(text)["value"]
        kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    assert values["high"] > values["low"] > 0
