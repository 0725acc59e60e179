"""Interprets a pod's status: its phase, what delays it, and how it ended. Pure functions of the pod."""

from __future__ import annotations

import datetime
import signal
from collections.abc import Sequence
from typing import Any

from elasticdl.cluster.exits import Circumstances, judge
from elasticdl.cluster.protocol import (
    CONTAINER_TROUBLE,
    DELETED,
    EVICTED,
    EXIT_OUT_OF_MEMORY,
    IMAGE_TROUBLE,
    NODE_LOST,
    PREEMPTED,
    TURNED_AWAY,
    UNSCHEDULABLE,
    Exit,
    ReplicaPhase,
)
from elasticdl.job import names

Object = dict[str, Any]  # as the API server has it
Pod = Object

CONTAINER = "main"
STOPPED, KILLED = "stopped", "killed"  # by the master: values of names.ANNOTATION_ENDING

_ENDED = ("Succeeded", "Failed")
_NOT_KEPT = "Kubernetes did not keep its exit status"
_NEVER_SEEN = "ContainerStatusUnknown"  # a kubelet's placeholder, with exit code 137, for a container it does not find
COULD_NOT_START, INIT_FAILED = "could not be started", "its init container"  # prefixes of reasons

# Why a container waits. Kubernetes' own message follows.
_IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_WAITING = {
    "ErrImagePull": "its image cannot be pulled",
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImageNeverPull": "its image is not on the node, and the pull policy is Never",
    "InvalidImageName": "its image name is invalid",
    "ImageInspectError": "its image cannot be read",
    "RegistryUnavailable": "the registry of its image does not answer",
    "CreateContainerConfigError": "its container cannot be configured",
    "CreateContainerError": "its container cannot be created",
    "RunContainerError": "its container cannot be started",
    "CrashLoopBackOff": "it crashes repeatedly",
}
# Reasons with which a node rejects or removes a pod through no fault of the pod; kind and words.
_TAKEN = {
    "Preempting": (PREEMPTED, "removed by its node for a critical pod"),
    "NodeLost": (NODE_LOST, "its node is lost"),
    "NodeShutdown": (NODE_LOST, "its node is shutting down"),
    "Shutdown": (NODE_LOST, "its node is shutting down"),
    "Terminated": (NODE_LOST, "its node is shutting down"),
    "NodeAffinity": (TURNED_AWAY, "rejected by its node"),
    "UnexpectedAdmissionError": (TURNED_AWAY, "rejected by its node"),
}
# Reasons of the condition DisruptionTarget (Kubernetes 1.26 and later), and of events (before).
_DISRUPTIONS = {
    "PreemptionByScheduler": (PREEMPTED, "preempted by the scheduler"),
    "Preempted": (PREEMPTED, "preempted by the scheduler"),
    "EvictionByEvictionAPI": (EVICTED, "evicted"),
    "DeletionByTaintManager": (NODE_LOST, "its node is lost"),
    "TaintManagerEviction": (NODE_LOST, "its node is lost"),
    "NodeNotReady": (NODE_LOST, "its node is lost"),
    "DeletionByPodGC": (NODE_LOST, "its node is lost"),
    "TerminationByKubelet": (EVICTED, "removed by its node"),
}
EVENT_REASONS = frozenset({"Preempted", "TaintManagerEviction", "NodeNotReady"})


def phase_of(pod: Pod) -> ReplicaPhase:
    """Gone as soon as its container has ended; the pod's own phase may change later."""
    phase = pod.get("status", {}).get("phase")
    if phase in _ENDED:
        return ReplicaPhase.GONE
    if pod["spec"].get("restartPolicy") == "Never" and _terminated(pod) is not None:
        return ReplicaPhase.GONE
    return ReplicaPhase.PENDING if phase in (None, "Pending") else ReplicaPhase.RUNNING


def main_container(pod: Pod) -> str:
    """The replica's own container: the pod may have others."""
    found = [str(container["name"]) for container in pod["spec"]["containers"]]
    return CONTAINER if CONTAINER in found else found[0]


