"""Submitting a job to a real cluster: its objects, all or none; what the API server says before; and the keeper.

The job's pods run little shell scripts here, put there by an overlay: what becomes of the job is seen from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.cli.main import main
from elasticdl.cli.submit import secrets_of
from elasticdl.cluster.kubernetes import credentials, objects, submission
from elasticdl.cluster.kubernetes.api import KubernetesApi
from elasticdl.cluster.kubernetes.keeper import Keeper
from elasticdl.cluster.kubernetes.lease import Lease
from elasticdl.cluster.kubernetes.preflight import preflight
from elasticdl.cluster.kubernetes.submission import conclude, submit
from elasticdl.cluster.protocol import Exit
from elasticdl.errors import Refused, UsageError
from elasticdl.job import names
from elasticdl.job.resolve import resolve
from elasticdl.job.spec import JobSpec
from elasticdl.master import in_cluster
from tests.cluster.kubernetes_stage import (
    CONTEXT,
    IMAGE,
    MANIFESTS,
    PULL,
    WHERE,
    as_account,
    grant,
    kubectl,
    own_namespace,
    require_cluster,
)

pytestmark = pytest.mark.kubernetes

MASTER = "elasticdl-j-master"
KINDS = "configmaps,secrets,services,networkpolicies,leases,pods"
# What masters do here. The result of one that ends is put on its pod by the test.
ENDS = "echo Evaluation metrics; until [ -e /tmp/end ]; do sleep 0.1; done"
WAITS, CRASHES = "echo $$ > /tmp/pid; trap 'exit 143' TERM; sleep 600 & wait", "echo last words; exit 3"
DEAF = "trap '' TERM; while true; do sleep 1; done"
OVERLAY = """
SCRIPTS = {{"master": {script!r}, "keeper": "sleep 600"}}

def with_pod(pod):
    script = SCRIPTS.get(pod["metadata"]["labels"]["elasticdl-replica-type"], "sleep 600")
    main = pod["spec"]["containers"][0]
    main["command"] = ["sh", "-c", script.replace("$", "$$")]
    if pod["metadata"]["name"].endswith("keeper"):
        pod["spec"]["terminationGracePeriodSeconds"] = 1
    main["resources"] = {{"requests": {{"cpu": "10m", "memory": "16Mi"}}}}
    {more}
