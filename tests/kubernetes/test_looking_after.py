"""`elasticdl list | status | logs | scale | top | stop` with jobs of a real cluster, as a user types them.

The jobs are whole ones, whose pods see this tree: they need a cluster whose node is this machine.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.launched import MODELS, ROOT, environment, write_ids
from tests.cluster.kubernetes_stage import WHERE, kubectl, own_namespace
from tests.kubernetes.cluster_jobs import KINDS, allow_jobs, in_pods, require_this_machine

pytestmark = pytest.mark.kubernetes

SMALL, LIMIT = "cpu=0.05,memory=100Mi", "cpu=1,memory=1000Mi"


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """A separate one: these tests list all of its jobs."""
    require_this_machine()
    with own_namespace() as name:
        allow_jobs(name)
        yield name


@pytest.fixture(scope="module")
def data(shared: Path) -> Path:
    return write_ids(shared / "looked-at" / "ids", 2000)


def elasticdl(*words: str, code: int | None = 0, timeout: float = 120, cwd: Path = ROOT) -> str:
    """The output of a command, including errors."""
    where = [] if set(WHERE) <= set(words) else WHERE
    done = subprocess.run(
        [sys.executable, "-m", "elasticdl", *words, *where],
        cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def submit(namespace: str, data: Path, name: str, **values: str) -> None:
    """Submit a job of the witness model that trains for minutes."""
    given = dict(flag.removeprefix("--").split("=", 1) for flag in in_pods(data.parent, OMP_NUM_THREADS="1"))
    given |= {
        "job_name": name, "namespace": namespace, "model_zoo": str(MODELS), "model_def": "witness.custom_model",
        "training_data": str(data), "num_workers": "1", "num_ps_pods": "1", "minibatch_size": "4",
        "num_epochs": "5000", "log_loss_steps": "20",
        **{f"{role}_resource_request": SMALL for role in ("master", "worker", "ps")},
        **{f"{role}_resource_limit": LIMIT for role in ("master", "worker", "ps")}, **values,
    }  # fmt: skip
    elasticdl("train", *(f"--{flag}={value}" for flag, value in given.items()), cwd=data.parent)


def status(name: str, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(elasticdl("status", name, "--json", "-n", namespace))
    return found


def until(what: Callable[[], Any], seconds: float = 240) -> Any:
    """The first true answer; each call runs a slow command."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"not so within {seconds:g} s"
        time.sleep(0.2)  # between two commands
    return found


def trains(name: str, namespace: str) -> bool:
    now = status(name, namespace)
    assert now["state"] in ("pending", "running"), now
    return now["status"] is not None and now["status"]["records_done"] > 0


def left(name: str, namespace: str) -> list[str]:
    """The objects of a job, as kind/name."""
    return kubectl("get", KINDS, "-l", f"elasticdl-job-name={name}", "-o", "name", namespace=namespace).split()


@pytest.fixture(scope="module")
def running(namespace: str, data: Path) -> str:
    """A job that trains while the tests of this file run."""
    submit(namespace, data, "runner")
    until(lambda: trains("runner", namespace))
    return "runner"


@pytest.fixture(scope="module")
def stop_now(namespace: str) -> Iterator[Callable[[str], None]]:
    """Begins to stop a job. That it was stopped is checked after the other tests: a pod that never started may stay for
    a minute."""
    stopping: list[subprocess.Popen[str]] = []

    def begin(name: str) -> None:
        command = [sys.executable, "-m", "elasticdl", "stop", name, "--now", "-n", namespace, *WHERE]
        pipe = subprocess.PIPE
        stopping.append(subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=pipe, stderr=pipe, text=True))

    yield begin
    for process in stopping:
        said, complaint = process.communicate(timeout=120)
        assert process.returncode == 0, f"{said}{complaint}"


def test_a_running_job_is_listed_with_its_place_and_progress(namespace: str, running: str) -> None:
    header, row = elasticdl("list", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "WHERE", "STATE", "PROGRESS", "STARTED", "DURATION"]
    assert re.match(rf"runner +\S+/{namespace} +running +\d+% of 10,000,000 records +20", row)
    found = json.loads(elasticdl("list", "--json", "-A"))
    assert [job["namespace"] for job in found if job["name"] == "runner"] == [namespace]


def test_the_status_of_a_running_job_is_its_masters(namespace: str, running: str) -> None:
    text = elasticdl("status", "runner", "-n", namespace)
    assert "runner  training" in text
    assert re.search(r"worker-0 +working", text) and re.search(r"ps-0 +working", text)
    found = status("runner", namespace)
    assert (found["state"], found["troubles"]) == ("running", [])
    assert set(found["pods"]) == {f"elasticdl-runner-{short}" for short in ("keeper", "master", "ps-0", "worker-0")}