def leaving(pod: Pod) -> bool:
    """Whether it is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def has_run(pod: Pod) -> bool:
    """Whether its container ever started, according to the pod.

    Since 1.22 a pod that is deleted before its container started may end as Failed.
    """
    if pod.get("status", {}).get("phase") in (None, "Pending"):
        return False
    main = _main_status(pod)
    ended = main.get("state", {}).get("terminated") or {}
    return ended.get("reason") != _NEVER_SEEN or bool(
        ended.get("startedAt") or main.get("containerID") or main.get("lastState")
    )


def last_words(pod: Pod) -> list[str]:
    """The end of its log, which the kubelet keeps for a failed container."""
    for status in pod.get("status", {}).get("containerStatuses", []):
        terminated = status.get("state", {}).get("terminated") or {}
        message = terminated.get("message", "")
        if message and terminated.get("reason") != _NEVER_SEEN:
            return str(message).strip().splitlines()[-20:]
    return []


def note_of(pod: Pod) -> str:
    """What delays a pending pod, or is wrong with a running one."""
    status = pod.get("status", {})
    phase = phase_of(pod)
    if phase is ReplicaPhase.GONE:
        return ""
    if leaving(pod):
        return "being deleted"
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        waiting = container.get("state", {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason in _WAITING:
            return _joined(
                f"{_WAITING[reason]} ({container.get('image', '')})", _joined(reason, waiting.get("message"))
            )
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _joined(condition.get("reason", "Unschedulable").lower(), condition.get("message"))
    if status.get("phase") == "Unknown":
        return _joined("its node does not answer", status.get("message"))
    return ""


def held_up_by(pod: Pod) -> str:
    """The kind of trouble that delays a pending pod; empty if there is none, or it ends by itself."""
    status = pod.get("status", {})
    if phase_of(pod) is not ReplicaPhase.PENDING or leaving(pod):
        return ""
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        reason = (container.get("state", {}).get("waiting") or {}).get("reason", "")
        if reason in _WAITING:
            return IMAGE_TROUBLE if reason in _IMAGE_REASONS else CONTAINER_TROUBLE
    conditions = status.get("conditions", [])
    unscheduled = any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)
    return UNSCHEDULABLE if unscheduled else ""


def exit_of(
    pod: Pod, last_lines: Sequence[str] = (), events: Sequence[dict[str, Any]] = (), *, ran: bool = False
) -> Exit:
    """How a pod ended that has ended or is gone. `events`: the pod's; `ran`: it was seen running."""
    status, terminated = pod.get("status", {}), _terminated(pod)
    at = _seconds((terminated or {}).get("finishedAt"))
    kind, taken = _taken(pod, events)
    if terminated is None or (terminated.get("reason") == _NEVER_SEEN and not (ran or has_run(pod))):
        return _without_a_container(pod, kind, taken, tuple(last_lines), ran)
    code, number = _code_and_signal(terminated)
    if terminated.get("reason") in ("ContainerCannotRun", "StartError"):
        why = f"{COULD_NOT_START}: {terminated.get('message', '').strip()}"
        return Exit(None, None, oom=False, reason=why, last_lines=tuple(last_lines), at=at)
    if terminated.get("reason") == "OOMKilled" and code != 0:
        limit = _memory_limit(pod)
        why = "out of memory: the kernel killed it at its limit" + (f" of {limit}" if limit else "")
        return Exit(code, number, oom=True, reason=why, last_lines=tuple(last_lines), at=at)
    ending = pod["metadata"].get("annotations", {}).get(names.ANNOTATION_ENDING)
    because = ""
    if number == signal.SIGKILL and ending == STOPPED and leaving(pod):
        because = f"it did not end within {pod['metadata'].get('deletionGracePeriodSeconds', 0)} s of SIGTERM"
    end = judge(code, number, Circumstances(tuple(last_lines), killed_because=because))
    reason = f"{taken} ({end.reason})" if taken else end.reason
    if status.get("reason") == "DeadlineExceeded":
        reason = _joined(reason, status.get("message"))
    return Exit(end.code, end.signal, end.oom, reason, end.last_lines, at, kind, _overstepped(pod))


