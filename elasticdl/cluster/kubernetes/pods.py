"""Builds the pod of a replica from the job's description, with the user's overlays. Pure functions."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elasticdl.cluster.kubernetes.reading import CONTAINER, Pod, main_container
from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.errors import Problem, UsageError
from elasticdl.job import names, storage
from elasticdl.job.resources import ResourceSpec
from elasticdl.job.spec import JobSpec

GRACE_SECONDS = 30  # for pods that others preempt, evict or delete
SECRET_ENV = (
    names.ENV_TOKEN, names.ENV_DATA_KEY, names.ENV_DATA_SECRET, names.ENV_TLS_CERT, names.ENV_TLS_KEY,
)  # fmt: skip
LOW_PRIORITY = "low"
# Roles that use the API server, with a service account.
_WITH_TOKEN = (names.MASTER, names.KEEPER)
# The keeper is nearly always idle: a Python process with an HTTP client.
_KEEPER_RESOURCES = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}}
# The container that `kubectl logs` shows by default: since 1.21, and before.
_SHOWN_FIRST = ("kubectl.kubernetes.io/default-container", "kubectl.kubernetes.io/default-logs-container")
_MAKE_FOLDER = """\
import os, sys
try:
    os.makedirs(sys.argv[1], exist_ok=True)
    os.chmod(sys.argv[1], 0o1777)
except OSError as error:
    said = f"cannot create {sys.argv[1]}: {error}"  # the master tries again and logs the remedy
    print(said)
    open("/dev/termination-log", "w").write(said)
"""


@dataclass(frozen=True)
class PodMaker:
    """Builds the pods of one job."""

    spec: JobSpec
    owner: Mapping[str, Any] | None = None  # the reference to the object that owns the job
    secret: str | None = None  # the Secret with `SECRET_ENV`; None: plain values in the pod
    config: str | None = None  # the ConfigMap that is mounted in every pod
    service_account: str | None = None  # the master's and the keeper's; other pods get no token
    run_as: int | None = None  # a user id: not root, with a read-only root filesystem
    overlay: Callable[[Pod], Pod] | None = None  # applied last: see overlay.py

    def __call__(self, request: ReplicaRequest) -> Pod:
        spec, role = self.spec, request.role
        meta: dict[str, Any] = {
            "name": request.name,
            "namespace": spec.namespace,
            "labels": names.labels(str(spec.job_name), role, None if role == names.KEEPER else request.index),
        }
        if self.owner is not None:
            meta["ownerReferences"] = [dict(self.owner)]
        volumes, mounts = _volumes(spec)
        if self.config is not None:
            volumes.append({"name": "job", "configMap": {"name": self.config}})
            mounts.append({"name": "job", "mountPath": names.CONFIG_DIR, "readOnly": True})
        if spec.state_dir is not None and storage.is_scratch(spec):
            volumes.append({"name": "state", "emptyDir": {}})
            mounts.append({"name": "state", "mountPath": spec.state_dir})
        container: dict[str, Any] = {
            "name": CONTAINER,
            "image": image_of(spec, role),
            "imagePullPolicy": spec.image_pull_policy,
            "command": [escaped(word) for word in request.command],
            "env": self._env(request),
            "resources": resources_of(spec, request),
            "volumeMounts": mounts,
            "securityContext": {"allowPrivilegeEscalation": False},
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        pod_spec: dict[str, Any] = {
            "restartPolicy": restart_policy(role),
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            # Otherwise the replica would be process 1, which ignores signals that it does not handle.
            "shareProcessNamespace": True,
            "enableServiceLinks": False,
            "automountServiceAccountToken": role in _WITH_TOKEN,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": volumes,
        }
        if role in _WITH_TOKEN and self.service_account is not None:
            pod_spec["serviceAccountName"] = self.service_account
        priority = priority_of(spec, role, request.number)
        if priority is not None:
            pod_spec["priorityClassName"] = priority
        if self.run_as is not None:
            _without_root(pod_spec, container, self.run_as)
        chosen = storage.volume_of_choice(spec)
        if role == names.MASTER and spec.state_dir is not None and chosen is not None and chosen.host_path is not None:
            pod_spec["initContainers"] = [_folder_maker(spec.state_dir, container)]
            meta["annotations"] = dict.fromkeys(_SHOWN_FIRST, CONTAINER)
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec}
        if spec.cluster_spec_json is not None:
            pod = merged(pod, json.loads(spec.cluster_spec_json))
        return pod if self.overlay is None else self.overlay(pod)

    def _env(self, request: ReplicaRequest) -> list[dict[str, Any]]:
        env: list[dict[str, Any]] = []
        for key, value in request.env.items():
            if key in SECRET_ENV and self.secret is not None:
                env.append({"name": key, "valueFrom": {"secretKeyRef": {"name": self.secret, "key": key}}})
            else:
                env.append({"name": key, "value": escaped(value)})
        env.append({"name": names.ENV_POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
        defaults = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        return [*env, *({"name": k, "value": v} for k, v in defaults.items() if k not in request.env)]


def escaped(text: str) -> str:
    """Escape `$`, so that Kubernetes does not expand `$(NAME)`."""
    return text.replace("$", "$$")


def image_of(spec: JobSpec, role: str) -> str:
    """The image of a role; chief and evaluator run the workers' program."""
    own = {names.PS: spec.ps_image, names.MASTER: None, names.KEEPER: None}.get(role, spec.worker_image)
    image = own or spec.image_name
    if image is None:
        problem = Problem("--image_name", "", f"the {role} has no image", "Name one with --image_name.")
        raise UsageError([problem])
    return image


