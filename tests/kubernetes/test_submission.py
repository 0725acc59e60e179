"""Submitting a job to a real cluster: all or none of its objects, and the checks before."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.cli.main import main
from elasticdl.cli.submit import secrets_of
from elasticdl.cluster.kubernetes import objects
from elasticdl.cluster.kubernetes.keeper import Keeper
from elasticdl.cluster.kubernetes.preflight import preflight
from elasticdl.cluster.kubernetes.submission import conclude, submit
from elasticdl.cluster.protocol import Exit
from elasticdl.errors import Refused, UsageError
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.master import in_cluster
from tests.cluster.kubernetes_stage import MANIFESTS, WHERE, grant, kubectl
from tests.kubernetes.submitted_jobs import (
    ALL,
    ENDS,
    KINDS,
    MASTER,
    Make,
    end_master,
    master,
    phase,
    reach,
    run,
    submitted,
    there,
    until,
)

pytestmark = pytest.mark.kubernetes


def test_a_job_is_submitted_with_all_its_objects_and_goes_with_its_config_map(namespace: str, make: Make) -> None:
    async def story() -> None:
        async with reach() as api:
            uid = await submitted(api, make())
        assert await asyncio.to_thread(there, namespace) == ALL
        found = json.loads(kubectl("get", KINDS, "-l", "app=elasticdl", "-o", "json", namespace=namespace))["items"]
        owners = {t["kind"]: [o["uid"] for o in t["metadata"].get("ownerReferences", [])] for t in found}
        assert owners.pop("ConfigMap") == []
        assert all(uids == [uid] for uids in owners.values())
        kubectl("delete", "configmap", "elasticdl-j", namespace=namespace)
        await until(lambda: there(namespace) == [], 240.0)

    run(story(), 280)


def test_a_job_of_which_one_object_is_refused_leaves_nothing_behind(namespace: str, make: Make) -> None:
    refused = "if pod['metadata']['name'].endswith('keeper'): pod['spec']['restartPolicy'] = 'Sometimes'"

    async def story() -> None:
        async with reach() as api:
            with pytest.raises(Refused, match="restartPolicy"):
                await submitted(api, make(more=refused))
        await until(lambda: there(namespace) == [])

    run(story())


def test_a_name_in_use_is_refused_and_that_of_a_job_that_ended_is_used_again(namespace: str, make: Make) -> None:
    async def story() -> None:
        async with reach() as api:
            spec = make(ENDS)
            await submitted(api, spec)
            (problem,) = await preflight(api, spec, secrets_of(spec))
            assert str(problem) == (
                f"--job_name=j: a job with this name already exists in namespace {namespace}. "
                f"Choose another name, or stop that job: elasticdl stop j --namespace={namespace}."
            )
            with pytest.raises(UsageError, match="a job with this name already exists in namespace"):
                await submitted(api, spec)
            await until(lambda: phase(namespace) == "Running")
            # What the keeper does at the end, by hand, and too early: the master runs still.
            alone = '{"metadata": {"ownerReferences": null}}'
            kubectl("patch", "pod", MASTER, "--type=merge", "-p", alone, namespace=namespace)
            kubectl("delete", "configmap", "elasticdl-j", namespace=namespace)
            (problem,) = await preflight(api, spec, secrets_of(spec))
            assert f"the pod {MASTER} is already running" in str(problem)
            note = json.dumps({"outcome": "succeeded", "reason": ""})
            kubectl("annotate", "pod", MASTER, f"{names.ANNOTATION_RESULT}={note}", namespace=namespace)
            await end_master(namespace)
            await until(lambda: phase(namespace) == "Succeeded")
            assert await preflight(api, spec, secrets_of(spec)) == []
            said: list[str] = []
            await submitted(api, spec, said)
            assert said == ["Removing the master pod of an earlier job j (succeeded), with its log."]
        assert await asyncio.to_thread(there, namespace) == ALL

    run(story(), 280)


def test_what_is_missing_is_found_by_asking_the_server(namespace: str, make: Make) -> None:
    async def story() -> None:
        async with reach() as api:

            async def said(**values: Any) -> list[str]:
                spec = make(**values)
                return [str(problem) for problem in await preflight(api, spec, secrets_of(spec))]

            assert await said() == []
            (problem,) = await said(namespace="nowhere-to-be-found")
            assert problem.startswith(
                "--namespace=nowhere-to-be-found: there is no such namespace. Create it with kubectl"
            )
            found = await said(
                worker_pod_priority="urgent=0.5", ps_pod_priority="top", volume="claim_name=lost,mount_path=/data"
            )
            text = "\n".join(found)
            assert "--worker_pod_priority=urgent: there is no PriorityClass urgent." in text
            assert "--ps_pod_priority=top: there is no PriorityClass top." in text
            assert f"there is no PersistentVolumeClaim lost in namespace {namespace}." in text
            (problem,) = await said(more="pod['spec']['tolerations'] = [{'key': 'gpu', 'operator': 'Perhaps'}]")
            assert problem.startswith(
                "master, keeper, worker, ps: Kubernetes refused: Pod is invalid: spec.tolerations"
            )
            assert "Perhaps" in problem
            assert "--cluster_spec" in problem
            (problem,) = await said(more="pod['spec']['serviceAccountName'] = 'nobody-known'")
            assert "has no service account nobody-known" in problem
            assert f"kubectl apply -n {namespace} -f -" in problem
            (problem,) = await said(more="pod['spec']['serviceAccountName'] = 'default'")
            assert "the service account default may not get pods, list pods" in problem

    run(story())


def let_submit(namespace: str, account: str) -> None:
    """The rights to submit from inside, except for NetworkPolicies."""
    role, *_ = yaml.safe_load_all((MANIFESTS / "examples" / "elasticdl-rbac.yaml").read_text())
    role["rules"] = [rule for rule in role["rules"] if rule["resources"] != ["networkpolicies"]]
    objects = [role, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}]
    for name in (role["metadata"]["name"], names.SERVICE_ACCOUNT):
        bound = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subjects = [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]
        meta = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": f"{name}-{account}"}}
        objects.append({**meta, "kind": "RoleBinding", "roleRef": bound, "subjects": subjects})
    grant(objects, namespace, account)


def test_missing_rights_to_submit_are_reported(namespace: str, make: Make) -> None:
    let_submit(namespace, "submitter")

    async def story() -> None:
        async with reach("default", namespace) as api:
            spec = make()
            (problem,) = await preflight(api, spec, secrets_of(spec))
            assert "does not let you create configmaps, create secrets, create services" in str(problem)
            assert str(problem).endswith("Ask an administrator for these rights, or use another context.")
        async with reach("submitter", namespace) as api:  # no NetworkPolicy, with a warning
            assert await preflight(api, spec, secrets_of(spec)) == []
            said: list[str] = []
            await submitted(api, spec, said)
            (warning,) = said
            assert warning.startswith("Warning: any pod in the cluster can connect to this job's pods")
        assert await asyncio.to_thread(there, namespace) == [t for t in ALL if not t.startswith("NetworkPolicy")]

    run(story())


def apply_yaml(spec: JobSpec, folder: Path, *more: str) -> str:
    """Apply the YAML of a job with kubectl; returns its output."""
    place = str(folder / "job.yaml")
    given = ["job_name", "image_name", "image_pull_policy", "model_def", "training_data", "cluster_spec", "namespace"]
    assert main(["train", *(f"--{name}={getattr(spec, name)}" for name in given), f"--yaml={place}"]) == 0
    return kubectl("apply", "-f", place, *more, namespace=str(spec.namespace))


def test_the_yaml_of_a_job_is_taken_by_kubectl(namespace: str, make: Make, tmp_path: Path) -> None:
    assert len(apply_yaml(make(), tmp_path, "--dry-run=server").splitlines()) == 6
    assert there(namespace) == []


def test_a_job_that_kubectl_made_is_removed_with_all_its_objects(namespace: str, make: Make, tmp_path: Path) -> None:
    apply_yaml(make(), tmp_path)
    assert there(namespace) == ALL
    assert main(["stop", "j", "--now", f"--namespace={namespace}", *WHERE]) == 0
    assert there(namespace) == []


def test_a_finished_job_that_kubectl_made_does_not_block_the_name(namespace: str, make: Make, tmp_path: Path) -> None:
    spec = make()
    apply_yaml(spec, tmp_path)
    before = json.loads(kubectl("get", "secret", "elasticdl-j", "-o", "json", namespace=namespace))
    # What is left when its keeper has done its work; the pods are out of the way for a quicker test.
    kubectl("delete", "configmap", "elasticdl-j", namespace=namespace)
    kubectl("delete", "pods", "--all", "--force", "--grace-period=0", namespace=namespace)

    async def story() -> None:
        async with reach() as api:
            await submitted(api, spec)

    run(story(), 30)
    assert there(namespace) == ALL
    after = json.loads(kubectl("get", "secret", "elasticdl-j", "-o", "json", namespace=namespace))
    assert after["data"] != before["data"] and after["metadata"]["ownerReferences"]


def test_the_name_of_a_job_that_is_over_is_used_again_as_soon_as_it_is_removed(namespace: str, make: Make) -> None:
    async def story() -> None:
        async with reach() as api:
            spec = make(ENDS)
            uid = await submitted(api, spec)
            note = json.dumps({"outcome": "succeeded", "reason": ""})
            kubectl("annotate", "pod", MASTER, f"{names.ANNOTATION_RESULT}={note}", namespace=namespace)
            assert await preflight(api, spec, secrets_of(spec)) == [], "it is over, whatever a kubelet says"
            with pytest.raises(UsageError) as refused:  # it is not removed: its keeper is a shell
                await submitted(api, spec, over_seconds=0.5)
            (problem,) = refused.value.problems
            assert problem.remedy == f"Remove what is left of it: elasticdl stop j --now --namespace={namespace}."
            said: list[str] = []
            again = asyncio.create_task(submitted(api, spec, said, over_seconds=60))
            done, _ = await asyncio.wait({again}, timeout=1)
            assert not done
            await conclude(api, namespace, "j", await asyncio.to_thread(master, namespace), uid)
            assert await again != uid
            assert said == ["Removing the master pod of an earlier job j (succeeded), with its log."]
        assert await asyncio.to_thread(there, namespace) == ALL

    run(story(), 180)


def test_a_name_that_another_job_takes_meanwhile_is_not_waited_for(namespace: str, make: Make) -> None:
    async def story() -> None:
        async with reach() as api:
            spec = make(ENDS)
            await submitted(api, spec)
            note = json.dumps({"outcome": "succeeded", "reason": ""})
            kubectl("annotate", "pod", MASTER, f"{names.ANNOTATION_RESULT}={note}", namespace=namespace)
            late = asyncio.create_task(submitted(api, spec, over_seconds=120))
            done, _ = await asyncio.wait({late}, timeout=1)
            assert not done, "the earlier job is over: it waits until that is removed"
            # The other submission's first step. This one then sees only that its objects exist.
            kubectl("delete", "pod", MASTER, "--force", "--grace-period=0", namespace=namespace)
            with pytest.raises(UsageError, match="a job with this name already exists in namespace"):
                await asyncio.wait_for(late, 30)

    run(story())


def test_a_master_clears_its_job_away_although_no_keeper_is_there(namespace: str, make: Make) -> None:
    async def story() -> None:
        spec = make(ENDS)
        async with reach() as api:
            uid = await submitted(api, spec)
        kubectl("delete", "pod", "elasticdl-j-keeper", "--force", "--grace-period=0", namespace=namespace)
        await until(lambda: phase(namespace) == "Running")
        pod = await asyncio.to_thread(master, namespace)
        async with reach(names.SERVICE_ACCOUNT, namespace) as api:
            place = in_cluster.Place(spec, api, objects.owner("j", uid), pod)
            assert await in_cluster._tell(place, {"outcome": "succeeded", "reason": "", "status": {}})
            await in_cluster._clear_away(place)
        await until(lambda: there(namespace) == [f"Pod/{MASTER}"])
        assert phase(namespace) == "Running", "it goes on to its own end"
        await end_master(namespace)
        await until(lambda: phase(namespace) == "Succeeded")

    run(story(), 180)


def test_a_master_whose_pod_was_replaced_writes_nothing_on_the_next_one(namespace: str, make: Make) -> None:
    async def story() -> None:
        spec = make()
        async with reach() as api:
            uid = await submitted(api, spec)
        pod = await asyncio.to_thread(master, namespace)
        late = {**pod, "metadata": {**pod["metadata"], "uid": str(uuid.uuid4())}}
        async with reach(names.SERVICE_ACCOUNT, namespace) as api:
            place = in_cluster.Place(spec, api, objects.owner("j", uid), late)
            assert not await in_cluster._tell(place, {"outcome": "succeeded", "reason": "", "status": {}})
            await Keeper(api, namespace, "j")._give_up(late, Exit(1, None, oom=False, reason="exit code 1"))
        after = await asyncio.to_thread(master, namespace)
        assert names.ANNOTATION_RESULT not in after["metadata"].get("annotations", {})

    run(story())


def test_a_submission_that_is_interrupted_at_any_moment_leaves_nothing(namespace: str, make: Make) -> None:
    async def story() -> None:
        async with reach() as api:
            spec, whole = make(), False
            given = secrets_of(spec)  # which takes longer than the rest
            for milliseconds in (1, 3, 5, 8, 12, 20, 40, 80, 160, 320, 10_000):
                submitting = asyncio.create_task(submit(api, spec, given))
                await asyncio.wait({submitting}, timeout=milliseconds / 1000)
                if whole := not submitting.cancel():
                    break
                await asyncio.wait({submitting})
                assert submitting.cancelled()
                await until(lambda: there(namespace) == [])
            assert whole and milliseconds > 1, "not one was interrupted"

    run(story(), 280)


def test_a_node_can_be_drained_without_being_forced(namespace: str, make: Make) -> None:
    async def story() -> None:
        async with reach() as api:
            await submitted(api, make(job_name="sentaway"))  # another name: the node has pods of other tests

    run(story())
    pod = "elasticdl-sentaway-master"
    kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=100s", namespace=namespace)
    node = kubectl("get", "pod", pod, "-o", "jsonpath={.spec.nodeName}", namespace=namespace)
    told = ["--dry-run=client", "--delete-emptydir-data", "--ignore-daemonsets"]
    said = kubectl("drain", node, *told, f"--pod-selector={names.LABEL_JOB}=sentaway")
    assert f"evicting pod {namespace}/{pod}" in said
