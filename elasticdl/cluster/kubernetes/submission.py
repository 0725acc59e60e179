"""Putting a job into a cluster: its objects, all or none, and room for them where a job of this name was before."""

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
WITHDRAW_SECONDS, REMOVE_SECONDS = 10.0, 300.0  # while somebody waits, and while nobody does
ROOM_SECONDS = 60.0  # for what an earlier job left to go
OVER_SECONDS = 90.0  # for the keeper of one that is over, once a kubelet says that its master has ended
LATE_SECONDS = 15.0  # for a kubelet to say that a pod is gone


def folder(kind: str, namespace: str) -> str:
    """Where the API has the objects of a kind."""
    version, plural = PLACES[kind]
    return f"{version}/namespaces/{namespace}/{plural}"


async def find(api: KubernetesApi, kind: str, namespace: str, name: str) -> Object | None:
    """An object; None where there is none of this name."""
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
    """Make a resolved job's objects, or none of them; returns the uid of its ConfigMap, to which they belong.

    `master_exists`: the master's pod is there already, and asks for this itself; it becomes one of the job's objects.
    Asking again changes nothing then. What is told is for the user.
    """
    namespace, job, mark = str(spec.namespace), str(spec.job_name), uuid.uuid4().hex
    objects = job_objects(spec, secrets)
    if master_exists:
        master = await api.call("GET", f"{folder('Pod', namespace)}/{objects.master['metadata']['name']}")
        if _told(master):  # its container was started again: there is nothing to do
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
        if master_exists:  # last: what fails before must not take it along
            path = f"{folder('Pod', namespace)}/{objects.master['metadata']['name']}"
            # The old client's masters have a label of their own, by which the Service would not find them.
            adopted = {"metadata": {"ownerReferences": [by], "labels": objects.master["metadata"]["labels"]}}
            await api.patch(path, body=adopted)
    except BaseException:  # interrupted, too: half a job would stay for ever
        await _withdraw(api, namespace, by)
        raise
    return str(by["uid"])


async def _begin(api: KubernetesApi, config: Object, mark: str) -> str:
    """Make the ConfigMap, and none if interrupted: its uid."""
    making = asyncio.create_task(_make(api, config, mark))
    try:
        made = await asyncio.shield(making)
    except asyncio.CancelledError:
        # Whether the server has made it is not known before it answers.
        await asyncio.wait({making}, timeout=WITHDRAW_SECONDS)
        if making.done() and not making.cancelled() and making.exception() is None:
            meta = making.result()["metadata"]
            await _withdraw(api, meta["namespace"], owner(meta["labels"][names.LABEL_JOB], meta["uid"]))
        making.cancel()
        raise
    return str(made["metadata"]["uid"])


async def _make(api: KubernetesApi, thing: Object, mark: str) -> Object:
    """Make an object; what an earlier job of this name left behind goes by and by, and is waited for."""
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
    """What is there under its name; a service account that submits may not look at everything that it makes."""
    try:
        return await find(api, thing["kind"], thing["metadata"]["namespace"], thing["metadata"]["name"])
    except ApiRefused as refusal:
        if refusal.code == 403:
            return None
        raise


async def _remove_ownerless(api: KubernetesApi, there: Object | None) -> None:
    """What `kubectl apply` made of `--yaml` belongs to nobody and goes with nothing. Its job is over: this one has the
    name's ConfigMap."""
    if there is None or there["kind"] == "Pod" or there["metadata"].get("ownerReferences") or leaving(there):
        return
    meta = there["metadata"]
    if meta.get("labels", {}).get(names.LABEL_APP) != names.APP:  # somebody else's, for whatever reason
        return
    path = f"{folder(there['kind'], meta['namespace'])}/{meta['name']}"
    with contextlib.suppress(ApiRefused):  # who may not is told what is in the way
        await api.delete(path, meta["uid"])


async def _make_if_allowed(api: KubernetesApi, thing: Object, mark: str, tell: Callable[[str], None]) -> None:
    try:
        await _make(api, thing, mark)
    except ApiRefused as refusal:
        if refusal.code != 403:
            raise
        tell(f"Warning: any pod in the cluster can connect to this job's pods (no NetworkPolicy): {refusal}")


