"""Submits a job to a cluster: creates all of its objects or none, after removing those of an earlier job."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from elasticdl.cluster.kubernetes.api import ApiRefused, KubernetesApi, Pauses, labelled
from elasticdl.cluster.kubernetes.objects import job_objects, owned, owner
from elasticdl.cluster.kubernetes.pods import GRACE_SECONDS
from elasticdl.cluster.kubernetes.reading import Object, Pod, leaving, phase_of
from elasticdl.cluster.protocol import ReplicaPhase
from elasticdl.errors import JobFailed, Problem, Unreachable, UsageError
from elasticdl.job import names
from elasticdl.job.spec import JobSpec

log = logging.getLogger(__name__)

PLACES = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "Pod": ("/api/v1", "pods"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
}
WITHDRAW_SECONDS, REMOVE_SECONDS = 10.0, 300.0  # while a user waits; otherwise
ROOM_SECONDS = 60.0  # until objects of an earlier job are gone
OVER_SECONDS = 90.0  # until the keeper of an ended job has removed it
LATE_SECONDS = 15.0  # until a kubelet reports that a pod is gone


def folder(kind: str, namespace: str) -> str:
    """The API path of the objects of a kind."""
    version, plural = PLACES[kind]
    return f"{version}/namespaces/{namespace}/{plural}"


async def find(api: KubernetesApi, kind: str, namespace: str, name: str) -> Object | None:
    """An object; None if there is none with this name."""
    return await api.find(f"{folder(kind, namespace)}/{name}")


async def submit(
    api: KubernetesApi,
    spec: JobSpec,
    secrets: Mapping[str, str],
    *,
    master_exists: bool = False,
    tell: Callable[[str], None] = log.info,
    over_seconds: float = OVER_SECONDS,
) -> str:
    """Create all objects of a resolved job, or none; returns the uid of its ConfigMap, which owns them.

    `master_exists`: the master's pod exists and makes this call itself; it becomes one of the job's objects. Repeating
    the call then changes nothing. `tell` gets messages for the user.
    """
    namespace, job, mark = str(spec.namespace), str(spec.job_name), uuid.uuid4().hex
    objects = job_objects(spec, secrets)
    if master_exists:
        master = await api.call("GET", f"{folder('Pod', namespace)}/{objects.master['metadata']['name']}")
        if _told(master):  # its container was restarted: there is nothing to do
            raise JobFailed(f"the job {job} has ended: it {_outcome(master)}")
        for known in master["metadata"].get("ownerReferences", []):
            if known["name"] == names.config_name(job):
                return str(known["uid"])
    else:
        await _make_room(api, spec, tell, over_seconds)
    by = owner(job, await _begin(api, objects.config_map, mark))
    try:
        await _make(api, owned(objects.secret, by), mark)
        await _make(api, owned(objects.service, by), mark)
        await _make_if_allowed(api, owned(objects.network_policy, by), mark, tell)
        if not master_exists:
            await _make(api, owned(objects.master, by), mark)
        await _make(api, owned(objects.keeper, by), mark)
        if master_exists:  # last: an earlier failure must not delete it
            path = f"{folder('Pod', namespace)}/{objects.master['metadata']['name']}"
            # The old client's masters have another label, which the Service does not select.
            adopted = {"metadata": {"ownerReferences": [by], "labels": objects.master["metadata"]["labels"]}}
            await api.patch(path, body=adopted)
    except BaseException:  # also when interrupted: half a job would stay forever
        await _withdraw(api, namespace, by)
        raise
    return str(by["uid"])


async def _begin(api: KubernetesApi, config: Object, mark: str) -> str:
    """Create the ConfigMap, or none if interrupted; returns its uid."""
    making = asyncio.create_task(_make(api, config, mark))
    try:
        made = await asyncio.shield(making)
    except asyncio.CancelledError:
        # Only the answer tells whether the server has created it.
        await asyncio.wait({making}, timeout=WITHDRAW_SECONDS)
        if making.done() and not making.cancelled() and making.exception() is None:
            meta = making.result()["metadata"]
            await _withdraw(api, meta["namespace"], owner(meta["labels"][names.LABEL_JOB], meta["uid"]))
        making.cancel()
        raise
    return str(made["metadata"]["uid"])


async def _make(api: KubernetesApi, thing: Object, mark: str) -> Object:
    """Create an object; waits until that of an earlier job with this name is gone."""
    meta, loop, pauses = thing["metadata"], asyncio.get_running_loop(), Pauses()
    annotations = {**meta.get("annotations", {}), names.ANNOTATION_LAUNCH: mark}
    body = {**thing, "metadata": {**meta, "annotations": annotations}}
    deadline = loop.time() + ROOM_SECONDS
    while True:
        try:
            return await api.call("POST", folder(thing["kind"], meta["namespace"]), body=body)
        except ApiRefused as refusal:
            if refusal.reason != "AlreadyExists":
                raise
            there = await _look(api, thing)
            if there is not None and there["metadata"].get("annotations", {}).get(names.ANNOTATION_LAUNCH) == mark:
                return there  # the answer to the first attempt was lost
            job, namespace = str(meta["labels"][names.LABEL_JOB]), str(meta["namespace"])
            if thing["kind"] == "ConfigMap":
                raise UsageError([in_use(job, namespace)]) from refusal
            await _remove_ownerless(api, there)
            if loop.time() > deadline:
                what = f"the {thing['kind']} {meta['name']} of an earlier job still exists"
                remedy = f"Remove it: kubectl delete -n {namespace} {thing['kind'].lower()} {meta['name']}."
                raise UsageError([Problem("--job_name", job, what, remedy)]) from refusal
        await asyncio.sleep(pauses.next())


async def _look(api: KubernetesApi, thing: Object) -> Object | None:
    """The existing object of this name; None if this account may not read it."""
    try:
        return await find(api, thing["kind"], thing["metadata"]["namespace"], thing["metadata"]["name"])
    except ApiRefused as refusal:
        if refusal.code == 403:
            return None
        raise


async def _remove_ownerless(api: KubernetesApi, there: Object | None) -> None:
    """Remove an object that `kubectl apply` created from `--yaml`, which has no owner. Its job has ended: the new job
    has the ConfigMap of this name."""
    if there is None or there["kind"] == "Pod" or there["metadata"].get("ownerReferences") or leaving(there):
        return
    meta = there["metadata"]
    if meta.get("labels", {}).get(names.LABEL_APP) != names.APP:  # not an object of this project
        return
    path = f"{folder(there['kind'], meta['namespace'])}/{meta['name']}"
    with contextlib.suppress(ApiRefused):  # without the right, the caller reports the object
        await api.delete(path, meta["uid"])


async def _make_if_allowed(api: KubernetesApi, thing: Object, mark: str, tell: Callable[[str], None]) -> None:
    try:
        await _make(api, thing, mark)
    except ApiRefused as refusal:
        if refusal.code != 403:
            raise
        tell(f"Warning: any pod in the cluster can connect to this job's pods (no NetworkPolicy): {refusal}")


async def _withdraw(api: KubernetesApi, namespace: str, by: Object) -> None:
    """Remove the ConfigMap, and with it all created objects."""

    async def delete() -> None:
        with contextlib.suppress(ApiRefused, Unreachable):
            await remove_config(api, namespace, by["name"], by["uid"], WITHDRAW_SECONDS)

    # Complete this even if the submission is cancelled.
    await asyncio.shield(asyncio.create_task(delete()))


async def remove_config(
    api: KubernetesApi, namespace: str, name: str, uid: str, deadline_seconds: float = REMOVE_SECONDS
) -> None:
    """Delete a job's ConfigMap, if it exists; the garbage collector removes what it owns."""
    await api.remove(f"{folder('ConfigMap', namespace)}/{name}", uid, deadline_seconds=deadline_seconds)