"""


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    require_cluster()
    with own_namespace() as name:
        objects = list(yaml.safe_load_all((MANIFESTS / "elasticdl-rbac.yaml").read_text()))
        grant(objects, name, names.SERVICE_ACCOUNT)
        yield name


@pytest.fixture(autouse=True)
def nothing_left(namespace: str) -> Iterator[None]:
    yield
    kubectl("delete", KINDS, "-l", "app=elasticdl", "--grace-period=0", "--force", namespace=namespace, fails=True)


@pytest.fixture
def make(namespace: str, tmp_path: Path) -> Callable[..., JobSpec]:
    def made(script: str = WAITS, more: str = "pass", **values: Any) -> JobSpec:
        (tmp_path / "overlay.py").write_text(OVERLAY.format(script=script, more=more))
        given = {
            "job_name": "j", "image_name": IMAGE, "image_pull_policy": PULL, "model_def": "a.b.c",
            "training_data": "/data", "namespace": namespace, "cluster_spec": str(tmp_path / "overlay.py"),
        }  # fmt: skip
        return resolve(JobSpec.model_validate({**given, **values})).require()

    return made


Make = Callable[..., JobSpec]


@contextlib.asynccontextmanager
async def reach(account: str | None = None, namespace: str = "") -> AsyncIterator[KubernetesApi]:
    """The API server as ourselves, or as a service account."""
    found = credentials.find(CONTEXT, prefer_file=CONTEXT is not None)
    api = KubernetesApi(found if account is None else as_account(found, namespace, account))
    try:
        yield api
    finally:
        await api.close()


def run(story: Coroutine[Any, Any, Any], seconds: float = 180.0) -> None:
    asyncio.run(asyncio.wait_for(story, seconds))


def there(namespace: str) -> list[str]:
    """What is there of jobs, as kind/name."""
    found = json.loads(kubectl("get", KINDS, "-l", "app=elasticdl", "-o", "json", namespace=namespace))["items"]
    return sorted(f"{thing['kind']}/{thing['metadata']['name']}" for thing in found)


async def until(what: Callable[[], Any], seconds: float = 120.0) -> None:
    """Until kubectl sees it."""
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(what):
        if time.monotonic() > deadline:
            pytest.fail(f"not so within {seconds:g} s:\n{kubectl('get', KINDS, '-A', '-l', 'app=elasticdl')}")
        await asyncio.sleep(0.3)


def master(namespace: str) -> dict[str, Any]:
    text = kubectl("get", "pod", MASTER, "-o", "json", namespace=namespace, fails=True)
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def phase(namespace: str) -> str:
    return str(master(namespace).get("status", {}).get("phase", "gone"))


async def end_master(namespace: str) -> None:
    """Of one that `ENDS`. A pod that runs cannot always be entered at once."""
    words = ("exec", MASTER, "--", "sh", "-c", "touch /tmp/end; echo done")
    await until(lambda: "done" in kubectl(*words, namespace=namespace, fails=True))


async def submitted(api: KubernetesApi, spec: JobSpec, said: list[str] | None = None) -> str:
    return await submit(api, spec, secrets_of(spec), tell=(said if said is not None else []).append)


ALL = [
    "ConfigMap/elasticdl-j", "NetworkPolicy/elasticdl-j", "Pod/elasticdl-j-keeper", f"Pod/{MASTER}",
    "Secret/elasticdl-j", f"Service/{MASTER}",
]  # fmt: skip


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
                f"--job_name=j: a job of this name is in namespace {namespace} already. "
                f"Choose another name, or stop that one: elasticdl stop j --namespace={namespace}."
            )
            with pytest.raises(UsageError, match="a job of this name is in namespace"):
                await submitted(api, spec)
            await until(lambda: phase(namespace) == "Running")
            # What the keeper does at the end, by hand, and too early: the master runs still.
            alone = '{"metadata": {"ownerReferences": null}}'
            kubectl("patch", "pod", MASTER, "--type=merge", "-p", alone, namespace=namespace)
            kubectl("delete", "configmap", "elasticdl-j", namespace=namespace)
            (problem,) = await preflight(api, spec, secrets_of(spec))
            assert f"the pod {MASTER} runs already" in str(problem)
            note = json.dumps({"outcome": "succeeded", "reason": ""})
            kubectl("annotate", "pod", MASTER, f"{names.ANNOTATION_RESULT}={note}", namespace=namespace)
            await end_master(namespace)
            await until(lambda: phase(namespace) == "Succeeded")
            assert await preflight(api, spec, secrets_of(spec)) == []
            said: list[str] = []
            await submitted(api, spec, said)
            assert said == ["An earlier job j succeeded; its master's pod, which held its log, is removed."]
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
                "--namespace=nowhere-to-be-found: there is no such namespace. Make it with kubectl"
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
    """The rights of those who submit from inside, but for NetworkPolicies."""
    role, *_ = yaml.safe_load_all((MANIFESTS / "examples" / "elasticdl-rbac.yaml").read_text())
    role["rules"] = [rule for rule in role["rules"] if rule["resources"] != ["networkpolicies"]]
    objects = [role, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}]
    for name in (role["metadata"]["name"], names.SERVICE_ACCOUNT):
        bound = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subjects = [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]
        meta = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": f"{name}-{account}"}}
        objects.append({**meta, "kind": "RoleBinding", "roleRef": bound, "subjects": subjects})
    grant(objects, namespace, account)


def test_whoever_may_not_submit_is_told_what_is_missing(namespace: str, make: Make) -> None:
    let_submit(namespace, "submitter")

    async def story() -> None:
        async with reach("default", namespace) as api:
            spec = make()
            (problem,) = await preflight(api, spec, secrets_of(spec))
            assert "does not let you create configmaps, create secrets, create services" in str(problem)
            assert str(problem).endswith("Ask an administrator for it, or use another context.")
        async with reach("submitter", namespace) as api:  # no NetworkPolicy, and that is said
            assert await preflight(api, spec, secrets_of(spec)) == []
            said: list[str] = []
            await submitted(api, spec, said)
            (warning,) = said
            assert warning.startswith("Warning: any pod of the cluster can reach those of this job")
        assert await asyncio.to_thread(there, namespace) == [t for t in ALL if not t.startswith("NetworkPolicy")]

    run(story())


def test_the_yaml_of_a_job_is_taken_by_kubectl(namespace: str, make: Make, tmp_path: Path) -> None:
    spec = make()
    words = [f"--{name}={getattr(spec, name)}" for name in ("job_name", "image_name", "model_def", "training_data")]
    assert main(["train", *words, f"--namespace={namespace}", f"--yaml={tmp_path / 'job.yaml'}"]) == 0
    said = kubectl("apply", "--dry-run=server", "-f", str(tmp_path / "job.yaml"), namespace=namespace)
    assert len(said.splitlines()) == 6


def test_a_job_that_kubectl_made_is_removed_with_all_its_objects(namespace: str, make: Make, tmp_path: Path) -> None:
    spec, place = make(), str(tmp_path / "job.yaml")
    given = ("job_name", "image_name", "image_pull_policy", "model_def", "training_data", "cluster_spec")
    words = [f"--{name}={getattr(spec, name)}" for name in given]
    assert main(["train", *words, f"--namespace={namespace}", f"--yaml={place}"]) == 0
    kubectl("apply", "-f", place, namespace=namespace)
    assert there(namespace) == ALL
    assert main(["stop", "j", "--now", f"--namespace={namespace}", *WHERE]) == 0
    assert there(namespace) == []


def test_a_finished_job_that_kubectl_made_is_in_nobodys_way(namespace: str, make: Make, tmp_path: Path) -> None:
    spec, place = make(), str(tmp_path / "job.yaml")
    given = ("job_name", "image_name", "image_pull_policy", "model_def", "training_data", "cluster_spec")
    words = [f"--{name}={getattr(spec, name)}" for name in given]
    assert main(["train", *words, f"--namespace={namespace}", f"--yaml={place}"]) == 0
    kubectl("apply", "-f", place, namespace=namespace)
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


def test_the_name_of_a_job_that_is_over_is_used_again_as_soon_as_it_is_removed(
    namespace: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with reach() as api:
            spec = make(ENDS)
            uid = await submitted(api, spec)
            note = json.dumps({"outcome": "succeeded", "reason": ""})
            kubectl("annotate", "pod", MASTER, f"{names.ANNOTATION_RESULT}={note}", namespace=namespace)
            assert await preflight(api, spec, secrets_of(spec)) == [], "it is over, whatever a kubelet says"
            monkeypatch.setattr(submission, "OVER_SECONDS", 0.5)
            with pytest.raises(UsageError) as refused:  # nobody removes it: its keeper is a shell
                await submitted(api, spec)
            (problem,) = refused.value.problems
            assert problem.remedy == f"Remove what is left of it: elasticdl stop j --now --namespace={namespace}."
            monkeypatch.setattr(submission, "OVER_SECONDS", 60.0)
            said: list[str] = []
            again = asyncio.create_task(submitted(api, spec, said))
            await asyncio.sleep(1)
            assert not again.done()
            await conclude(api, namespace, "j", await asyncio.to_thread(master, namespace), uid)
            assert await again != uid
            assert said == ["An earlier job j succeeded; its master's pod, which held its log, is removed."]
        assert await asyncio.to_thread(there, namespace) == ALL

    run(story(), 180)


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


def test_a_master_whose_pod_was_replaced_says_nothing_on_the_next_one(namespace: str, make: Make) -> None:
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
            await submitted(api, make())
        await until(lambda: phase(namespace) == "Running")

    run(story())
    node = master(namespace)["spec"]["nodeName"]
    told = ["--dry-run=client", "--delete-emptydir-data", "--ignore-daemonsets"]
    said = kubectl("drain", node, *told, f"--pod-selector={names.LABEL_JOB}=j")
    assert f"evicting pod {namespace}/{MASTER}" in said


# The keeper, run here with the rights that it has in its pod.


@contextlib.asynccontextmanager
async def kept(namespace: str, spec: JobSpec) -> AsyncIterator[asyncio.Task[None]]:
    async with reach() as api:
        await submitted(api, spec)
    async with reach(names.SERVICE_ACCOUNT, namespace) as api:
        keeping = asyncio.create_task(Keeper(api, namespace, "j").run())
        try:
            yield keeping
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})


def test_a_deleted_master_is_made_again_as_it_was(namespace: str, make: Make) -> None:
    async def story() -> None:
        async with kept(namespace, make(DEAF)):
            await until(lambda: phase(namespace) == "Running")
            before = await asyncio.to_thread(master, namespace)
            uid, owner = before["metadata"]["uid"], before["metadata"]["ownerReferences"][0]
            async with reach(names.SERVICE_ACCOUNT, namespace) as api:
                lease = Lease(api, namespace, "j", uid, owner)
                await lease.acquire()
                kubectl("delete", "pod", MASTER, "--wait=false", namespace=namespace)
                await asyncio.sleep(2.5)
                assert (await asyncio.to_thread(master, namespace))["metadata"]["uid"] == uid, "it has its grace"
                await lease.release()
            # From here on its pod is not waited for, which does not heed SIGTERM.
            await until(lambda: master(namespace).get("metadata", {}).get("uid", uid) != uid, 20.0)
            await until(lambda: phase(namespace) == "Running")
            after = await asyncio.to_thread(master, namespace)
            assert after["spec"]["containers"][0]["env"] == before["spec"]["containers"][0]["env"]
            assert after["metadata"]["ownerReferences"] == before["metadata"]["ownerReferences"]
            assert after["metadata"]["annotations"][names.ANNOTATION_CRASHES] == "0"
            events = kubectl("get", "events", "-o", "jsonpath={.items[*].reason}", namespace=namespace)
            assert "MasterStarted" in events

    run(story(), 280)


def test_a_master_that_fails_again_and_again_fails_the_job_and_only_its_pod_is_left(namespace: str, make: Make) -> None:
    async def story() -> None:
        async with kept(namespace, make(CRASHES)) as keeping:
            await asyncio.wait_for(keeping, 200)
        await until(lambda: there(namespace) == [f"Pod/{MASTER}"])
        pod = await asyncio.to_thread(master, namespace)
        assert "ownerReferences" not in pod["metadata"]
        result = json.loads(pod["metadata"]["annotations"][names.ANNOTATION_RESULT])
        assert (result["outcome"], result["exit_code"]) == ("failed", 1)
        assert result["reason"] == "the master failed 4 times: exit code 3\nlast words"
        assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
        assert kubectl("logs", MASTER, namespace=namespace) == "last words\n"

    run(story(), 280)


def test_a_master_that_was_killed_costs_no_attempt_and_its_lease_is_given_back_at_once(
    namespace: str, make: Make
) -> None:
    async def story() -> None:
        spec = make()
        async with kept(namespace, spec):
            await until(lambda: phase(namespace) == "Running")
            pod = await asyncio.to_thread(master, namespace)
            async with reach(names.SERVICE_ACCOUNT, namespace) as api:
                owner = pod["metadata"]["ownerReferences"][0]
                await Lease(api, namespace, "j", pod["metadata"]["uid"], owner).acquire()
                kill = "(sleep 0.2; kill -9 $(cat /tmp/pid)) > /dev/null 2>&1 &"
                kubectl("exec", MASTER, "--", "sh", "-c", kill, namespace=namespace)
                uid = pod["metadata"]["uid"]
                await until(lambda: phase(namespace) == "Running" and master(namespace)["metadata"]["uid"] != uid)
                after = await asyncio.to_thread(master, namespace)
                assert after["metadata"]["annotations"][names.ANNOTATION_CRASHES] == "0"
                async with asyncio.timeout(5):  # it lasts 40 s: nobody has to wait for that
                    await Lease(api, namespace, "j", after["metadata"]["uid"], owner).acquire()

    run(story(), 280)


def test_a_job_with_a_result_leaves_its_masters_pod_with_exit_status_and_log(namespace: str, make: Make) -> None:
    async def story() -> None:
        async with kept(namespace, make(ENDS)) as keeping:
            await until(lambda: phase(namespace) == "Running")
            note = json.dumps({"outcome": "succeeded", "reason": ""})
            kubectl("annotate", "pod", MASTER, f"{names.ANNOTATION_RESULT}={note}", namespace=namespace)
            await end_master(namespace)
            await asyncio.wait_for(keeping, 120)
        await until(lambda: there(namespace) == [f"Pod/{MASTER}"])
        assert phase(namespace) == "Succeeded"
        assert kubectl("logs", MASTER, namespace=namespace) == "Evaluation metrics\n"

    run(story(), 280)


def test_a_keeper_that_is_sent_away_together_with_its_master_brings_that_back_first(
    namespace: str, make: Make, tmp_path: Path
) -> None:
    env = dict(os.environ)

    async def story() -> None:
        async with reach() as api:
            await submitted(api, make())
        await until(lambda: phase(namespace) == "Running")
        uid = (await asyncio.to_thread(master, namespace))["metadata"]["uid"]
        words = ("-m", "elasticdl.cluster.kubernetes.keeper", "j", namespace)
        if CONTEXT is not None:  # a keeper knows no contexts: give it a kubeconfig whose current one it is
            text = kubectl("config", "view", "--raw", "--flatten", "--minify")
            (tmp_path / "config").write_text(text)
            env["KUBECONFIG"] = str(tmp_path / "config")
        keeper = await asyncio.create_subprocess_exec(sys.executable, *words, env=env, stderr=asyncio.subprocess.PIPE)
        assert keeper.stderr is not None
        try:
            await asyncio.sleep(3)
            kubectl("delete", "pod", MASTER, "--wait=false", "--grace-period=2", namespace=namespace)
            keeper.send_signal(signal.SIGTERM)
            _, said = await asyncio.wait_for(keeper.communicate(), 40)
        finally:
            with contextlib.suppress(ProcessLookupError):
                keeper.kill()
        assert keeper.returncode == 0
        assert "The master is started again." in said.decode()
        assert (await asyncio.to_thread(master, namespace))["metadata"]["uid"] != uid

    run(story(), 280)


def test_a_keeper_of_a_job_that_is_gone_ends(namespace: str) -> None:
    async def story() -> None:
        async with reach(names.SERVICE_ACCOUNT, namespace) as api:
            await Keeper(api, namespace, "j").run()

    run(story(), 10)