def _without_a_container(pod: Pod, kind: str, taken: str, last_lines: tuple[str, ...], ran: bool) -> Exit:
    """The exit without a container status: there was no container, or a kubelet before 1.22 forgot it."""
    status = pod.get("status", {})
    ending = pod["metadata"].get("annotations", {}).get(names.ANNOTATION_ENDING)
    if taken:
        why = taken if ran else f"{taken}, before it started"
    elif ending is not None and leaving(pod):
        why = f"{ending}: {_NOT_KEPT}" if ran else f"{ending} before it started"
    elif status.get("reason"):
        why = _joined(status["reason"], status.get("message"))
    else:
        why = _failed_before(status) or _NOT_KEPT
    by_us = str(ending) if ending is not None and leaving(pod) else ""
    return Exit(None, None, False, why, last_lines, taken=kind or by_us, overstepped=_overstepped(pod))


def _failed_before(status: dict[str, Any]) -> str:
    """Which init container failed, so that the main one did not start."""
    for container in status.get("initContainerStatuses", []):
        terminated = container.get("state", {}).get("terminated") or {}
        if terminated.get("exitCode"):
            what = f"{INIT_FAILED} {container['name']} failed with exit code {terminated['exitCode']}"
            return _joined(what, terminated.get("message"))
    return ""


def _taken(pod: Pod, events: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Why others took the pod away, as kind and in words; empty if they did not."""
    status = pod.get("status", {})
    reason, message = status.get("reason", ""), status.get("message", "")
    if _overstepped(pod):
        return "", _joined("evicted", message)
    if reason == "Evicted":
        return EVICTED, _joined("evicted", message)
    if reason in _TAKEN or reason.startswith(("OutOf", "Outof")):
        kind, words = _TAKEN.get(reason, (TURNED_AWAY, "rejected by its node"))
        return kind, _joined(words, _joined(reason, message))
    for condition in status.get("conditions", []):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            cause = condition.get("reason", "")
            kind, words = _DISRUPTIONS.get(cause, (DELETED, cause))
            return kind, _joined(words, condition.get("message"))
    if not leaving(pod) or names.ANNOTATION_ENDING in pod["metadata"].get("annotations", {}):
        return "", ""
    for event in events:
        if event.get("reason") in EVENT_REASONS:
            kind, words = _DISRUPTIONS[event["reason"]]
            return kind, _joined(words, event.get("message"))
    return DELETED, "deleted"


def _overstepped(pod: Pod) -> bool:
    """Whether its node evicted it for exceeding its storage limit, not because the node is short of a resource.

    Since 1.22 such a pod reports that its container ended by SIGKILL, as for a deletion by others.
    """
    status = pod.get("status", {})
    return status.get("reason") == "Evicted" and not status.get("message", "").startswith("The node")


def _terminated(pod: Pod) -> dict[str, Any] | None:
    """How the main container ended."""
    found: dict[str, Any] | None = _main_status(pod).get("state", {}).get("terminated")
    return found


def _main_status(pod: Pod) -> dict[str, Any]:
    statuses = pod.get("status", {}).get("containerStatuses", [])
    found = [s for s in statuses if s.get("name") == CONTAINER] or statuses[:1]
    return found[0] if found else {}


def _code_and_signal(terminated: dict[str, Any]) -> tuple[int | None, int | None]:
    """A container's runtime reports a signal as exit code 128 plus its number."""
    code = int(terminated.get("exitCode", 0))
    number = terminated.get("signal") or (code - 128 if 128 < code < 128 + signal.NSIG else 0)
    return (None, int(number)) if number and code != EXIT_OUT_OF_MEMORY else (code, None)


def _memory_limit(pod: Pod) -> str:
    for container in pod["spec"].get("containers", []):
        if container.get("name") == CONTAINER:
            return str(container.get("resources", {}).get("limits", {}).get("memory", ""))
    return ""


def _seconds(text: str | None) -> float:
    return datetime.datetime.fromisoformat(text).timestamp() if text else 0.0


def _joined(what: str, more: str | None) -> str:
    return f"{what}: {more.strip()}" if more and more.strip() else what