async def conclude(api: KubernetesApi, namespace: str, job: str, master: Pod, uid: str) -> None:
    """Remove all of an ended job but its master's pod, with the log and the result."""
    meta = master["metadata"]
    body = {"metadata": {"uid": meta["uid"], "ownerReferences": None}}
    try:
        await api.patch(f"{folder('Pod', namespace)}/{meta['name']}", body=body)
    except ApiRefused as refusal:
        if not refusal.missed:  # it was removed: then nothing stays
            raise
    await remove_config(api, namespace, names.config_name(job), uid)


# Removing an earlier job with the same name.


async def _make_room(api: KubernetesApi, spec: JobSpec, tell: Callable[[str], None], over_seconds: float) -> None:
    """Remove the pods of an earlier job with this name; raises UsageError if it is still running."""
    namespace, job = str(spec.namespace), str(spec.job_name)
    problem = await name_taken(api, spec)
    if problem is not None:
        raise UsageError([problem])
    await _wait_for_config(api, namespace, job, over_seconds)
    pods = await _pods(api, namespace, job)
    for pod in pods["items"]:
        if pod["metadata"]["labels"].get(names.LABEL_TYPE) == names.MASTER:
            tell(f"Removing the master pod of an earlier job {job} ({_outcome(pod)}), with its log.")
        await _delete(api, namespace, pod, at_once=phase_of(pod) is ReplicaPhase.GONE)
    if pods["items"] and await _left_after(api, namespace, job, GRACE_SECONDS + LATE_SECONDS):
        # Their job has ended and their grace period is over; only the kubelet has not reported it.
        for pod in (await _pods(api, namespace, job))["items"]:
            await _delete(api, namespace, pod, at_once=True)
        if stay := await _left_after(api, namespace, job, LATE_SECONDS):
            raise Unreachable(f"pods of an earlier job {job} cannot be removed: {', '.join(sorted(stay))}")


