"""`elasticdl list | status | logs | stop` with jobs that run, have ended, or were killed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl.cli.job_logs import choose, lines
from elasticdl.cli.job_lookup import JobLookup
from elasticdl.cli.main import main
from elasticdl.errors import UsageError
from elasticdl.job.names import JobPaths
from tests.cli.launched import ROOT, Launched, elasticdl, environment, launched, write_ids

LONG = ("--num_workers=1", "--minibatch_size=4", "--num_epochs=200")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ids(tmp_path_factory.mktemp("jobs") / "ids", 2000)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[Launched]:
    """A job that trains for as long as the tests of this file look at it."""
    with launched(tmp_path_factory.mktemp("running") / "jobs", "runner", data, *LONG) as job:
        job.wait_until_training()
        yield job


def told(job: Launched, *words: str) -> str:
    done = elasticdl(*words, state_dir=job.paths.state_dir)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.processes
def test_a_running_job_is_listed_with_its_progress(running: Launched) -> None:
    header, row = told(running, "list").splitlines()
    assert header.split() == ["NAME", "STATE", "PROGRESS", "STARTED", "DURATION"]
    assert re.match(r"runner +running +\d+% of 400,000 records +20", row)


@pytest.mark.processes
def test_the_status_of_a_running_job_names_its_replicas(running: Launched) -> None:
    text = told(running, "status", "runner")
    assert "runner  training" in text
    assert re.search(r"worker-0 +working", text)
    found = json.loads(told(running, "status", "runner", "--json"))
    assert found["state"] == "running"
    assert found["launcher_pid"] == running.process.pid
    assert found["status"]["records_done"] > 0
    assert {r["short_name"] for r in found["status"]["replicas"]} == {"ps-0", "worker-0"}


@pytest.mark.processes
def test_a_second_job_of_the_name_is_refused_while_the_first_runs(running: Launched, data: Path) -> None:
    with launched(running.paths.state_dir, "runner", data, *LONG) as second:
        assert second.wait() == 2
    assert "--job_name=runner: job runner is running since" in second.output
    assert running.process.poll() is None
    assert running.replicas("worker") != []


@pytest.mark.processes
def test_logs_are_the_masters_unless_a_replica_is_named(running: Launched) -> None:
    assert "Master of runner at 127.0.0.1:" in told(running, "logs", "runner")
    assert "Loss = " in told(running, "logs", "runner", "worker-0")
    assert "Loss = " in told(running, "logs", "runner", "elasticdl-runner-worker-0")
    everything = told(running, "logs", "runner", "all").splitlines()
    assert {line.split(" | ")[0].strip() for line in everything} == {"master", "ps-0", "worker-0"}
    assert len(told(running, "logs", "runner", "all", "--tail", "3").splitlines()) == 3


@pytest.mark.processes
def test_watching_prints_a_line_per_change_where_there_is_no_terminal(running: Launched) -> None:
    command = [sys.executable, "-m", "elasticdl", "status", "runner", "--watch"]
    command += [f"--state_dir={running.paths.state_dir}"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first, second = process.stdout.readline(), process.stdout.readline()
    process.terminate()
    process.communicate(timeout=10)
    assert first.startswith("training, ") and second.startswith("training, ")
    assert first != second
    assert running.process.poll() is None


@pytest.mark.processes
def test_following_a_log_shows_new_lines_and_ends_with_the_job_that_is_stopped(running: Launched) -> None:
    """The last look at the running job: it ends here."""
    command = [sys.executable, "-m", "elasticdl", "logs", "runner", "all", "-f", "--tail=1"]
    command += [f"--state_dir={running.paths.state_dir}"]
    following = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
    assert following.stdout is not None
    following.stdout.readline()  # it looks on before the job is stopped
    stopped = told(running, "stop", "runner")
    assert running.wait() == 143  # a job that was stopped is not done
    text, _ = following.communicate(timeout=20)
    assert following.returncode == 0
    assert "worker-0 | " in text
    assert "Job stopped: stopped by `elasticdl stop`" in text
    assert "runner stopped: stopped by `elasticdl stop`; the checkpoint holds version" in stopped
    assert f"--checkpoint_dir_for_init={running.paths.checkpoint}/version-" in stopped
    assert running.left_over() == []


@pytest.mark.processes
def test_stopping_now_ends_a_job_without_a_checkpoint(tmp_path: Path, data: Path) -> None:
    with launched(tmp_path / "jobs", "cut", data, *LONG) as job:
        job.wait_until_training()
        assert told(job, "stop", "cut", "--now") == "cut stopped: at once by SIGQUIT; no checkpoint was written\n"
        assert job.wait() == 131
    assert job.left_over() == []
    assert not job.paths.checkpoint.exists()
    assert re.match(r"cut +stopped +\d+% of", told(job, "list").splitlines()[1])


# Jobs that have ended: a folder is all there is.


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """A job that succeeded, and one whose launcher was killed."""
    for name in ("done", "killed"):
        paths = JobPaths(tmp_path, name)
        paths.logs.mkdir(parents=True)
        paths.job_file.write_text("{}")
        paths.launcher_pid.write_text(f"999999999\n{1_700_000_000.0 + len(name)}\n")
    status = {"job": "done", "phase": "succeeded", "records_done": "40", "records_total": "40", "version": "5"}
    result = {"outcome": "succeeded", "reason": "all 40 records are trained", "status": status}
    JobPaths(tmp_path, "done").result.write_text(json.dumps(result))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str, state_dir: Path, code: int = 0) -> str:
    assert main([*words, f"--state_dir={state_dir}"]) == code
    output, complaint = capsys.readouterr()
    return complaint if code else output


def test_ended_jobs_are_listed_the_newest_first(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split()[:2] for line in said(capsys, "list", state_dir=state_dir).splitlines()[1:]]
    assert rows == [["killed", "died"], ["done", "succeeded"]]


def test_the_list_for_programs(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    died, done = json.loads(said(capsys, "list", "--json", state_dir=state_dir))
    assert (died["state"], died["status"]) == ("died", None)
    assert (done["state"], done["status"]["records_done"]) == ("succeeded", 40)


def test_no_jobs_are_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There are no jobs in" in said(capsys, "list", state_dir=tmp_path / "none")
    assert json.loads(said(capsys, "list", "--json", state_dir=tmp_path / "none")) == []


def test_the_status_of_an_ended_job_is_its_summary(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "status", "done", state_dir=state_dir).startswith("done succeeded: all 40 records are trained")
    assert "killed died: its launcher (process 999999999)" in said(capsys, "status", "killed", state_dir=state_dir)


def test_an_unknown_job_is_named_with_the_nearest(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "logs", "stop"):
        complaint = said(capsys, command, "kiled", state_dir=state_dir, code=2)
        assert f"elasticdl {command}: kiled: no such job" in complaint
        assert "Did you mean killed?" in complaint


def test_a_job_that_has_ended_cannot_be_stopped(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not running: it succeeded" in said(capsys, "stop", "done", state_dir=state_dir, code=2)


def test_a_dead_launchers_process_id_is_never_signalled(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = JobPaths(state_dir, "killed")
    paths.launcher_pid.write_text(f"{os.getpid()}\n1.0\n")  # another process has this id now
    said(capsys, "stop", "killed", "--now", state_dir=state_dir, code=2)


def test_an_unknown_replica_is_named_with_those_there_are(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (JobPaths(state_dir, "done").logs / "elasticdl-done-worker-0.log").write_text("x\n")
    complaint = said(capsys, "logs", "done", "worker-9", state_dir=state_dir, code=2)
    assert "worker-9: job done has no such replica. Did you mean worker-0? There are worker-0, all." in complaint


def test_lines_of_several_replicas_come_in_the_order_of_time(state_dir: Path) -> None:
    logs = JobPaths(state_dir, "done").logs
    header = "==== elasticdl-done-{} starts at 2026-11-15T09:00:0{}.000+00:00 (uid x) ====\n"
    (logs / "elasticdl-done-master.log").write_text(
        header.format("master", 1) + "[2026-11-15 09:00:02,000] first\n[2026-11-15 09:00:05,000] last\n"
    )
    (logs / "elasticdl-done-worker-0.log").write_text(
        header.format("worker-0", 3) + "a print without time\n[2026-11-15 09:00:04,000] second\nTraceback"
    )
    job = JobLookup(state_dir).find_here("done")
    found = [line.partition(" | ") for line in lines(choose(job, "all"), None)]
    assert [mark.strip() for mark, _, _ in found] == ["master", "master", *["worker-0"] * 4, "master"]
    assert found[5][2] == "Traceback"
    assert lines(choose(job, "all"), 1) == ["master   | [2026-11-15 09:00:05,000] last"]
    assert lines(choose(job, "all"), 0) == []


def test_a_state_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot be read"):
        JobLookup(tmp_path / "file").find_here("j")


def test_the_log_of_the_process_before_this_one(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = JobPaths(state_dir, "done").logs / "elasticdl-done-worker-0.log"
    header = "==== elasticdl-done-worker-0 starts at 2026-11-15T09:00:0{}.000+00:00 (uid x) ====\n"
    log.write_text("".join(f"{header.format(i)}life {i}\n" for i in range(3)))
    shown = said(capsys, "logs", "done", "worker-0", "--previous", state_dir=state_dir)
    assert shown.splitlines() == [header.format(1).strip(), "life 1"]
    complaint = said(capsys, "logs", "done", "worker-0", "--previous", "-f", state_dir=state_dir, code=2)
    assert "Give --follow or --previous." in complaint


# A cluster beside them.


def outside(folder: Path, kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command with this kubeconfig, and jobs in `folder`; its last line of output says whether it used HTTP."""
    code = f"import sys; from elasticdl.cli.main import main; code = main({list(words)!r}); "
    code += "print('aiohttp' in sys.modules); sys.exit(code)"
    env = environment(KUBECONFIG=str(kubeconfig), ELASTICDL_STATE_DIR=str(folder))
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=30)