async def _withdraw(api: KubernetesApi, namespace: str, by: Object) -> None:
    """Remove the ConfigMap, and with it all that was made."""

    async def delete() -> None:
        with contextlib.suppress(ApiRefused, Unreachable):
            await remove_config(api, namespace, by["name"], by["uid"], WITHDRAW_SECONDS)

    # To the end, although whoever submits is leaving.
    await asyncio.shield(asyncio.create_task(delete()))


async def remove_config(
    api: KubernetesApi, namespace: str, name: str, uid: str, deadline_seconds: float = REMOVE_SECONDS
) -> None:
    """Delete a job's ConfigMap; the cluster's garbage collector removes what belongs to it. Nothing, if it is gone."""
    await api.remove(f"{folder('ConfigMap', namespace)}/{name}", uid, deadline_seconds=deadline_seconds)


async def conclude(api: KubernetesApi, namespace: str, job: str, master: Pod, uid: str) -> None:
    """Leave nothing of a job that is over but its master's pod, with its log and its result."""
    meta = master["metadata"]
    body = {"metadata": {"uid": meta["uid"], "ownerReferences": None}}
    try:
        await api.patch(f"{folder('Pod', namespace)}/{meta['name']}", body=body)
    except ApiRefused as refusal:
        if not refusal.missed:  # somebody removed it: then nothing stays
            raise
    await remove_config(api, namespace, names.config_name(job), uid)


# Room for a job whose name was used before.


async def _make_room(api: KubernetesApi, spec: JobSpec, tell: Callable[[str], None], over_seconds: float) -> None:
    """Remove the pods that an earlier job of this name left; raises UsageError when it is still running."""
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
        # Their job is over and their time is up; only a kubelet has not said so yet.
        for pod in (await _pods(api, namespace, job))["items"]:
            await _delete(api, namespace, pod, at_once=True)
        if stay := await _left_after(api, namespace, job, LATE_SECONDS):
            raise Unreachable(f"pods of an earlier job {job} cannot be removed: {', '.join(sorted(stay))}")


async def name_taken(api: KubernetesApi, spec: JobSpec) -> Problem | None:
    """Why the name cannot be used now; an earlier job that has ended does not stand in the way."""
    namespace, job = str(spec.namespace), str(spec.job_name)
    config = await find(api, "ConfigMap", namespace, names.config_name(job))
    if config is not None and leaving(config):
        remedy = f"Wait until kubectl get -n {namespace} configmap {names.config_name(job)} finds nothing."
        return Problem("--job_name", job, "an earlier job with this name is still being removed", remedy)
    pods = (await _pods(api, namespace, job))["items"]
    if any(_told(pod) for pod in pods):
        return None  # it is over; a kubelet may take a minute to say so, and the keeper to remove it
    if config is not None:
        return in_use(job, namespace)
    for pod in pods:
        # Such as the old client makes: it has no ConfigMap yet.
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
    """Until the ConfigMap of a job that is over is gone: its keeper removes it, if its master did not come to it."""
    loop, pauses = asyncio.get_running_loop(), Pauses()
    deadline = loop.time() + over_seconds
    while await find(api, "ConfigMap", namespace, names.config_name(job)) is not None:
        if not any(_told(pod) for pod in (await _pods(api, namespace, job))["items"]):
            raise UsageError([in_use(job, namespace)])  # somebody else submits one meanwhile
        if loop.time() >= deadline:
            what = f"an earlier job with this name has ended and was not removed within {over_seconds:g} s"
            remedy = f"Remove what is left of it: elasticdl stop {job} --now --namespace={namespace}."
            raise UsageError([Problem("--job_name", job, what, remedy)])
        await asyncio.sleep(pauses.next())  # a watch would need another permission


def _told(pod: Pod) -> bool:
    """Whether it says how its job ended."""
    return names.ANNOTATION_RESULT in pod["metadata"].get("annotations", {})


def _outcome(master: Pod) -> str:
    """How an ended job ended, in a word or two."""
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
    """The pods that are still there after so long; none, as soon as there are none."""
    loop, pauses = asyncio.get_running_loop(), Pauses()
    deadline = loop.time() + seconds
    while True:
        answer = await _pods(api, namespace, job)
        there = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in answer["items"]}
        if not there or loop.time() >= deadline:
            return list(there.values())
        params = {**_selector(job), "resourceVersion": answer["metadata"]["resourceVersion"]}
        left = max(1.0, deadline - loop.time())
        with contextlib.suppress(Unreachable, ApiRefused):  # the next list says more
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
