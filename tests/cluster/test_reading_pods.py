"""Interpreting pods' statuses, also those that only other versions of Kubernetes report."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from elasticdl.cluster.kubernetes.reading import exit_of, has_run, held_up_by, last_words, note_of, phase_of
from elasticdl.cluster.protocol import ReplicaPhase


def pod(phase: str, state: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A pod with one container in this state; `meta` and `status` are merged into it."""
    statuses = [] if state is None else [{"name": "main", "image": "zoo:1", "state": state}]
    limits = {"limits": {"memory": "64Mi"}}
    return {
        "metadata": {"name": "w-0", "uid": "1", "annotations": {}, **more.get("meta", {})},
        "spec": {"restartPolicy": more.get("restart", "Never"), "containers": [{"name": "main", "resources": limits}]},
        "status": {"phase": phase, "containerStatuses": statuses, **more.get("status", {})},
    }


def ended(code: int, reason: str = "Error", **more: Any) -> dict[str, Any]:
    return pod("Failed", {"terminated": {"exitCode": code, "reason": reason}}, **more)


def never_started(started: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Deleted before its container started, as kubelets since 1.22 report it; `started`: more of its container."""
    account = ended(137, "ContainerStatusUnknown", **more)
    container = account["status"]["containerStatuses"][0] | {"containerID": "", "lastState": {}, **(started or {})}
    container["state"]["terminated"] |= {
        "startedAt": None, "finishedAt": None,
        "message": "The container could not be located when the pod was terminated",
    }  # fmt: skip
    account["status"]["containerStatuses"] = [container]
    return account


DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
STOPPED = {**DELETED, "annotations": {"elasticdl-ending": "stopped"}}


def test_a_container_that_ended_for_good_is_gone_before_its_pod_says_so() -> None:
    terminated = {"terminated": {"exitCode": 0}}
    assert phase_of(pod("Running", terminated)) is ReplicaPhase.GONE
    assert phase_of(pod("Running", terminated, restart="Always")) is ReplicaPhase.RUNNING


@pytest.mark.parametrize(
    ("account", "code", "number", "oom", "outside", "reason"),
    [
        (ended(0, "Completed"), 0, None, False, False, "exit code 0"),
        (ended(1), 1, None, False, False, "exit code 1"),
        (ended(139), None, signal.SIGSEGV, False, False, "killed by SIGSEGV"),
        (ended(137), None, signal.SIGKILL, False, True, "killed by SIGKILL"),
        (ended(255), 255, None, False, False, "exit code 255"),
        (
            ended(137, "OOMKilled"), None, signal.SIGKILL, True, False,
            "out of memory: the kernel killed it at its limit of 64Mi",
        ),
        (ended(1, "OOMKilled"), 1, None, True, False, "out of memory: the kernel killed it at its limit of 64Mi"),
        (ended(86), 86, None, True, False, "out of memory: exit code 86"),
        (ended(143, meta=DELETED), None, signal.SIGTERM, False, True, "deleted (killed by SIGTERM)"),
        (ended(0, meta=DELETED), 0, None, False, True, "deleted (exit code 0)"),
        (ended(143, meta=STOPPED), None, signal.SIGTERM, False, True, "killed by SIGTERM"),
        (
            ended(137, meta=STOPPED), None, signal.SIGKILL, False, True,
            "killed by SIGKILL: it did not end within 30 s of SIGTERM",
        ),
        (
            ended(143, meta=DELETED, status={"conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for b"}
            ]}),
            None, signal.SIGTERM, False, True, "preempted by the scheduler: for b (killed by SIGTERM)",
        ),
        (
            ended(143, meta=DELETED, status={"conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drain"}
            ]}),
            None, signal.SIGTERM, False, True, "evicted: drain (killed by SIGTERM)",
        ),
        (
            pod("Failed", status={"reason": "Evicted", "message": "The node was low on resource: memory."}),
            None, None, False, True, "evicted: The node was low on resource: memory.",
        ),
        (
            pod("Failed", status={"reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds …"}),
            None, None, False, False, "evicted: Pod ephemeral local storage usage exceeds …",
        ),
        (
            ended(137, status={"reason": "Evicted", "message": "Container main exceeded its ephemeral storage …"}),
            None, signal.SIGKILL, False, False,
            "evicted: Container main exceeded its ephemeral storage … (killed by SIGKILL)",
        ),
        (
            ended(143, status={"reason": "Evicted", "message": 'Usage of EmptyDir volume "tmp" exceeds the limit …'}),
            None, signal.SIGTERM, False, False,
            'evicted: Usage of EmptyDir volume "tmp" exceeds the limit … (killed by SIGTERM)',
        ),
        (
            ended(137, status={"reason": "Evicted", "message": "The node was low on resource: memory."}),
            None, signal.SIGKILL, False, True, "evicted: The node was low on resource: memory. (killed by SIGKILL)",
        ),
        (
            pod("Failed", status={"reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu"}),
            None, None, False, True,
            "rejected by its node: OutOfcpu: Node didn't have enough resource: cpu",
        ),
        (
            ended(127, "ContainerCannotRun"), None, None, False, False, "could not be started: ",
        ),
        (pod("Pending", meta=STOPPED), None, None, False, True, "stopped before it started"),
        (pod("Pending", meta=DELETED), None, None, False, True, "deleted, before it started"),
        (never_started(meta=STOPPED), None, None, False, True, "stopped before it started"),
        (never_started(meta=DELETED), None, None, False, True, "deleted, before it started"),
        (
            never_started(meta=DELETED, started={"containerID": "containerd://1"}), None, signal.SIGKILL, False, True,
            "deleted (killed by SIGKILL)",
        ),
    ],
)  # fmt: skip
def test_each_end_has_its_reason(
    account: dict[str, Any], code: int | None, number: int | None, oom: bool, outside: bool, reason: str
) -> None:
    exit = exit_of(account, ran=has_run(account))
    assert (exit.code, exit.signal, exit.oom, exit.from_outside, exit.reason) == (code, number, oom, outside, reason)


def test_the_kubelets_message_about_a_container_it_never_saw_is_not_its_log() -> None:
    assert last_words(never_started(meta=DELETED)) == []


def test_before_there_were_conditions_the_scheduler_left_an_event() -> None:
    event = {"reason": "Preempted", "message": "Preempted by default/high-0 on node node-1"}
    exit = exit_of(pod("Running", {"running": {}}, meta=DELETED), events=[event], ran=True)
    assert exit.reason == "preempted by the scheduler: Preempted by default/high-0 on node node-1"
    assert exit.from_outside


def test_the_exit_status_of_a_pod_that_its_kubelet_forgot_is_unknown() -> None:
    exit = exit_of(pod("Failed", {"waiting": {"reason": "ContainerCreating"}}, meta=STOPPED), ran=True)
    assert (exit.code, exit.signal, exit.reason) == (None, None, "stopped: Kubernetes did not keep its exit status")
    assert exit.from_outside


def test_an_allocation_that_failed_is_read_from_the_log() -> None:
    exit = exit_of(ended(1), ["Traceback", "MemoryError: no room"])
    assert exit.oom
    assert exit.last_lines == ("Traceback", "MemoryError: no room")


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return pod("Pending", {"waiting": {"reason": reason, "message": message}})


@pytest.mark.parametrize(
    ("account", "note"),
    [
        (waiting("ContainerCreating"), ""),
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "zoo:1"'),
            'its image cannot be pulled (zoo:1): ImagePullBackOff: Back-off pulling image "zoo:1"',
        ),
        (waiting("InvalidImageName"), "its image name is invalid (zoo:1): InvalidImageName"),
        (
            waiting("CreateContainerConfigError", 'secret "s" not found'),
            'its container cannot be configured (zoo:1): CreateContainerConfigError: secret "s" not found',
        ),
        (
            pod("Pending", status={"conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes …"}
            ]}),
            "unschedulable: 0/1 nodes …",
        ),
        (pod("Running", {"running": {}}, meta=DELETED), "being deleted"),
        (pod("Running", {"running": {}}), ""),
        (ended(1), ""),
    ],
)  # fmt: skip
def test_what_delays_a_pod_is_in_its_note(account: dict[str, Any], note: str) -> None:
    assert note_of(account) == note


def disrupted(reason: str) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "why"}
    return ended(143, meta=DELETED, status={"conditions": [condition]})


@pytest.mark.parametrize(
    ("account", "kind"),
    [
        (ended(0, "Completed"), ""),
        (ended(1), "crashed"),
        (ended(139), "crashed"),
        (ended(137), "killed"),
        (ended(137, "OOMKilled"), "out of memory"),
        (ended(143, meta=DELETED), "deleted"),
        (ended(143, meta=STOPPED), "killed"),
        (pod("Pending", meta=STOPPED), "stopped"),
        (disrupted("PreemptionByScheduler"), "preempted"),
        (disrupted("EvictionByEvictionAPI"), "evicted"),
        (disrupted("DeletionByTaintManager"), "node lost"),
        (pod("Failed", status={"reason": "Evicted", "message": "The node was low on resource: memory."}), "evicted"),
        (ended(137, status={"reason": "Evicted", "message": "Container main exceeded its …"}), "crashed"),
        (pod("Failed", status={"reason": "Evicted", "message": "Container main exceeded its …"}), "crashed"),
        (pod("Failed", status={"reason": "NodeShutdown", "message": "…"}), "node lost"),
        (pod("Failed", status={"reason": "OutOfcpu", "message": "…"}), "turned away"),
        (pod("Failed", {"terminated": {"exitCode": 128, "reason": "ContainerCannotRun"}}), "not started"),
    ],
)
def test_each_loss_of_a_pod_has_one_kind(account: dict[str, Any], kind: str) -> None:
    assert exit_of(account).kind == kind


def test_a_preemption_that_only_an_event_tells_of_has_its_kind_too() -> None:
    assert exit_of(ended(143, meta=DELETED), events=[{"reason": "Preempted", "message": "by a/b"}]).kind == "preempted"


@pytest.mark.parametrize(
    ("account", "kind"),
    [
        (pod("Pending"), ""),
        (pod("Pending", {"waiting": {"reason": "ContainerCreating"}}), ""),
        (pod("Pending", {"waiting": {"reason": "ImagePullBackOff"}}), "image trouble"),
        (pod("Pending", {"waiting": {"reason": "ErrImageNeverPull"}}), "image trouble"),
        (pod("Pending", {"waiting": {"reason": "CreateContainerConfigError"}}), "container trouble"),
        (
            pod("Pending", status={"conditions": [{"type": "PodScheduled", "status": "False"}]}),
            "unschedulable",
        ),
        (pod("Running", {"running": {}}), ""),
        (pod("Pending", {"waiting": {"reason": "ImagePullBackOff"}}, meta=DELETED), ""),
    ],
)
def test_what_holds_a_pod_up_has_one_kind(account: dict[str, Any], kind: str) -> None:
    assert held_up_by(account) == kind
