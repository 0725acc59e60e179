"""Checks a job with the API server before its submission: reports all that is missing, wrong or not allowed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasticdl.cluster.kubernetes.api import ApiRefused, KubernetesApi
from elasticdl.cluster.kubernetes.objects import job_objects, pod_maker
from elasticdl.cluster.kubernetes.pods import LOW_PRIORITY, restart_policy
from elasticdl.cluster.kubernetes.reading import Object
from elasticdl.cluster.kubernetes.submission import folder, name_taken
from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.errors import Problem
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.job.strategy import strategy_of

MANIFESTS = "manifests"  # the project's folder with what an administrator applies once
CHECKED = f"{names.APP}-check-"  # prefix for the names of objects that are only tried
_CHECKED = re.compile(rf' "{CHECKED}\w+"')
# (group, resource, verb) that master and keeper need, as manifests/elasticdl-rbac.yaml grants them.
MASTER_NEEDS = (
    *(("", "pods", verb) for verb in ("get", "list", "watch", "create", "delete", "patch")),
    ("", "pods/log", "get"),
    ("", "events", "list"),
    ("", "events", "create"),
    ("", "configmaps", "get"),
    ("", "configmaps", "delete"),
    *(("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")),
)
# Needed for a submission. Without the right to create a NetworkPolicy there is none, with a warning.
USER_NEEDS = (
    *(("", resource, "create") for resource in ("configmaps", "secrets", "services", "pods")),
    ("", "configmaps", "get"),
    ("", "configmaps", "delete"),
    ("", "pods", "list"),
)


async def preflight(api: KubernetesApi, spec: JobSpec, secrets: Mapping[str, str]) -> list[Problem]:
    """All problems of this job. What we may not check is left to the submission itself."""
    namespace = str(spec.namespace)
    if await _missing(api, f"/api/v1/namespaces/{namespace}"):
        remedy = f"Create it with kubectl create namespace {namespace}, or use another one."
        return [Problem("--namespace", namespace, "there is no such namespace", remedy), *await _priorities(api, spec)]
    objects = job_objects(spec, secrets)
    account = str(objects.master["spec"].get("serviceAccountName", "default"))
    groups = await asyncio.gather(
        _name(api, spec), _priorities(api, spec), _claims(api, spec), _account(api, namespace, account),
        _rights(api, namespace),
    )  # fmt: skip
    rehearsed = [*objects.all(), *_replicas(spec)]
    found = [*(problem for group in groups for problem in group), *restarted(spec, rehearsed)]
    return found or await _rehearsal(api, rehearsed)


async def _name(api: KubernetesApi, spec: JobSpec) -> list[Problem]:
    try:
        problem = await name_taken(api, spec)
    except ApiRefused as refusal:
        if refusal.code != 403:  # `_rights` reports what is missing
            raise
        return []
    return [] if problem is None else [problem]


async def _priorities(api: KubernetesApi, spec: JobSpec) -> list[Problem]:
    asked = list(_priority_classes(spec))
    missing = await asyncio.gather(
        *(_missing(api, f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}") for _, name in asked)
    )
    found = []
    for (flag, name), gone in zip(asked, missing, strict=True):
        if gone:
            made = f"kubectl apply -f {MANIFESTS}/{name}.yaml" if name in ("high", "low") else "kubectl"
            remedy = f"Create it with {made}, or use another one (kubectl get priorityclasses)."
            found.append(Problem(flag, name, f"there is no PriorityClass {name}", remedy))
    return found


def _priority_classes(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for role in strategy_of(spec).roles(spec):
        flag, asked = f"--{role}_pod_priority", getattr(spec, f"{role}_pod_priority")
        if role == names.WORKER and spec.worker_pod_priority is not None:
            yield flag, spec.worker_pod_priority.name
            if spec.worker_pod_priority.share != 1.0:
                yield flag, LOW_PRIORITY
        elif asked is not None:
            yield flag, asked


async def _claims(api: KubernetesApi, spec: JobSpec) -> list[Problem]:
    found, namespace = [], str(spec.namespace)
    for volume in spec.volume:
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{volume.claim_name}"
        if volume.claim_name is not None and await _missing(api, path):
            what = f"there is no PersistentVolumeClaim {volume.claim_name} in namespace {namespace}"
            remedy = f"Create it first, or use another one (kubectl get -n {namespace} pvc)."
            found.append(Problem("--volume", str(volume), what, remedy))
    return found


async def _account(api: KubernetesApi, namespace: str, account: str) -> list[Problem]:
    """Whether the master's service account exists and has its rights, where we may check."""
    remedy = "An administrator creates it once: " + rbac_command(namespace)
    if await _missing(api, f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}"):
        what = f"namespace {namespace} has no service account {account}, which the master needs to create pods"
        return [Problem("--namespace", namespace, what, remedy)]
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    user = {"user": f"system:serviceaccount:{namespace}:{account}", "groups": groups}
    path = f"/apis/authorization.k8s.io/v1/namespaces/{namespace}/localsubjectaccessreviews"
    refused = await _reviewed(api, "LocalSubjectAccessReview", path, namespace, MASTER_NEEDS, user)
    if refused:
        what = f"the service account {account} may not {', '.join(refused)}"
        return [Problem("--namespace", namespace, what, remedy)]
    return []