def priority_of(spec: JobSpec, role: str, number: int) -> str | None:
    """The PriorityClass of a replica. A share of the workers is spread evenly over their slot numbers.

    Not over their indices: workers with a low priority are lost most often, and their successors would become high.
    """
    if role != names.WORKER:
        found: str | None = getattr(spec, f"{names.MASTER if role == names.KEEPER else role}_pod_priority")
        return found
    asked = spec.worker_pod_priority
    if asked is None or asked.share == 1.0:
        return None if asked is None else asked.name
    # Rounded, so that 0.1 ten times is one.
    before, after = (math.floor(round(i * asked.share, 9)) for i in (number, number + 1))
    return asked.name if after > before else LOW_PRIORITY


def resources_of(spec: JobSpec, request: ReplicaRequest) -> dict[str, dict[str, str]]:
    """Requests and limits; memory that exceeds the job's description raises both by the same factor."""
    role: Any = request.role
    if role == names.KEEPER:
        return copy.deepcopy(_KEEPER_RESOURCES)
    asked = spec.request(role)
    limit = spec.limit(role) or asked
    # For other resources than cpu and memory, Kubernetes requires that request and limit are equal.
    extended = {**dict(asked.extended), **dict(limit.extended)}
    asked_memory, limit_memory = asked.memory, limit.memory
    if request.memory_limit_bytes is not None and limit_memory is not None:
        factor, limit_memory = request.memory_limit_bytes / limit_memory, request.memory_limit_bytes
        if asked_memory is not None:
            asked_memory = min(math.ceil(asked_memory * factor), limit_memory)
    return {
        "requests": _quantities(ResourceSpec(asked.cpu, asked_memory), extended),
        "limits": _quantities(ResourceSpec(limit.cpu, limit_memory), extended),
    }


def merged(base: Any, over: Any) -> Any:
    """`base` with `over` applied: merges objects by key and lists by name (mounts by path), appends other lists.

    None removes a key; other values replace it.
    """
    if isinstance(base, dict) and isinstance(over, dict):
        result = {key: value for key, value in base.items() if over.get(key, value) is not None}
        for key, value in over.items():
            if value is not None:
                result[key] = merged(base[key], value) if key in base else copy.deepcopy(value)
        return result
    if isinstance(base, list) and isinstance(over, list):
        named = {name: item for item in over if (name := _name(item)) is not None}
        kept = [merged(item, named.pop(name)) if (name := _name(item)) in named else item for item in base]
        fresh = [item for item in over if (name := _name(item)) is None or name in named]
        return [*kept, *copy.deepcopy(fresh)]
    return copy.deepcopy(over)


def _name(item: Any) -> str | None:
    """The key of a list item: for mounts the path, since a volume may be mounted twice."""
    return item.get("mountPath", item.get("name")) if isinstance(item, dict) else None


