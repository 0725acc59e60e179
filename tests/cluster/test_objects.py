"""The objects of a job in a cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.cli.main import main
from elasticdl.cluster.kubernetes.objects import JobObjects, job_objects, owned, owner, pod_maker
from elasticdl.cluster.kubernetes.preflight import MASTER_NEEDS, rbac_command
from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.errors import UsageError
from elasticdl.job.resolve import resolve
from elasticdl.job.spec import JobSpec

MANIFESTS = Path(__file__).parents[2] / "manifests"
SECRETS = {
    "ELASTICDL_TOKEN": "token-hush",
    "ELASTICDL_TLS_CERT": "cert-hush",
    "ELASTICDL_TLS_KEY": "key-hush",
    "ELASTICDL_DATA_KEY": "public-hush",
    "ELASTICDL_DATA_SECRET": "secret-hush",
}
CLAIM = "claim_name=c,mount_path=/data"


def spec_of(**values: Any) -> JobSpec:
    given = {
        "job_name": "j",
        "image_name": "zoo:1",
        "model_def": "a.b.c",
        "training_data": "/data/t",
        "namespace": "team",
    }
    return resolve(JobSpec.model_validate({**given, "volume": CLAIM, **values})).require()


def objects_of(**values: Any) -> JobObjects:
    return job_objects(spec_of(**values), SECRETS)


def env(pod: dict[str, Any], container: int = 0) -> dict[str, Any]:
    entries = pod["spec"]["containers"][container]["env"]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in entries}


def test_a_job_is_six_objects_with_its_labels_the_owner_of_the_others_first() -> None:
    found = objects_of().all()
    assert [(thing["kind"], thing["metadata"]["name"]) for thing in found] == [
        ("ConfigMap", "elasticdl-j"),
        ("Secret", "elasticdl-j"),
        ("Service", "elasticdl-j-master"),
        ("NetworkPolicy", "elasticdl-j"),
        ("Pod", "elasticdl-j-master"),
        ("Pod", "elasticdl-j-keeper"),
    ]
    for thing in found:
        assert thing["metadata"]["namespace"] == "team"
        labels = thing["metadata"]["labels"]
        assert (labels["app"], labels["elasticdl-job-name"]) == ("elasticdl", "j")


def test_what_is_owned_goes_with_the_config_map() -> None:
    by = owner(str(spec_of().job_name), "42")
    ours = {"apiVersion": "v1", "kind": "ConfigMap", "name": "elasticdl-j", "uid": "42"}
    assert by == {**ours, "controller": True}, "kubectl drain takes such pods away without being forced"
    thing = objects_of().service
    assert owned(thing, by)["metadata"]["ownerReferences"] == [by]
    assert "ownerReferences" not in thing["metadata"], "the original stays as it was"


def test_the_job_travels_in_the_config_map_and_every_pod_has_it_as_a_file() -> None:
    objects = objects_of(num_workers=3)
    assert JobSpec.from_json(objects.config_map["data"]["job.json"]) == spec_of(num_workers=3)
    assert json.loads(objects.config_map["data"]["master.json"]) == objects.master
    assert json.loads(objects.config_map["data"]["keeper.json"]) == objects.keeper
    worker = pod_maker(spec_of())(ReplicaRequest("elasticdl-j-worker-0", "worker", 0, ("python",), {}))
    for pod in (objects.master, objects.keeper, worker):
        (main_container,) = pod["spec"]["containers"]
        assert {"name": "job", "mountPath": "/etc/elasticdl", "readOnly": True} in main_container["volumeMounts"]
        assert {"name": "job", "configMap": {"name": "elasticdl-j"}} in pod["spec"]["volumes"]
    assert env(objects.master)["ELASTICDL_JOB_FILE"] == "/etc/elasticdl/job.json"


def test_secrets_stand_in_the_secret_and_nowhere_else() -> None:
    objects = objects_of()
    assert objects.secret["stringData"] == SECRETS
    others = [thing for thing in objects.all() if thing["kind"] != "Secret"]
    assert "hush" not in json.dumps(others)
    for name in SECRETS:
        assert env(objects.master)[name] == {"secretKeyRef": {"name": "elasticdl-j", "key": name}}
        assert name not in env(objects.keeper), "the keeper speaks to the API server only"


def test_the_master_is_found_by_a_name_that_outlives_its_pod() -> None:
    objects = objects_of()
    assert objects.service["spec"]["ports"] == [{"name": "control", "port": 50001, "targetPort": 50001}]
    labels = objects.master["metadata"]["labels"]
    assert objects.service["spec"]["selector"].items() <= labels.items()
    assert not objects.service["spec"]["selector"].items() <= objects.keeper["metadata"]["labels"].items()
    assert env(objects.master)["MASTER_ADDR"] == "elasticdl-j-master.team.svc:50001"


def test_only_pods_of_the_job_reach_pods_of_the_job() -> None:
    spec = objects_of().network_policy["spec"]
    ours = {"matchLabels": {"app": "elasticdl", "elasticdl-job-name": "j"}}
    assert spec == {
        "podSelector": ours,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": ours}]}],
    }


def test_the_keeper_is_small_restarts_and_has_the_masters_priority_and_account() -> None:
    objects = objects_of(master_pod_priority="high", worker_image="w:1")
    spec = objects.keeper["spec"]
    assert (spec["restartPolicy"], spec["priorityClassName"]) == ("OnFailure", "high")
    assert spec["serviceAccountName"] == objects.master["spec"]["serviceAccountName"] == "elasticdl-master"
    (only,) = spec["containers"]
    assert (only["image"], only["resources"]["requests"]) == ("zoo:1", {"cpu": "10m", "memory": "64Mi"})
    assert only["command"] == ["python", "-m", "elasticdl.cluster.kubernetes.keeper", "j", "team"]
    (wish,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert (
        wish["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= objects.master["metadata"]["labels"].items()
    )


def test_pods_are_not_root_and_the_volume_is_theirs_to_write() -> None:
    objects = objects_of()
    for pod in (objects.master, objects.keeper):
        context = pod["spec"]["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"], context["fsGroup"]) == (True, 1000, 1000)
        (only,) = pod["spec"]["containers"]
        assert only["securityContext"]["readOnlyRootFilesystem"]
        assert "initContainers" not in pod["spec"]


def test_with_a_directory_of_the_node_the_image_chooses_the_user_and_the_jobs_folder_is_made_for_it() -> None:
    objects = objects_of(volume="host_path=/data,mount_path=/data")
    assert "runAsUser" not in objects.master["spec"]["securityContext"]
    (maker,) = objects.master["spec"]["initContainers"]
    assert maker["command"][-1] == "/data/.elasticdl"
    assert objects.master["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "main"
    assert maker["securityContext"]["runAsUser"] == 0
    assert maker["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"]}
    assert "initContainers" not in objects.keeper["spec"]
    elsewhere = objects_of(volume="host_path=/data,mount_path=/data", state_dir="/data/mine")
    assert "initContainers" not in elsewhere.master["spec"], "a place that the user names is the user's to prepare"


def test_what_a_directory_of_the_node_takes_away_comes_back_with_the_line_that_the_page_on_kubernetes_has() -> None:
    page = (MANIFESTS.parent / "docs" / "kubernetes.md").read_text()
    (line,) = re.findall(r"--cluster_spec_json='([^']*readOnlyRootFilesystem[^']*)'", page)
    on_node = objects_of(volume="host_path=/d,mount_path=/data")
    sealed, claimed = objects_of(volume="host_path=/d,mount_path=/data", cluster_spec_json=line), objects_of()
    for plain, pod, like in (
        (on_node.master, sealed.master, claimed.master),
        (on_node.keeper, sealed.keeper, claimed.keeper),
    ):
        assert plain["spec"]["containers"][0]["securityContext"] == {"allowPrivilegeEscalation": False}
        assert plain["spec"]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
        main, other = pod["spec"]["containers"][0], like["spec"]["containers"][0]
        assert main["securityContext"] == other["securityContext"] and env(pod)["HOME"] == "/tmp"
        assert [m for m in main["volumeMounts"] if m["mountPath"] == "/tmp"] == [{"name": "tmp", "mountPath": "/tmp"}]
        assert {"name": "tmp", "emptyDir": {}} in pod["spec"]["volumes"]


def test_without_a_volume_the_state_is_in_a_folder_that_goes_with_its_pod() -> None:
    pod = objects_of(volume="").master
    assert {"name": "state", "emptyDir": {}} in pod["spec"]["volumes"]
    assert {"name": "state", "mountPath": "/var/lib/elasticdl"} in pod["spec"]["containers"][0]["volumeMounts"]
    assert "emptyDir" not in json.dumps([v for v in objects_of().master["spec"]["volumes"] if v["name"] != "tmp"])


def test_a_file_of_the_users_changes_every_pod_and_travels_with_the_job(tmp_path: Path) -> None:
    code = "def with_pod(pod):\n    pod['metadata'].setdefault('annotations', {})['team'] = 'x'\n"
    (tmp_path / "overlay.py").write_text(code)
    objects = objects_of(cluster_spec=str(tmp_path / "overlay.py"))
    for pod in (objects.master, objects.keeper):
        assert pod["metadata"]["annotations"] == {"team": "x"}
    assert objects.config_map["data"]["cluster_spec.py"] == code
    inside = JobSpec.from_json(objects.config_map["data"]["job.json"])
    assert inside.cluster_spec == "/etc/elasticdl/cluster_spec.py"
    noted = {"elasticdl-cluster-spec": str(tmp_path / "overlay.py")}
    assert objects.config_map["metadata"]["annotations"] == noted, "for submitting it again"
    with pytest.raises(UsageError, match=r"--cluster_spec=.*is not a Python file"):
        objects_of(cluster_spec=str(tmp_path / "nothing.py"))


def test_tolerations_affinity_labels_and_annotations_reach_every_pod_of_the_job() -> None:
    over = {
        "metadata": {"labels": {"team": "x"}, "annotations": {"cost": "7"}},
        "spec": {
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "serviceAccountName": "mine",
        },
    }
    objects = objects_of(cluster_spec_json=json.dumps(over))
    for pod in (objects.master, objects.keeper):
        assert pod["metadata"]["labels"]["team"] == "x"
        assert pod["metadata"]["labels"]["elasticdl-job-name"] == "j"
        assert pod["metadata"]["annotations"] == {"cost": "7"}
        assert pod["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
        assert pod["spec"]["serviceAccountName"] == "mine"


WORDS = [
    "train",
    "--image_name=i:1",
    "--model_def=a.b.c",
    "--training_data=/data/t",
    "--job_name=j",
    f"--volume={CLAIM}",
]


def test_yaml_writes_all_objects_for_the_users_eyes_only_and_submits_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "there is no cluster"))
    assert main([*WORDS, f"--yaml={tmp_path / 'job.yaml'}"]) == 0
    said = capsys.readouterr().out
    assert f"kubectl apply -f {tmp_path / 'job.yaml'}" in said
    assert (tmp_path / "job.yaml").stat().st_mode & 0o777 == 0o600
    objects = list(yaml.safe_load_all((tmp_path / "job.yaml").read_text()))
    assert [thing["kind"] for thing in objects] == [
        "ConfigMap", "Secret", "Service", "NetworkPolicy", "Pod", "Pod",
    ]  # fmt: skip
    secret = objects[1]["stringData"]
    assert set(secret) == set(SECRETS)
    assert secret["ELASTICDL_TLS_CERT"].startswith("-----BEGIN CERTIFICATE-----")
    assert main([*WORDS, "--encrypt_data_plane=false", "--yaml=-"]) == 0
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    assert set(printed[1]["stringData"]) == {"ELASTICDL_TOKEN", "ELASTICDL_TLS_CERT", "ELASTICDL_TLS_KEY"}
    assert printed[1]["stringData"]["ELASTICDL_TOKEN"] != secret["ELASTICDL_TOKEN"]
    assert main([*WORDS, f"--yaml={tmp_path / 'no' / 'job.yaml'}"]) == 2
    assert "cannot be written: No such file or directory. Name another file." in capsys.readouterr().err


def test_without_a_cluster_the_error_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert main(WORDS) == 2
    assert "there is no such file. Name a kubeconfig file, or run inside a cluster." in capsys.readouterr().err
    (tmp_path / "config").write_text("current-context: here\ncontexts: [{name: here, context: {}}]\n")
    assert main([*WORDS, "--context=there"]) == 2
    assert "context=there: is not in the kubeconfig. It has here." in capsys.readouterr().err
    assert main([*WORDS, "--context"]) == 2
    assert "--context: has no value. Write --context=NAME" in capsys.readouterr().err
    (tmp_path / "config").unlink()
    assert main([*WORDS, "--dry_run"]) == 0
    shown = capsys.readouterr().out
    assert "# The cluster:\n#   Not asked: KUBECONFIG=" in shown
    assert "# Decisions:" in shown


def test_the_rights_that_are_asked_about_are_those_of_the_manifest() -> None:
    _, role, _ = yaml.safe_load_all((MANIFESTS / "elasticdl-rbac.yaml").read_text())
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == set(MASTER_NEEDS)
    assert rbac_command("default") == "kubectl apply -f manifests/elasticdl-rbac.yaml"
    assert rbac_command("team") == (
        "sed 's/namespace: default/namespace: team/' manifests/elasticdl-rbac.yaml | kubectl apply -n team -f -"
    )
    assert rbac_command("default", from_inside=True) == (
        "kubectl apply -f manifests/elasticdl-rbac.yaml -f manifests/examples/elasticdl-rbac.yaml"
    )