def rbac_command(namespace: str, *, from_inside: bool = False) -> str:
    """The command that grants the master's rights; `from_inside`: also those to submit, for the default account."""
    files = [f"{MANIFESTS}/elasticdl-rbac.yaml"]
    if from_inside:
        files.append(f"{MANIFESTS}/examples/elasticdl-rbac.yaml")
    if namespace == "default":
        return f"kubectl apply -f {' -f '.join(files)}"
    return f"sed 's/namespace: default/namespace: {namespace}/' {' '.join(files)} | kubectl apply -n {namespace} -f -"


async def _rights(api: KubernetesApi, namespace: str) -> list[Problem]:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    refused = await _reviewed(api, "SelfSubjectAccessReview", path, namespace, USER_NEEDS, {})
    if not refused:
        return []
    place = api.credentials.context or api.credentials.server
    what = f"{place} does not let you {', '.join(refused)} in namespace {namespace}"
    return [Problem("--namespace", namespace, what, "Ask an administrator for these rights, or use another context.")]


async def _reviewed(
    api: KubernetesApi,
    kind: str,
    path: str,
    namespace: str,
    needs: tuple[tuple[str, str, str], ...],
    user: Mapping[str, Any],
) -> list[str]:
    """The refused needs, such as "create pods"; none where we may not check."""

    async def allowed(group: str, resource: str, verb: str) -> bool:
        plural, _, sub = resource.partition("/")
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": plural, "subresource": sub}
        meta = {"metadata": {"namespace": namespace}} if user else {}
        body: Object = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": kind,
            **meta,
            "spec": {"resourceAttributes": attributes, **user},
        }
        try:
            return bool((await api.call("POST", path, body=body))["status"]["allowed"])
        except ApiRefused as refusal:
            if refusal.code in (403, 404):
                return True
            raise

    answers = await asyncio.gather(*(allowed(*need) for need in needs))
    return [f"{verb} {resource}" for (_, resource, verb), yes in zip(needs, answers, strict=True) if not yes]


def _replicas(spec: JobSpec) -> list[Object]:
    """A pod of each role that the master starts."""
    maker, job = pod_maker(spec), str(spec.job_name)
    return [
        maker(ReplicaRequest(names.replica_name(job, role, 0), role, 0, ("python",), spec.envs))
        for role in strategy_of(spec).roles(spec)
        if role != names.MASTER
    ]


def restarted(spec: JobSpec, objects: Sequence[Object]) -> list[Problem]:
    """Overlays that make the kubelet restart pods in place: the master would not see why they ended, or how often."""
    changed = []
    for pod in objects:
        role = pod["metadata"]["labels"].get(names.LABEL_TYPE)
        if pod["kind"] == "Pod" and role != names.KEEPER and pod["spec"].get("restartPolicy") != restart_policy(role):
            changed.append(role)
    flag = "--cluster_spec_json" if spec.cluster_spec is None else "--cluster_spec"
    what = f"its restartPolicy makes the kubelet restart {', '.join(changed)} in place, which hides their crashes"
    remedy = "Remove it: the master and the keeper replace lost and crashed pods."
    return [Problem(flag, "", what, remedy)] if changed else []


async def _rehearsal(api: KubernetesApi, objects: Sequence[Object]) -> list[Problem]:
    """Create all objects as a dry run, to check quotas, admission and overlays."""
    said = await asyncio.gather(*(_refusal(api, thing) for thing in objects))
    found: dict[str, list[str]] = {}
    for thing, refusal in zip(objects, said, strict=True):
        if refusal is not None:
            role = thing["metadata"]["labels"].get(names.LABEL_TYPE, thing["kind"])
            found.setdefault(_CHECKED.sub("", str(refusal)), []).append(role)
    remedy = "Change the flag, or the overlay of --cluster_spec or --cluster_spec_json, that requests it."
    return [Problem(", ".join(roles), "", text.rstrip("."), remedy) for text, roles in found.items()]


async def _refusal(api: KubernetesApi, thing: Object) -> ApiRefused | None:
    # With a generated name: objects of an earlier job may still have the real one.
    meta = {key: value for key, value in thing["metadata"].items() if key != "name"}
    body = {**thing, "metadata": {**meta, "generateName": CHECKED}}
    try:
        await api.call("POST", folder(thing["kind"], meta["namespace"]), body=body, params={"dryRun": "All"})
    except ApiRefused as refusal:
        return None if refusal.code == 403 and thing["kind"] == "NetworkPolicy" else refusal
    return None


async def _missing(api: KubernetesApi, path: str) -> bool:
    """Whether it does not exist; False where we may not look."""
    try:
        await api.call("GET", path)
    except ApiRefused as refusal:
        if refusal.code not in (403, 404):
            raise
        return refusal.code == 404
    return False