def test_a_machine_without_a_kubeconfig_asks_no_cluster(state_dir: Path) -> None:
    listed = outside(state_dir, state_dir / "none", "list")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.splitlines()[-1] == "False"
    asked = outside(state_dir, state_dir / "none", "list", "--namespace=team")
    assert asked.returncode == 2
    assert "there is no such file. Name a kubeconfig file, or run inside a cluster." in asked.stderr


def test_a_cluster_that_does_not_answer_is_one_line_beside_the_jobs_of_this_machine(state_dir: Path) -> None:
    config = state_dir / "kubeconfig"
    config.write_text(
        "{apiVersion: v1, kind: Config, current-context: far, contexts: [{name: far, context: {cluster: far}}], "
        'clusters: [{name: far, cluster: {server: "http://127.0.0.1:9"}}]}'
    )
    listed = outside(state_dir, config, "list")
    assert listed.returncode == 0
    (line,) = listed.stderr.splitlines()
    assert line.startswith("Skipped the cluster of far: no answer from http://127.0.0.1:9 within 2 s: Connection")
    rows = [row.split()[:3] for row in listed.stdout.splitlines()[1:-1]]
    assert rows == [["killed", "here", "died"], ["done", "here", "succeeded"]]
    asked = outside(state_dir, config, "status", "nowhere")
    assert asked.returncode == 2
    assert f"no such job in {state_dir} and namespace default of far." in asked.stderr
    assert "Skipped the cluster of far" in asked.stderr
