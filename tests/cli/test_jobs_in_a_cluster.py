"""The commands and jobs of a cluster, with an HTTP server as API server that has the objects of a test."""

from __future__ import annotations

import copy
import json
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli.cluster_job import JobInCluster
from elasticdl.cli.flags import read_request
from elasticdl.cli.main import main
from elasticdl.cli.resume import resume_command
from elasticdl.cluster.kubernetes.api import KubernetesApi
from elasticdl.cluster.kubernetes.credentials import Credentials
from elasticdl.cluster.kubernetes.objects import job_objects
from elasticdl.job import names
from tests.cluster.test_jobs_of_a_cluster import KEEPER, MASTER, config, ended, pod
from tests.cluster.test_objects import SECRETS, spec_of

Object = dict[str, Any]
Show = Callable[..., str]


@pytest.fixture
def status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Show]:
    """`elasticdl status mnist` with these objects in the namespace: what it printed."""
    lists: dict[str, list[Object]] = {"configmaps": [], "pods": [], "events": []}
    later: list[list[Object]] = []  # pods, once they were listed

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind = self.path.partition("?")[0].rpartition("/")[2]
            body = json.dumps({"items": lists[kind]}).encode()
            if kind == "pods" and later:
                lists["pods"] = later.pop(0)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    where = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "c", "context": {"cluster": "c", "namespace": "team"}}
    kubeconfig = {"current-context": "c", "contexts": [context], "clusters": [where]}
    (tmp_path / "config").write_text(json.dumps(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    def show(*objects: Object, then: list[Object] | None = None, flags: Sequence[str] = ()) -> str:
        lists["configmaps"] = [thing for thing in objects if "kind" in thing]
        lists["pods"] = [thing for thing in objects if "kind" not in thing]
        later[:] = [then] if then is not None else []
        assert main(["status", "mnist", "--namespace=team", *flags]) == 0
        return capsys.readouterr().out

    yield show
    server.shutdown()
    server.server_close()


def failed(reason: str, state: Object, **more: object) -> Object:
    text = json.dumps({"outcome": "failed", "reason": reason, "exit_code": 1, "status": {}, **more})
    return pod(names.MASTER, "Failed", state, meta={"annotations": {names.ANNOTATION_RESULT: text}})


def test_a_job_that_ends_while_its_master_is_asked_is_shown_with_its_last_status(status: Show) -> None:
    last = {"job": "mnist", "phase": "failed", "records_done": "7", "records_total": "20"}
    text = json.dumps({"outcome": "failed", "reason": "no room", "exit_code": 1, "status": last})
    over = pod(names.MASTER, "Failed", ended(1), meta={"annotations": {names.ANNOTATION_RESULT: text}})
    found = json.loads(status(config(), pod(names.MASTER, "Pending"), KEEPER, then=[over], flags=["--json"]))
    assert (found["state"], found["reason"]) == ("failed", "no room")
    assert found["status"] is not None and found["status"]["records_done"] == 7


@pytest.mark.parametrize("role", ["worker", "ps"])
def test_the_status_of_a_job_that_failed_of_a_replicas_memory_has_the_remedy(status: Show, role: str) -> None:
    name, end = f"elasticdl-mnist-{role}-1", "out of memory: the kernel killed it at its limit of 64Mi"
    why = f"{name} failed 2 times: {end}"
    over = failed(f"{why}\nlast line", ended(1), lost={"name": name, "reason": end})
    assert status(over).splitlines() == [
        f"mnist failed: {why}",
        "last line",
        f'  remedy  Give it more memory: --{role}_resource_request="memory=…", '
        f"and --{role}_resource_limit where that is set.",
        "  logs    kubectl logs -n team elasticdl-mnist-master",
    ]


def test_the_status_of_a_job_whose_master_ran_out_of_memory_has_the_remedy(status: Show) -> None:
    why = "the master failed 4 times: out of memory: the kernel killed it at its limit of 64Mi"
    text = status(failed(why, ended(137, "OOMKilled")))
    assert '  remedy  Give it more memory: --master_resource_request="memory=…", and' in text
    text = status(pod(names.MASTER, "Failed", ended(137, "OOMKilled")))  # without a result
    assert '  remedy  Give it more memory: --master_resource_request="memory=…", and' in text


def test_the_status_of_a_job_that_failed_of_something_else_names_its_log_alone(status: Show) -> None:
    why, lost = "elasticdl-mnist-worker-1 failed 2 times: exit code 1", {"name": "elasticdl-mnist-worker-1"}
    text = status(failed(f"{why}\nKeyError: 'x'", ended(1), lost=lost | {"reason": "exit code 1"}))
    assert text.splitlines() == [
        "mnist failed: elasticdl-mnist-worker-1 failed 2 times: exit code 1",
        "KeyError: 'x'",
        "  logs  kubectl logs -n team elasticdl-mnist-master",
    ]


def test_a_worker_whose_image_cannot_be_pulled_is_told_beside_a_master_that_does_not_answer(status: Show) -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "zoo:1"'}}
    text = status(config(), pod(names.MASTER, "Pending"), KEEPER, pod(names.WORKER, "Pending", waiting))
    assert "worker-1: its image cannot be pulled (zoo:1): ImagePullBackOff: Back-off pulling image" in text
    assert "  Check --image_name, and that the nodes can pull the image" in text


def test_a_remedy_that_helps_several_is_told_once(status: Show) -> None:
    def starved(index: int, limit: str) -> Object:
        found = copy.deepcopy(pod(names.WORKER, "Failed", ended(137, "OOMKilled")))
        found["metadata"] |= {"name": names.replica_name("mnist", names.WORKER, index), "uid": str(index)}
        found["spec"]["containers"][0]["resources"]["limits"]["memory"] = limit
        return found

    text = status(config(), pod(names.MASTER, "Pending"), KEEPER, starved(0, "64Mi"), starved(1, "96Mi"))
    assert text.splitlines()[1:] == [
        "worker-0: out of memory: the kernel killed it at its limit of 64Mi",
        "worker-1: out of memory: the kernel killed it at its limit of 96Mi",
        '  Give it more memory: --worker_resource_request="memory=…", and --worker_resource_limit where that is set.',
    ]


# The command with which a stopped job goes on.


def test_the_command_to_go_on_names_the_users_own_file_not_the_one_in_the_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "overlay.py").write_text("def with_pod(pod):\n    return pod\n")
    monkeypatch.chdir(tmp_path)
    asked = spec_of(cluster_spec="overlay.py")
    submitted = job_objects(asked, SECRETS).config_map
    job = JobInCluster("team", "j", submitted, (MASTER,), api=KubernetesApi(Credentials("http://127.0.0.1:9")))
    spec = job.spec()
    assert spec is not None
    line = resume_command(spec, Path("/data/version-5"))
    assert f"--cluster_spec={tmp_path / 'overlay.py'}" in line and "/etc/elasticdl" not in line
    command, *flags = shlex.split(line)[1:]
    again = read_request(flags, command).resolved.require()
    values = {"cluster_spec": str(tmp_path / "overlay.py"), "checkpoint_dir_for_init": "/data/version-5"}
    assert again == asked.with_values(**values)
