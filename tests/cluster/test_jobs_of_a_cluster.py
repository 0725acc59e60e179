"""Jobs read from a cluster's objects: their state, what delays them and the remedy."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest

from elasticdl.cluster.kubernetes.jobs import ClusterJob, read
from elasticdl.cluster.kubernetes.pod_logs import merged, parse
from elasticdl.cluster.kubernetes.troubles import Trouble, grouped, trouble_of
from elasticdl.core.commands import FinishJob
from elasticdl.core.events import MasterStarted, ReplicaGone
from elasticdl.core.replicas import OUT_OF_MEMORY, Budget, Replicas
from elasticdl.job import names

Object = dict[str, Any]
LONG_AGO = "2026-11-15T10:00:00Z"


def config(job: str = "mnist", at: str = LONG_AGO) -> Object:
    meta = {"name": names.config_name(job), "namespace": "team", "labels": names.labels(job), "creationTimestamp": at}
    return {"kind": "ConfigMap", "metadata": meta, "data": {names.JOB_KEY: "{}"}}


def pod(role: str, phase: str, state: Object | None = None, **more: Any) -> Object:
    name = names.keeper_name("mnist") if role == names.KEEPER else names.replica_name("mnist", role, 1)
    statuses = [] if state is None else [{"name": "main", "image": "zoo:1", "state": state}]
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{role}",
            "labels": names.labels("mnist", role),
            "annotations": {},
            "creationTimestamp": "2026-11-15T10:00:05Z",
            **more.get("meta", {}),
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "resources": {"limits": {"memory": "64Mi"}}}],
        },
        "status": {"phase": phase, "containerStatuses": statuses, **more.get("status", {})},
    }


def waiting(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str = "Error", **more: Any) -> Object:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": "2026-11-15T11:00:00Z", **more}}


def result(outcome: str, reason: str = "") -> Object:
    text = json.dumps({"outcome": outcome, "reason": reason, "status": {"records_done": "4"}})
    return {"annotations": {names.ANNOTATION_RESULT: text}}


KEEPER = pod(names.KEEPER, "Running", {"running": {}})
MASTER = pod(names.MASTER, "Running", {"running": {}})


def one(*objects: Object) -> ClusterJob:
    (job,) = read([o for o in objects if o.get("kind") == "ConfigMap"], [o for o in objects if "kind" not in o])
    return job


def test_a_job_whose_master_runs_is_running_with_nothing_to_say() -> None:
    job = one(config(), MASTER, KEEPER)
    assert (job.namespace, job.name, job.state, job.note, job.troubles) == ("team", "mnist", "running", "", [])
    assert job.started_at is not None and job.ended_at is None


def test_a_job_whose_master_was_deleted_is_running_while_its_keeper_is_there() -> None:
    job = one(config(), KEEPER)
    assert (job.state, job.note) == ("running", "its master is gone; its keeper restarts it")


def test_a_job_without_master_and_keeper_has_died() -> None:
    job = one(config())
    assert (job.state, job.running) == ("died", False)
    assert job.note == "its master is gone, and its keeper too"


def test_a_job_that_is_just_being_submitted_has_not_died() -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    job = one(config(at=now))
    assert (job.state, job.note, job.never_ran) == ("pending", "it is being submitted", True)


def test_a_pending_master_has_a_reason_and_a_remedy() -> None:
    message = 'Back-off pulling image "zoo:1"'
    job = one(config(), pod(names.MASTER, "Pending", waiting("ImagePullBackOff", message)), KEEPER)
    assert job.state == "pending" and job.never_ran
    assert job.note == f"its master cannot start: its image cannot be pulled (zoo:1): ImagePullBackOff: {message}"
    (trouble,) = job.troubles
    assert trouble.replicas == ("master",)
    assert "Check --image_name" in trouble.remedy and "elasticdl zoo push" in trouble.remedy


def test_a_job_whose_master_came_back_and_waits_for_room_may_have_something_to_save() -> None:
    worker = pod(names.WORKER, "Running", {"running": {}})
    assert not one(config(), pod(names.MASTER, "Pending"), KEEPER, worker).never_ran


@pytest.mark.parametrize("outcome", ["succeeded", "stopped", "failed"])
def test_a_job_ended_as_the_result_on_its_master_says(outcome: str) -> None:
    code = 1 if outcome == "failed" else 0
    job = one(pod(names.MASTER, "Succeeded", ended(code), meta=result(outcome, "because")))
    assert (job.state, job.running, job.result["reason"]) == (outcome, False, "because")
    assert job.result["status"] == {"records_done": "4"}
    assert job.ended_at is not None and job.started_at is not None and job.ended_at - job.started_at == 3595


def test_a_master_that_left_no_result_is_described_by_its_end_and_its_last_words() -> None:
    state = ended(137, "OOMKilled", message="loading\nstill loading\n")
    job = one(pod(names.MASTER, "Failed", state))
    assert job.state == "failed"
    assert job.result["reason"].splitlines() == [
        "its master ended: out of memory: the kernel killed it at its limit of 64Mi",
        "loading",
        "still loading",
    ]
    (trouble,) = job.troubles
    flags = '--master_resource_request="memory=…", and --master_resource_limit where that is set'
    assert trouble.remedy == f"Give it more memory: {flags}."


def test_a_master_that_failed_its_job_is_no_trouble_of_its_own() -> None:
    text = json.dumps({"outcome": "failed", "reason": "the first batch failed", "exit_code": 1, "status": {}})
    meta = {"annotations": {names.ANNOTATION_RESULT: text}}
    assert one(pod(names.MASTER, "Failed", ended(1), meta=meta)).troubles == []
    assert [t.what for t in one(pod(names.MASTER, "Failed", ended(137, "OOMKilled"), meta=meta)).troubles] == [
        "out of memory: the kernel killed it at its limit of 64Mi"
    ]


@pytest.mark.parametrize("role", [names.WORKER, names.PS])
def test_a_job_that_failed_of_a_replicas_memory_names_the_flag(role: str) -> None:
    replicas = Replicas.wanting("mnist", {role: 1}, Budget(crashes=0, server_crashes=0, raise_memory=False))
    replicas.handle(MasterStarted(), 0.0)
    name = names.replica_name("mnist", role, 0)
    why = "out of memory: the kernel killed it at its limit of 64Mi"
    commands = replicas.handle(ReplicaGone(name, "", OUT_OF_MEMORY, why, ("loading",)), 1.0)
    (failure,) = (command for command in commands if isinstance(command, FinishJob))
    assert replicas.fatal is not None and failure.reason == f"{name} failed 1 time: {why}\nloading"
    lost = {"name": replicas.fatal.name, "reason": replicas.fatal.reason}
    text = json.dumps({"outcome": "failed", "reason": failure.reason, "exit_code": 1, "status": {}, "lost": lost})
    job = one(pod(names.MASTER, "Failed", ended(1), meta={"annotations": {names.ANNOTATION_RESULT: text}}))
    (trouble,) = job.troubles
    assert (trouble.replicas, trouble.what) == ((f"{role}-0",), why)
    assert f'--{role}_resource_request="memory=…"' in trouble.remedy


def test_a_replica_that_ran_out_of_memory_or_never_ran_is_reported_while_the_job_runs() -> None:
    tight = pod(names.WORKER, "Failed", ended(137, "OOMKilled"))
    empty = pod(names.PS, "Failed", ended(127, "ContainerCannotRun", message="python: not found"))
    tight_again = copy.deepcopy(tight)
    tight_again["metadata"] |= {"name": names.replica_name("mnist", names.WORKER, 2), "uid": "another"}
    job = one(config(), MASTER, KEEPER, tight, tight_again, empty)
    assert {t.replicas: t.remedy.split(":")[0] for t in job.troubles} == {
        ("worker-1", "worker-2"): "Give it more memory",
        ("ps-1",): "Check that the image contains Python and ElasticDL",
    }
    assert one(config(), MASTER, KEEPER, pod(names.WORKER, "Failed", ended(1))).troubles == []  # its master reports it


def test_a_master_that_crashed_is_made_again_while_there_is_a_keeper() -> None:
    job = one(config(), KEEPER, pod(names.MASTER, "Failed", ended(1)))
    assert (job.state, job.result) == ("running", {})
    assert job.note == "its master ended (exit code 1); its keeper restarts it"


def test_a_master_whose_init_container_failed_says_which() -> None:
    first = {"name": "folder", "state": ended(127, "ContainerCannotRun", message='exec: "python": not found')}
    master = pod(names.MASTER, "Failed", waiting("PodInitializing"), status={"initContainerStatuses": [first]})
    job = one(config(), KEEPER, master)
    why = 'its init container folder failed with exit code 127: exec: "python": not found'
    assert job.note == f"its master ended ({why}); its keeper restarts it"
    assert [(t.what, "contains Python and ElasticDL" in t.remedy) for t in job.troubles] == [(why, True)]


def test_a_job_of_which_nothing_is_left_was_stopped() -> None:
    gone = ClusterJob("team", "mnist")
    assert (gone.state, gone.result["reason"]) == ("stopped", "nothing of it is left")


def test_jobs_are_told_apart_by_namespace_and_name_and_other_objects_are_left_alone() -> None:
    stray = pod(names.WORKER, "Running")
    stray["metadata"]["labels"] = {**stray["metadata"]["labels"], names.LABEL_JOB: "half-gone"}
    other = {"kind": "ConfigMap", "metadata": {"name": "x", "namespace": "team", "labels": {"app": "elasticdl"}}}
    found = read([config(), config("b", "2026-11-15T12:00:00Z"), other], [MASTER, stray])
    assert [(job.name, len(job.pods)) for job in found] == [("b", 0), ("mnist", 1)]


# What delays a pod.

SCHEDULED = "0/3 nodes are available: "


def unschedulable(message: str) -> Object:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"conditions": [condition]}


@pytest.mark.parametrize(
    ("state", "status", "what", "remedy"),
    [
        (waiting("ErrImageNeverPull"), {}, "its image is not on the node", "--image_pull_policy=IfNotPresent"),
        (waiting("InvalidImageName"), {}, "its image name is invalid", "Correct --image_name"),
        (
            waiting("ErrImagePull", "pull access denied for zoo"), {}, "cannot be pulled",
            "imagePullSecrets",
        ),
        (
            waiting("CreateContainerConfigError", 'secret "hf-token" not found'), {},
            "its container cannot be configured",
            "Create the secret hf-token in the job's namespace",
        ),
        (
            waiting("CreateContainerConfigError", 'secret "elasticdl-mnist" not found'), {}, "cannot be configured",
            "elasticdl stop mnist --now",
        ),
        (
            waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"), {},
            "cannot be configured", "Set a numeric user in the image",
        ),
        (waiting("CrashLoopBackOff", "back-off 20s"), {}, "it crashes repeatedly", "logs mnist worker-1 --previous"),
        (waiting("RunContainerError", "python: not found"), {}, "cannot be started", "contains Python and ElasticDL"),
        (
            None, unschedulable(SCHEDULED + "3 Insufficient cpu, 1 Insufficient nvidia.com/gpu."), "unschedulable",
            "To request less cpu and nvidia.com/gpu: --worker_resource_request",
        ),
        (None, unschedulable(SCHEDULED + "3 node(s) had taint {x: y}, that the pod"), "taint", "Tolerate the taint"),
        (None, unschedulable(SCHEDULED + "3 node(s) didn't match node selector."), "selector", "or label a node"),
        (None, unschedulable('persistentvolumeclaim "data" not found'), "claim", "Create the claim"),
    ],
)  # fmt: skip
def test_what_holds_a_pod_up_comes_with_the_remedy(
    state: Object | None, status: Object, what: str, remedy: str
) -> None:
    trouble = trouble_of(pod(names.WORKER, "Pending", state, status=status), "mnist")
    assert trouble is not None
    assert what in trouble.what
    assert remedy in trouble.remedy


def test_what_only_events_tell_is_read_from_them() -> None:
    waits = pod(names.WORKER, "Pending", waiting("ContainerCreating"))
    assert trouble_of(waits, "mnist") is None
    event = {
        "reason": "FailedMount",
        "message": 'MountVolume.SetUp failed for volume "data" : hostPath type check failed:\n/data is not a directory',
        "involvedObject": {"uid": "uid-worker"},
        "lastTimestamp": LONG_AGO,
    }
    (job,) = read([config()], [MASTER, waits], [event])
    assert [str(trouble) for trouble in job.troubles] == [
        'worker-1: one of its volumes cannot be mounted: MountVolume.SetUp failed for volume "data" : '
        "hostPath type check failed: /data is not a directory"
    ]
    assert "what --volume names exists on the node" in job.troubles[0].remedy


def test_a_deleted_or_successful_pod_is_no_trouble() -> None:
    assert trouble_of(pod(names.WORKER, "Succeeded", ended(0)), "mnist") is None
    assert trouble_of(pod(names.WORKER, "Failed", ended(143)), "mnist") is None
    leaving = {"deletionTimestamp": LONG_AGO}
    assert trouble_of(pod(names.WORKER, "Pending", meta=leaving), "mnist") is None


def test_the_same_trouble_of_several_replicas_is_reported_once() -> None:
    same = [Trouble((f"worker-{i}",), "unschedulable", "wait") for i in range(3)]
    assert [str(t) for t in grouped([*same, Trouble(("ps-0",), "x", "")])] == [
        "worker-0, worker-1, worker-2: unschedulable",
        "ps-0: x",
    ]


# Logs.


def test_times_of_log_lines_are_compared_as_numbers_whatever_their_zone_and_digits() -> None:
    assert parse("2026-11-15T22:00:00.5Z a b") == parse("2026-11-15T23:00:00.500000000+01:00 a b")
    assert parse("2026-11-15T22:00:00.09Z x")[0] < parse("2026-11-15T22:00:00.1Z x")[0]
    assert parse("2026-11-15T22:00:00.1Z ")[1] == ""
    assert parse("no time at all") == (0, "no time at all")


def test_lines_of_several_pods_come_in_the_order_of_time() -> None:
    found = merged([("master", [(1, "a"), (4, "d")]), ("worker-0", [(2, "b"), (3, "c")])])
    assert found == [("master", "a"), ("worker-0", "b"), ("worker-0", "c"), ("master", "d")]
