"""The pod of a replica, from the flags a user gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.cluster.kubernetes import overlay
from elasticdl.cluster.kubernetes.pods import PodMaker, merged, priority_of
from elasticdl.cluster.kubernetes.preflight import restarted
from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.core.commands import Command, LaunchReplica
from elasticdl.core.events import MasterStarted, ReplicaGone
from elasticdl.core.replicas import PREEMPTED, Budget, Replicas
from elasticdl.errors import UsageError
from elasticdl.job.spec import JobSpec

OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "elasticdl-j", "uid": "42"}


def job(**values: Any) -> JobSpec:
    return JobSpec.model_validate({"job_name": "j", "image_name": "zoo:1", **values})


def request(role: str = "worker", index: int = 0, **more: Any) -> ReplicaRequest:
    values: dict[str, Any] = {"command": ("python", "-m", "elasticdl.worker"), "env": {}, **more}
    return ReplicaRequest(f"elasticdl-j-{role}-{index}", role, index, **values)


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def test_a_pod_has_the_jobs_labels_owner_image_and_policies() -> None:
    pod = PodMaker(job(image_pull_policy="Never", namespace="team"), owner=OWNER)(request(index=3))
    assert pod["metadata"] == {
        "name": "elasticdl-j-worker-3",
        "namespace": "team",
        "labels": {
            "app": "elasticdl",
            "elasticdl-job-name": "j",
            "elasticdl-replica-type": "worker",
            "elasticdl-replica-index": "3",
        },
        "ownerReferences": [OWNER],
    }
    assert (container(pod)["image"], container(pod)["imagePullPolicy"]) == ("zoo:1", "Never")
    assert pod["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("role", "image"), [("master", "zoo:1"), ("worker", "w:1"), ("ps", "p:1"), ("chief", "w:1"), ("evaluator", "w:1")]
)
def test_each_role_has_its_image(role: str, image: str) -> None:
    pod = PodMaker(job(worker_image="w:1", ps_image="p:1"))(request(role))
    assert container(pod)["image"] == image


def test_a_role_without_an_image_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match=r"--image_name: the master has no image. Name one"):
        PodMaker(job(image_name=None, worker_image="w:1"))(request("master"))


def test_the_users_words_reach_the_process_as_they_were_written() -> None:
    pod = PodMaker(job())(request(command=("sh", "-c", "echo $$ $(HOME) $x"), env={"A": "$(B) $$"}))
    assert container(pod)["command"] == ["sh", "-c", "echo $$$$ $$(HOME) $$x"]
    assert {"name": "A", "value": "$$(B) $$$$"} in container(pod)["env"]


def test_secrets_come_from_the_secret_and_are_not_written_into_the_pod() -> None:
    pod = PodMaker(job(), secret="elasticdl-j")(request(env={"ELASTICDL_TOKEN": "hush", "PLAIN": "1"}))
    assert "hush" not in str(pod)
    reference = {"secretKeyRef": {"name": "elasticdl-j", "key": "ELASTICDL_TOKEN"}}
    assert {"name": "ELASTICDL_TOKEN", "valueFrom": reference} in container(pod)["env"]


def test_a_pod_knows_its_address() -> None:
    field = {"fieldRef": {"fieldPath": "status.podIP"}}
    assert {"name": "MY_POD_IP", "valueFrom": field} in container(PodMaker(job())(request()))["env"]


def test_resources_are_requests_and_limits_and_a_limit_not_given_is_the_request() -> None:
    spec = job(worker_resource_request="cpu=0.4,memory=1024Mi", worker_resource_limit="cpu=1,memory=2048Mi")
    assert container(PodMaker(spec)(request()))["resources"] == {
        "requests": {"cpu": "400m", "memory": "1024Mi"},
        "limits": {"cpu": "1000m", "memory": "2048Mi"},
    }
    alone = container(PodMaker(job(ps_resource_request="cpu=2,memory=1Gi"))(request("ps")))["resources"]
    assert alone["requests"] == alone["limits"] == {"cpu": "2000m", "memory": "1024Mi"}


def test_gpus_and_other_things_by_name_are_requested_as_much_as_they_are_allowed() -> None:
    spec = job(worker_resource_request="cpu=1", worker_resource_limit="cpu=1,gpu=2,vendor.com/nic=1")
    resources = container(PodMaker(spec)(request()))["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"] == {"cpu": "1000m", "nvidia.com/gpu": "2", "vendor.com/nic": "1"}


def test_a_replica_that_comes_back_with_more_memory_requests_more_too() -> None:
    spec = job(worker_resource_request="cpu=1,memory=100Mi", worker_resource_limit="cpu=1,memory=200Mi")
    resources = container(PodMaker(spec)(request(memory_limit_bytes=300 << 20)))["resources"]
    assert resources["limits"]["memory"] == "300Mi"
    assert resources["requests"]["memory"] == "150Mi"


@pytest.mark.parametrize(
    ("flag", "classes"),
    [
        (None, [None] * 4),
        ("low", ["low"] * 4),
        ("high", ["high"] * 4),
        ("0.5", ["low", "high", "low", "high"]),
        ("urgent=0.75", ["low", "urgent", "urgent", "urgent"]),
        ("0", ["low"] * 4),
    ],
)
def test_a_share_of_the_workers_has_the_high_priority_and_the_rest_the_low_one(flag: str, classes: list[str]) -> None:
    assert [priority_of(job(worker_pod_priority=flag), "worker", number) for number in range(4)] == classes


def test_a_tenth_of_the_workers_stays_a_tenth_however_many_come() -> None:
    spec = job(worker_pod_priority="0.1")
    high = sum(priority_of(spec, "worker", number) == "high" for number in range(1000))
    assert high == 100


@given(st.lists(st.integers(0, 3), max_size=20))
def test_the_running_workers_have_the_requested_share_after_any_losses(lost: list[int]) -> None:
    maker, replicas = PodMaker(job(worker_pod_priority="high=0.5")), Replicas.wanting("j", {"worker": 4}, Budget())
    living: dict[str, str] = {}  # the class of each

    def obey(commands: list[Command]) -> None:
        for launch in commands:
            if isinstance(launch, LaunchReplica):
                pod = maker(request(index=launch.index, number=launch.number))
                living[pod["metadata"]["name"]] = pod["spec"]["priorityClassName"]

    obey(replicas.handle(MasterStarted(), 0.0))
    for which in lost:
        gone = sorted(living)[which]
        was = living.pop(gone)
        obey(replicas.handle(ReplicaGone(gone, f"uid of {gone}", PREEMPTED, "preempted"), 0.0))
        assert was == living[replicas.slots[replicas.replicas[gone].slot].replica], "as the one that it came for"
        assert sorted(living.values()) == ["high", "high", "low", "low"]


def test_other_roles_have_their_own_priority() -> None:
    spec = job(master_pod_priority="high", ps_pod_priority="high", worker_pod_priority="low")
    maker = PodMaker(spec)
    found = {
        role: maker(request(role))["spec"].get("priorityClassName") for role in ("master", "ps", "worker", "chief")
    }
    assert found == {"master": "high", "ps": "high", "worker": "low", "chief": None}


def test_volumes_are_mounted_and_one_source_mounted_twice_is_one_volume() -> None:
    host = "host_path=/data,mount_path=/data,type=Directory"
    volume = f"{host};claim_name=c,mount_path=/a,sub_path=x;claim_name=c,mount_path=/b"
    pod = PodMaker(job(volume=volume))(request())
    assert pod["spec"]["volumes"] == [
        {"name": "volume-0", "hostPath": {"path": "/data", "type": "Directory"}},
        {"name": "volume-1", "persistentVolumeClaim": {"claimName": "c"}},
    ]
    assert container(pod)["volumeMounts"] == [
        {"name": "volume-0", "mountPath": "/data"},
        {"name": "volume-1", "mountPath": "/a", "subPath": "x"},
        {"name": "volume-1", "mountPath": "/b"},
    ]


@pytest.mark.parametrize("asked", ["Never", "OnFailure", "Always"])
def test_no_replica_is_restarted_in_place_where_its_crashes_would_not_be_counted(asked: str) -> None:
    maker = PodMaker(job(restart_policy=asked))
    for role in ("master", "ps", "worker", "chief", "evaluator"):
        assert maker(request(role))["spec"]["restartPolicy"] == "Never", role


def test_an_overlay_that_has_replicas_restarted_in_place_is_refused() -> None:
    def pods(spec: JobSpec) -> list[dict[str, Any]]:
        return [PodMaker(spec)(request(role)) for role in ("master", "keeper", "ps", "worker")]

    plain, overlaid = job(), job(cluster_spec_json='{"spec": {"restartPolicy": "OnFailure"}}')
    assert restarted(plain, pods(plain)) == []
    (problem,) = restarted(overlaid, pods(overlaid))
    assert str(problem).startswith(
        "--cluster_spec_json: its restartPolicy makes the kubelet restart master, ps, worker in place"
    )


def test_only_the_master_gets_a_token() -> None:
    maker = PodMaker(job(), service_account="elasticdl-master")
    pods = {role: maker(request(role))["spec"] for role in ("master", "worker", "ps")}
    assert {role: spec["automountServiceAccountToken"] for role, spec in pods.items()} == {
        "master": True,
        "worker": False,
        "ps": False,
    }
    assert {role: spec.get("serviceAccountName") for role, spec in pods.items()} == {
        "master": "elasticdl-master",
        "worker": None,
        "ps": None,
    }


def test_without_root_nothing_but_tmp_and_the_volumes_can_be_written() -> None:
    pod = PodMaker(job(), run_as=1000)(request())
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert pod["spec"]["securityContext"]["runAsUser"] == 1000
    assert container(pod)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"name": "tmp", "mountPath": "/tmp"} in container(pod)["volumeMounts"]
    assert {"name": "HOME", "value": "/tmp"} in container(pod)["env"]


def test_a_json_object_is_merged_into_every_pod() -> None:
    extra = """{"metadata": {"annotations": {"team": "x"}},
                "spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}], "enableServiceLinks": null,
                         "containers": [{"name": "main", "env": [{"name": "A", "value": "2"}], "tty": true},
                                        {"name": "sidecar", "image": "s:1"}]}}"""
    pod = PodMaker(job(cluster_spec_json=extra))(request(env={"A": "1", "B": "1"}))
    main, sidecar = pod["spec"]["containers"]
    assert pod["metadata"]["annotations"] == {"team": "x"}
    assert pod["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert "enableServiceLinks" not in pod["spec"]
    assert (main["image"], main["tty"], sidecar["image"]) == ("zoo:1", True, "s:1")
    env = {entry["name"]: entry.get("value") for entry in main["env"]}
    assert (env["A"], env["B"]) == ("2", "1")


def test_merging_leaves_both_sides_as_they_were() -> None:
    base, over = {"a": [{"name": "x", "n": {"k": 1}}]}, {"a": [{"name": "x", "n": {"l": 2}}, {"name": "y"}]}
    assert merged(base, over) == {"a": [{"name": "x", "n": {"k": 1, "l": 2}}, {"name": "y"}]}
    assert base == {"a": [{"name": "x", "n": {"k": 1}}]}
    assert over == {"a": [{"name": "x", "n": {"l": 2}}, {"name": "y"}]}


def test_mounts_are_merged_by_their_path_since_one_volume_may_be_mounted_twice() -> None:
    extra = """{"spec": {"containers": [{"name": "main", "volumeMounts": [
        {"name": "volume-0", "mountPath": "/b", "readOnly": true}, {"name": "volume-0", "mountPath": "/c"}]}]}}"""
    volume = "host_path=/x,mount_path=/a;host_path=/x,mount_path=/b"
    pod = PodMaker(job(volume=volume, cluster_spec_json=extra))(request())
    assert container(pod)["volumeMounts"] == [
        {"name": "volume-0", "mountPath": "/a"},
        {"name": "volume-0", "mountPath": "/b", "readOnly": True},
        {"name": "volume-0", "mountPath": "/c"},
    ]


@pytest.mark.parametrize(
    "code",
    [
        "def with_pod(pod):\n    pod['spec']['nodeSelector'] = {'disk': 'ssd'}\n    return pod\n",
        "def with_pod(pod):\n    pod['spec']['nodeSelector'] = {'disk': 'ssd'}\n",
        "class Cluster:\n    def with_pod(self, pod):\n        pod['spec']['nodeSelector'] = {'disk': 'ssd'}\n"
        "        return pod\n\ncluster = Cluster()\n",
    ],
    ids=["returned", "in place", "object"],
)
def test_a_python_file_has_the_last_word_on_a_pod(tmp_path: Path, code: str) -> None:
    (tmp_path / "spec.py").write_text(code)
    maker = PodMaker(job(), overlay=overlay.load(tmp_path / "spec.py"))
    assert maker(request())["spec"]["nodeSelector"] == {"disk": "ssd"}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1", "defines no with_pod. Define with_pod"),
        ("1 / 0", "raised ZeroDivisionError"),
        ("def with_pod(pod):\n    pod.spec.tolerations = []", "with_pod raised AttributeError.*pod is made of dicts"),
        ("def with_pod(pod):\n    return 'pod'", "with_pod returned str. Return the pod"),
    ],
)
def test_what_is_wrong_with_the_file_is_reported_with_the_remedy(tmp_path: Path, code: str, message: str) -> None:
    (tmp_path / "spec.py").write_text(code)
    with pytest.raises(UsageError, match=f"--cluster_spec=.*{message}"):
        PodMaker(job(), overlay=overlay.load(tmp_path / "spec.py"))(request())


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a Python file"):
        overlay.load(tmp_path / "nothing.py")