async def name_taken(api: KubernetesApi, spec: JobSpec) -> Problem | None:
    """Why the name cannot be used now; None also if an earlier job has ended."""
    namespace, job = str(spec.namespace), str(spec.job_name)
    config = await find(api, "ConfigMap", namespace, names.config_name(job))
    if config is not None and leaving(config):
        remedy = f"Wait until kubectl get -n {namespace} configmap {names.config_name(job)} finds nothing."
        return Problem("--job_name", job, "an earlier job with this name is still being removed", remedy)
    pods = (await _pods(api, namespace, job))["items"]
    if any(_told(pod) for pod in pods):
        return None  # it has ended; kubelet and keeper may need a minute to remove it
    if config is not None:
        return in_use(job, namespace)
    for pod in pods:
        # A pod of the old client has no ConfigMap yet.
        alive = phase_of(pod) is not ReplicaPhase.GONE and not leaving(pod)
        if alive and not pod["metadata"].get("ownerReferences"):
            name = pod["metadata"]["name"]
            what, remedy = f"the pod {name} is already running", f"Choose another name, or kubectl delete pod {name}."
            return Problem("--job_name", job, what, remedy)
    return None


def in_use(job: str, namespace: str) -> Problem:
    remedy = f"Choose another name, or stop that job: elasticdl stop {job} --namespace={namespace}."
    return Problem("--job_name", job, f"a job with this name already exists in namespace {namespace}", remedy)


async def _wait_for_config(api: KubernetesApi, namespace: str, job: str, over_seconds: float) -> None:
    """Wait until the ConfigMap of an ended job is gone: its keeper removes it if its master did not."""
    loop, pauses = asyncio.get_running_loop(), Pauses()
    deadline = loop.time() + over_seconds
    while await find(api, "ConfigMap", namespace, names.config_name(job)) is not None:
        if not any(_told(pod) for pod in (await _pods(api, namespace, job))["items"]):
            raise UsageError([in_use(job, namespace)])  # another user has submitted one meanwhile
        if loop.time() >= deadline:
            what = f"an earlier job with this name has ended and was not removed within {over_seconds:g} s"
            remedy = f"Remove what is left of it: elasticdl stop {job} --now --namespace={namespace}."
            raise UsageError([Problem("--job_name", job, what, remedy)])
        await asyncio.sleep(pauses.next())  # a watch would need another right


def _told(pod: Pod) -> bool:
    """Whether it has the result of its job."""
    return names.ANNOTATION_RESULT in pod["metadata"].get("annotations", {})


def _outcome(master: Pod) -> str:
    """How a job ended, in a word or two."""
    try:
        return str(json.loads(master["metadata"].get("annotations", {})[names.ANNOTATION_RESULT])["outcome"])
    except (KeyError, ValueError, TypeError):
        return "ended"


async def _pods(api: KubernetesApi, namespace: str, job: str) -> dict[str, Any]:
    return await api.call("GET", folder("Pod", namespace), params=_selector(job))


async def _delete(api: KubernetesApi, namespace: str, pod: Pod, *, at_once: bool) -> None:
    meta = pod["metadata"]
    path = f"{folder('Pod', namespace)}/{meta['name']}"
    await api.remove(path, meta["uid"], grace_seconds=0 if at_once else None)


async def _left_after(api: KubernetesApi, namespace: str, job: str, seconds: float) -> list[str]:
    """The pods that still exist after this time; returns early if all are gone."""
    loop, pauses = asyncio.get_running_loop(), Pauses()
    deadline = loop.time() + seconds
    while True:
        answer = await _pods(api, namespace, job)
        there = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in answer["items"]}
        if not there or loop.time() >= deadline:
            return list(there.values())
        params = {**_selector(job), "resourceVersion": answer["metadata"]["resourceVersion"]}
        left = max(1.0, deadline - loop.time())
        with contextlib.suppress(Unreachable, ApiRefused):  # the next list tells
            async with contextlib.aclosing(api.watch(folder("Pod", namespace), params, seconds=left)) as changes:
                async for kind, pod in changes:
                    if kind == "DELETED":
                        there.pop(pod["metadata"]["uid"], None)
                    if not there:
                        break
        if there:
            await asyncio.sleep(pauses.next())


def _selector(job: str) -> dict[str, str]:
    return labelled(names.labels(job))
