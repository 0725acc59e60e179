"""What delays a pod or made it fail, and the remedy. Pure functions of pods and their events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elasticdl.cluster.kubernetes.reading import COULD_NOT_START, INIT_FAILED, Object, Pod, exit_of, note_of, phase_of
from elasticdl.cluster.protocol import OUT_OF_MEMORY, ReplicaPhase
from elasticdl.job import names

_IMAGE = "Check --image_name, and that the nodes can pull the image: `elasticdl zoo push IMAGE`."
_PRIVATE = (
    "The registry requires a login: name a pull secret, --cluster_spec_json="
    """'{"spec": {"imagePullSecrets": [{"name": …}]}}'."""
)
_NEVER = "Build it on that node, or allow pulling: --image_pull_policy=IfNotPresent."
_COMMAND = "Check that the image contains Python and ElasticDL: `elasticdl zoo init` writes such a Dockerfile."
_REMEDIES = {
    "ErrImagePull": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "ErrImageNeverPull": _NEVER,
    "InvalidImageName": "Correct --image_name: REGISTRY/NAME:TAG, in lower case.",
    "ImageInspectError": "Build or push the image again.",
    "RegistryUnavailable": "Check that the registry is reachable; Kubernetes retries the pull.",
    "CreateContainerError": _COMMAND,
    "RunContainerError": _COMMAND,
    "CrashLoopBackOff": "See its log: `elasticdl logs JOB {short} --previous`.",
}
# Warnings about pods that wait for their container, which Kubernetes reports only in events.
_EVENTS = {
    "FailedMount": "one of its volumes cannot be mounted",
    "FailedAttachVolume": "one of its volumes cannot be attached",
    "FailedCreatePodSandBox": "its node cannot create its sandbox",
    "NetworkNotReady": "its node has no network yet",
    "FailedScheduling": "unschedulable",
}


@dataclass(frozen=True)
class Trouble:
    """A problem that keeps replicas from running."""

    replicas: tuple[str, ...]  # by their short names
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{', '.join(self.replicas)}: {self.what}"


def trouble_of(pod: Pod, job_name: str, events: Sequence[Object] = ()) -> Trouble | None:
    """What is wrong with a pod; None if Kubernetes reports no problem. `events`: the pod's."""
    short = str(pod["metadata"]["name"]).removeprefix(f"{names.APP}-{job_name}-")
    role = pod["metadata"].get("labels", {}).get(names.LABEL_TYPE, "")
    phase = phase_of(pod)
    if phase is ReplicaPhase.GONE:
        end = exit_of(pod)
        if end.code == 0 or end.from_outside:
            return None
        remedy = _after_an_end(end.oom, end.code is None and end.signal is None, role, short)
        return Trouble((short,), end.reason, remedy.replace("JOB", job_name))
    what = note_of(pod)
    if not what and phase is ReplicaPhase.PENDING:
        what = _from_events(events)
    if not what or what == "being deleted":
        return None
    return Trouble((short,), what, _remedy(what, _waiting(pod), role, short).replace("JOB", job_name))


def trouble_of_lost(lost: Mapping[str, object], job_name: str) -> Trouble | None:
    """The trouble of a replica that failed too often, as the master reports it; None if only the log helps. The
    replica's pod and log are removed with the job."""
    short, what = str(lost.get("name")).removeprefix(f"{names.APP}-{job_name}-"), str(lost.get("reason"))
    role = short.rpartition("-")[0]
    oom = what.startswith(OUT_OF_MEMORY)
    if not oom and not what.startswith((COULD_NOT_START, INIT_FAILED)):
        return None
    return Trouble((short,), what, _after_an_end(oom, not oom, role, short))


def grouped(troubles: Iterable[Trouble]) -> list[Trouble]:
    """The troubles, with equal ones of several replicas merged."""
    found: dict[tuple[str, str], list[str]] = {}
    for trouble in troubles:
        found.setdefault((trouble.what, trouble.remedy), []).extend(trouble.replicas)
    return [Trouble(tuple(replicas), what, remedy) for (what, remedy), replicas in found.items()]


def by_pod(events: Iterable[Object]) -> Mapping[str, list[Object]]:
    """Events by the uid of their pod, in the order of time."""
    found: dict[str, list[Object]] = {}
    for event in sorted(events, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or "")):
        found.setdefault(event.get("involvedObject", {}).get("uid", ""), []).append(event)
    return found


def _waiting(pod: Pod) -> str:
    status = pod.get("status", {})
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        waiting = container.get("state", {}).get("waiting") or {}
        if waiting.get("reason"):
            return str(waiting["reason"])
    return ""


def _from_events(events: Sequence[Object]) -> str:
    for event in reversed(events):
        reason = event.get("reason", "")
        if reason in _EVENTS:
            return f"{_EVENTS[reason]}: {' '.join(str(event.get('message', '')).split())}"
    return ""


def _after_an_end(oom: bool, never_ran: bool, role: str, short: str) -> str:
    if oom:
        flag = f"--{_flag(role)}_resource"
        return f'Give it more memory: {flag}_request="memory=…", and {flag}_limit where that is set.'
    if never_ran:
        return _COMMAND
    return f"See its log: `elasticdl logs JOB {short}`."


def _remedy(what: str, waiting: str, role: str, short: str) -> str:
    if waiting in ("ErrImagePull", "ImagePullBackOff") and re.search(r"unauthorized|denied|authenticat", what):
        return _PRIVATE
    if waiting == "CreateContainerConfigError":
        return _without_a_part(what)
    if waiting in _REMEDIES:
        return _REMEDIES[waiting].format(short=short)
    if "persistentvolumeclaim" in what.lower():
        return "Create the claim that --volume names in the job's namespace, or wait until it has a volume."
    if "mounted" in what or "attached" in what:
        return "Check that what --volume names exists on the node: `kubectl describe pod` shows more."
    if what.startswith("unschedulable"):
        return _room(what, role)
    return ""


def _without_a_part(what: str) -> str:
    missing = re.search(r"(secret|configmap) \"?([\w.-]+)\"? not found", what, re.IGNORECASE)
    if missing is not None and missing[2].startswith(f"{names.APP}-"):
        return "A part of the job was deleted: `elasticdl stop JOB --now`, then submit it again."
    if missing is not None:
        return f"Create the {missing[1]} {missing[2]} in the job's namespace; the pod then starts."
    if "run as root" in what or "non-numeric user" in what:
        return "Set a numeric user in the image (USER 1000), or another one with --cluster_spec_json."
    return "Check --envs, --volume and --cluster_spec_json."


def _room(what: str, role: str) -> str:
    short = sorted(set(re.findall(r"Insufficient ([\w./-]+)", what)))
    if short:
        room = " and ".join(s.rstrip(".") for s in short)
        flag = f"--{_flag(role)}_resource_request"
        return f"The pod starts when there is room. To request less {room}: {flag}; to go first: a PriorityClass."
    if "taint" in what:
        return 'Tolerate the taint: --cluster_spec_json=\'{"spec": {"tolerations": [{"key": …}]}}\'.'
    if "affinity" in what or "selector" in what:
        return "Correct the node selector or affinity in --cluster_spec_json, or label a node."
    return "It starts when a node accepts it."


def _flag(role: str) -> str:
    return role if role in names.ROLES else names.MASTER