def test_logs_come_from_the_api_server(namespace: str, running: str) -> None:
    assert "Master of runner" in elasticdl("logs", "runner", "-n", namespace)
    assert "Loss = " in elasticdl("logs", "runner", "worker-0", "-n", namespace)
    everything = elasticdl("logs", "runner", "all", "-n", namespace).splitlines()
    assert {line.split(" | ")[0].strip() for line in everything} >= {"master", "ps-0", "worker-0"}
    written = re.findall(r"\| \[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3}\]", "\n".join(everything))
    times = [time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S")) for text in written]
    # In the order in which the node received them, nearly that in which they were written.
    assert len(times) > 5 and all(earlier <= later + 2 for earlier, later in itertools.pairwise(times))
    assert len(elasticdl("logs", "runner", "all", "--tail=3", "-n", namespace).splitlines()) == 3
    complaint = elasticdl("logs", "runner", "worker-9", "-n", namespace, code=2)
    assert "worker-9: job runner has no such replica. Did you mean worker-0? There are keeper, master" in complaint
    assert "its container was never restarted" in elasticdl(
        "logs", "runner", "worker-0", "--previous", "-n", namespace, code=2
    )


def test_replicas_say_what_they_use(namespace: str, running: str) -> None:
    def spoken() -> Any:
        (found,) = json.loads(elasticdl("top", "runner", "--json", "-n", namespace))
        spoke = [replica["memory_bytes"] for replica in found["replicas"]]
        return found if spoke and all(spoke) else None

    replicas = until(spoken)["replicas"]
    assert [replica["name"] for replica in replicas] == ["master", "ps-0", "worker-0"]
    assert all(10 << 20 < replica["memory_bytes"] < 1000 << 20 for replica in replicas)
    assert all(replica["memory_limit_bytes"] == 1000 << 20 for replica in replicas)
    row = r"worker-0 +working +\d\.\d\d of 1 +\d+ MiB of 1000 MiB"
    assert until(lambda: re.search(row, elasticdl("top", "-n", namespace)))


def test_a_job_is_scaled_through_its_master(namespace: str, running: str) -> None:
    words = ("scale", "runner", "--workers=2", "--timeout=240", "-n", namespace)
    until(lambda: elasticdl(*words, code=None, timeout=300) == "runner: 2 workers train.\n")
    assert "elasticdl-runner-worker-1" in status("runner", namespace)["pods"]


def test_a_worker_without_room_is_reported_with_the_remedy_while_the_job_runs(
    namespace: str, data: Path, running: str
) -> None:
    submit(namespace, data, "large", worker_resource_request="cpu=900,memory=64Mi", worker_resource_limit="cpu=900")

    def held_up() -> Any:
        now = status("large", namespace)
        return [t for t in now["troubles"] if t["replicas"] == ["worker-0"]] if now["state"] == "running" else None

    (trouble,) = until(held_up)
    assert "unschedulable" in trouble["what"] and "Insufficient cpu" in trouble["what"]
    assert "To request less cpu: --worker_resource_request" in trouble["remedy"]
    text = elasticdl("status", "large", "-n", namespace)
    assert "large  starting" in text and "worker-0: unschedulable" in text
    assert elasticdl("stop", "large", "--now", "-n", namespace).startswith("large stopped")


def test_a_master_whose_image_is_not_there_is_pending_with_the_remedy_and_can_be_stopped(
    namespace: str, data: Path
) -> None:
    submit(namespace, data, "noimage", image_name="elasticdl:not-there", image_pull_policy="Never")
    found = until(lambda: "image" in (s := status("noimage", namespace))["reason"] and s)
    assert (found["state"], found["status"]) == ("pending", None)
    text = elasticdl("status", "noimage", "-n", namespace)
    assert "noimage is pending; nothing has started yet: its master cannot start: its image is not on the node" in text
    assert "(elasticdl:not-there)" in text
    assert "or allow pulling: --image_pull_policy=IfNotPresent." in text
    said = elasticdl("stop", "noimage", "-n", namespace)
    assert "noimage stopped: nothing of it is left" in said
    assert "noimage" not in elasticdl("list", "-n", namespace)


def test_an_image_that_cannot_be_pulled_is_reported_with_the_remedy(
    namespace: str, data: Path, stop_now: Callable[[str], None]
) -> None:
    """The kubelet's message for a registry that does not exist: nothing listens on the node's port 9."""
    submit(namespace, data, "nopull", image_name="127.0.0.1:9/none:1", image_pull_policy="IfNotPresent")
    text = until(lambda: "ImagePullBackOff" in (said := elasticdl("status", "nopull", "-n", namespace)) and said)
    assert "nopull is pending; nothing has started yet: its master cannot start: its image cannot be pulled" in text
    assert "(127.0.0.1:9/none:1): ImagePullBackOff: " in text
    assert "Check --image_name, and that the nodes can pull the image: `elasticdl zoo push" in text
    stop_now("nopull")


def test_a_job_whose_workers_run_out_of_memory_fails_with_the_flag(namespace: str, data: Path) -> None:
    small = {"worker_resource_request": "cpu=0.05,memory=60Mi", "worker_resource_limit": "cpu=1,memory=60Mi"}
    submit(namespace, data, "starved", enable_automate_memory="false", relaunch_on_worker_failure="1", **small)
    found = until(lambda: (s := status("starved", namespace))["state"] == "failed" and s, seconds=300)
    assert found["status"] is not None and found["status"]["incidents"] == {"out of memory": 2}, found
    text = elasticdl("status", "starved", "-n", namespace)
    assert "worker-1 failed 2 times: out of memory: the kernel killed it at its limit of 60Mi" in text
    assert re.search(r'remedy +Give it more memory: --worker_resource_request="memory=…"', text)


def test_a_master_that_runs_out_of_memory_is_reported_with_the_flag(namespace: str, data: Path) -> None:
    submit(namespace, data, "tight", master_resource_request="memory=20Mi", master_resource_limit="memory=20Mi")
    found = until(lambda: (s := status("tight", namespace))["state"] == "failed" and s, seconds=300)
    assert "out of memory: the kernel killed it at its limit of" in found["reason"]
    assert any("--master_resource_request" in trouble["remedy"] for trouble in found["troubles"])
    text = elasticdl("status", "tight", "-n", namespace)
    assert re.search(r'remedy +Give it more memory: --master_resource_request="memory=…"', text)


def test_a_missing_secret_is_reported_by_name(namespace: str, data: Path, stop_now: Callable[[str], None]) -> None:
    missing = {"spec": {"containers": [{"name": "main", "envFrom": [{"secretRef": {"name": "hf-token"}}]}]}}
    submit(namespace, data, "nosecret", cluster_spec_json=json.dumps(missing))
    found = until(lambda: "hf-token" in (s := status("nosecret", namespace))["reason"] and s)
    assert found["state"] == "pending"
    assert 'CreateContainerConfigError: secret "hf-token" not found' in found["reason"]
    assert found["troubles"][0]["replicas"][0] == "master"
    assert found["troubles"][0]["remedy"].startswith("Create the secret hf-token in the job's namespace")
    stop_now("nosecret")


def test_following_outlives_a_master_and_ends_with_the_job_that_is_stopped_with_a_checkpoint(
    namespace: str, running: str
) -> None:
    """The last test with the running job, which it stops."""
    command = [sys.executable, "-m", "elasticdl", "logs", "runner", "all", "-f", "--tail=1", "-n", namespace, *WHERE]
    following = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
    assert following.stdout is not None
    following.stdout.readline()  # it follows before anything happens
    kubectl("delete", "pod", "elasticdl-runner-master", "--wait=false", namespace=namespace)
    until(lambda: (now := status("runner", namespace)["status"]) and now["master_starts"] == 2)
    said = elasticdl("stop", "runner", "-n", namespace)
    text, _ = following.communicate(timeout=60)
    assert following.returncode == 0
    assert re.search(r"master +\| .*\(start 2\): ", text)
    assert re.search(r"worker-\d +\| ", text) and "Job stopped: stopped by `elasticdl stop`" in text
    assert "runner stopped: stopped by `elasticdl stop`; the checkpoint holds version" in said
    assert "--checkpoint_dir_for_init=" in said and f"--namespace={namespace}" in said
    until(lambda: left("runner", namespace) == ["pod/elasticdl-runner-master"])
    ended = status("runner", namespace)
    assert (ended["state"], ended["status"]["phase"]) == ("stopped", "stopped")
    assert "runner stopped: stopped by" in elasticdl("status", "runner", "-n", namespace)
    assert "Job stopped" in elasticdl("logs", "runner", "-n", namespace)
    assert "not running: it stopped" in elasticdl("stop", "runner", "-n", namespace, code=2)


@pytest.mark.long
def test_the_command_that_stop_prints_goes_on_with_the_job_wherever_it_is_typed(
    namespace: str, data: Path, tmp_path: Path
) -> None:
    (data.parent / "pods.py").write_text("def with_pod(pod):\n    pod['metadata']['labels']['team'] = 'blue'\n")
    submit(namespace, data, "twice", cluster_spec="pods.py")
    until(lambda: trains("twice", namespace))
    said = elasticdl("stop", "twice", "-n", namespace).splitlines()
    assert said[-2] == "Resume it with"
    words = shlex.split(said[-1])
    assert words[:2] == ["elasticdl", "train"]
    assert {f"--cluster_spec={data.parent / 'pods.py'}", f"--namespace={namespace}", *WHERE} <= set(words)
    elasticdl(*words[1:], cwd=tmp_path)
    until(lambda: trains("twice", namespace))
    assert "Starting from the checkpoint in" in elasticdl("logs", "twice", "-n", namespace)
    assert kubectl("get", "pods", "-l", "team=blue", "-o", "name", namespace=namespace).count("twice") == 4
    elasticdl("stop", "twice", "--now", "-n", namespace)


def test_stopping_now_leaves_nothing(namespace: str, data: Path) -> None:
    submit(namespace, data, "cut")
    until(lambda: trains("cut", namespace))
    assert elasticdl("stop", "cut", "--now", "-n", namespace) == "cut stopped: nothing of it is left\n"
    until(lambda: not left("cut", namespace))
    assert "no such job" in elasticdl("status", "cut", "-n", namespace, code=2)