def _quantities(known: ResourceSpec, extended: Mapping[str, int]) -> dict[str, str]:
    found = {} if known.cpu is None else {"cpu": f"{round(known.cpu * 1000)}m"}
    if known.memory is not None:
        mebibytes, rest = divmod(known.memory, 1 << 20)
        found["memory"] = str(known.memory) if rest else f"{mebibytes}Mi"  # readable in kubectl describe
    return {**found, **{name: str(amount) for name, amount in extended.items()}}


def restart_policy(role: str) -> str:
    """Never, except for the keeper: the keeper and the master restart pods, and know why and how often they ended.

    A kubelet that restarts them in place, as with the old --restart_policy, would hide their crashes. A master that has
    ended remains with its log and exit code as the record of its job.
    """
    return "OnFailure" if role == names.KEEPER else "Never"


def _volumes(spec: JobSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and their mounts; two mounts of one source share a volume."""
    volumes: dict[tuple[str, str], dict[str, Any]] = {}
    mounts = []
    for volume in spec.volume:
        key = (volume.claim_name or "", f"{volume.host_path or ''}:{volume.type or ''}")
        if key not in volumes:
            source: dict[str, Any]
            if volume.claim_name is not None:
                source = {"persistentVolumeClaim": {"claimName": volume.claim_name}}
            else:
                source = {"hostPath": {"path": volume.host_path, "type": volume.type or ""}}
            volumes[key] = {"name": f"volume-{len(volumes)}", **source}
        mount = {"name": volumes[key]["name"], "mountPath": volume.mount_path}
        mounts.append(mount | ({"subPath": volume.sub_path} if volume.sub_path else {}))
    return list(volumes.values()), mounts


def folder_pod(master: dict[str, Any], owner: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A pod that creates the job's folder as root, with the claims and on the node of the master's pod, and ends.

    It has no label of the job, because it is not a replica.
    """
    there = master["spec"]
    volumes = [volume for volume in there["volumes"] if "persistentVolumeClaim" in volume]
    claimed = {volume["name"] for volume in volumes}
    beside = next(c for c in there["containers"] if c["name"] == main_container(master))
    mounts = [mount for mount in beside["volumeMounts"] if mount["name"] in claimed]
    resources = {**_KEEPER_RESOURCES, "requests": {"cpu": "0", "memory": "0"}}  # fits on a full node
    maker = _folder_maker(path, {**beside, "volumeMounts": mounts, "resources": resources})
    meta = master["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{meta['name']}-folder",
            "namespace": meta["namespace"],
            "labels": {names.LABEL_APP: names.APP},
            "ownerReferences": [dict(owner)],
        },
        "spec": {
            "restartPolicy": "Never",
            "nodeName": there["nodeName"],  # it has the image and the claim
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "imagePullSecrets": there.get("imagePullSecrets", []),
            "tolerations": there.get("tolerations", []),
            "containers": [maker],
            "volumes": volumes,
        },
    }


def _folder_maker(path: str, beside: dict[str, Any]) -> dict[str, Any]:
    """Creates the job's folder where only root can. All users may write there, as in /tmp. It has no other rights."""
    return {
        "name": "state-folder",
        "image": beside["image"],
        "imagePullPolicy": beside["imagePullPolicy"],
        "command": ["python", "-I", "-S", "-c", escaped(_MAKE_FOLDER), path],
        "env": [entry for entry in beside["env"] if entry["name"] == "PATH"],
        "resources": beside["resources"],
        "volumeMounts": beside["volumeMounts"],
        "securityContext": {
            "runAsUser": 0,
            "runAsNonRoot": False,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _without_root(pod_spec: dict[str, Any], container: dict[str, Any], user: int) -> None:
    """Run as this user, with a read-only root filesystem and a writable /tmp."""
    pod_spec["securityContext"] |= {
        "runAsUser": user,
        "runAsGroup": user,
        "runAsNonRoot": True,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",  # otherwise each start of a pod changes every file of a large volume
    }
    container["securityContext"] |= {"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    taken = {mount["mountPath"] for mount in container["volumeMounts"]}
    if "/tmp" not in taken:
        pod_spec["volumes"].append({"name": "tmp", "emptyDir": {}})
        container["volumeMounts"].append({"name": "tmp", "mountPath": "/tmp"})
    if "HOME" not in {entry["name"] for entry in container["env"]}:
        container["env"].append({"name": "HOME", "value": "/tmp"})
