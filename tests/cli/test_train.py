"""`elasticdl train` with real processes: how it ends, what it prints, and that nothing is left of it."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from safetensors.numpy import load_file

from elasticdl.job.names import JobPaths
from tests.cli.launched import (
    ESCAPE,
    MODELS,
    ROOT,
    Launched,
    elasticdl,
    environment,
    launched,
    port_of,
    run_on_terminal,
    write_ids,
)

pytestmark = pytest.mark.processes

SMALL = ("--num_workers=1", "--minibatch_size=32", "--num_epochs=2")
LONG = ("--num_workers=1", "--minibatch_size=4", "--num_epochs=100")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ids(tmp_path_factory.mktemp("train") / "ids", 2000)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp("finished")
    valid = write_ids(folder / "valid", 64)
    flags = (*SMALL, f"--validation_data={valid}", f"--output={folder / 'model'}")
    with launched(folder / "jobs", "small", data, *flags) as job:
        job.wait()
        yield job


def assert_nothing_is_left(job: Launched) -> None:
    assert job.left_over() == []
    with socket.socket() as test:  # no process listens on the master's port, or holds it
        test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        test.bind(("127.0.0.1", port_of(job.paths)))


def test_a_job_that_succeeds_says_what_came_of_it(finished: Launched) -> None:
    assert finished.process.returncode == 0
    assert "small succeeded: all 4000 records are trained" in finished.lines
    summary = dict(line.strip().split("  ", 1) for line in finished.lines if line.startswith("  "))
    summary = {label: text.strip() for label, text in summary.items()}
    assert summary["steps"] == "126"
    assert summary["records trained"] == "4,000 of 4,000, 2 epochs"
    assert summary["metrics"].startswith("mean_prediction ")
    assert summary["logs"] == str(finished.paths.logs)
    assert Path(summary["model"], "manifest.json").exists()


def test_output_that_is_no_terminal_is_plain_lines_of_the_master(finished: Launched) -> None:
    assert ESCAPE.search(finished.output) is None
    assert any("Evaluation metrics[v=126]: {'mean_prediction':" in line for line in finished.lines)
    assert not any(line.startswith("====") for line in finished.lines)


def test_nothing_outlives_a_job_that_succeeded(finished: Launched) -> None:
    assert_nothing_is_left(finished)
    assert not finished.paths.launcher_socket.exists()


def test_the_result_is_kept_for_programs(finished: Launched) -> None:
    result = json.loads(finished.paths.result.read_bytes())
    assert (result["outcome"], result["exit_code"]) == ("succeeded", 0)
    assert int(result["status"]["records_done"]) == 4000
    assert result["elapsed_seconds"] > 0


def test_the_token_is_for_its_owner_only(finished: Launched) -> None:
    assert finished.paths.token.stat().st_mode & 0o077 == 0
    assert finished.paths.launcher_socket.parent.stat().st_mode & 0o077 == 0


def test_a_finished_jobs_name_can_be_used_again_and_its_state_is_kept_aside(finished: Launched, data: Path) -> None:
    state_dir = finished.paths.state_dir
    with launched(state_dir, "small", data, *SMALL) as job:
        assert job.wait() == 0
    assert "An earlier job small (succeeded) is kept in" in job.output
    assert (finished.paths.root / "previous" / "result.json").exists()


def test_one_interrupt_stops_with_a_checkpoint_and_the_printed_command_goes_on_from_it(tmp_path: Path) -> None:
    data, model = write_ids(tmp_path / "ids", 4000), tmp_path / "model"
    flags = ("--num_workers=1", "--minibatch_size=8", "--num_epochs=2", f"--output={model}")
    with launched(tmp_path / "jobs", "stopped", data, *flags) as job:
        job.wait_until_training()
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130
    assert "Stopping: the servers write a checkpoint. Ctrl-C again stops at once, without a checkpoint." in job.lines
    assert any(line.startswith("stopped stopped: interrupted by SIGINT") for line in job.lines)
    assert_nothing_is_left(job)
    [checkpoint] = job.paths.checkpoint.iterdir()
    assert (checkpoint / "manifest.json").exists()
    command = shlex.split(job.lines[job.lines.index("Resume it with") + 1])
    assert f"--checkpoint_dir_for_init={checkpoint}" in command

    again = Launched.by_command(command, job.paths)
    try:
        assert again.wait() == 0
    finally:
        again.end()
    assert f"Starting from the checkpoint in {checkpoint}." in again.lines
    [scalar] = load_file(model / "model.safetensors").values()
    assert scalar.item() == -8000  # every record of both epochs, exactly once, over the stop


def test_two_interrupts_stop_at_once(tmp_path: Path, data: Path) -> None:
    with launched(tmp_path / "jobs", "hasty", data, *LONG) as job:
        job.wait_until_training()
        [worker] = job.replicas("worker")
        worker.suspend()  # a job that cannot stop gracefully
        job.process.send_signal(signal.SIGINT)
        job.wait_for("Stopping")
        asked = time.monotonic()
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130
    assert time.monotonic() - asked < 5
    assert "hasty stopped: at once by SIGINT; no checkpoint was written" in job.lines
    assert_nothing_is_left(job)


def test_a_killed_launcher_takes_everything_along_and_the_job_shows_as_died(tmp_path: Path, data: Path) -> None:
    with launched(tmp_path / "jobs", "orphaned", data, *LONG) as job:
        job.wait_until_training()
        replicas = psutil.Process(job.process.pid).children(recursive=True)
        job.process.kill()
        job.process.wait(10)
        _, alive = psutil.wait_procs(replicas, timeout=10)
    assert alive == []
    assert_nothing_is_left(job)
    [shown] = json.loads(elasticdl("list", "--json", state_dir=tmp_path / "jobs").stdout)
    assert (shown["name"], shown["state"]) == ("orphaned", "died")


def test_a_killed_master_is_started_again_and_the_job_finishes(tmp_path: Path, data: Path) -> None:
    model = tmp_path / "model"
    flags = ("--num_workers=1", "--minibatch_size=4", "--num_epochs=2", f"--output={model}")
    with launched(tmp_path / "jobs", "headless", data, *flags) as job:
        job.wait_until_training()
        [master] = job.replicas("master")
        master.kill()
        job.wait_for("The master was killed by SIGKILL; restarting it")
        assert job.wait() == 0
    assert any(line.split() == ["master", "restarted", "once"] for line in job.lines)
    [scalar] = load_file(model / "model.safetensors").values()
    assert scalar.item() == -4000


def test_a_master_that_cannot_run_fails_the_job_with_its_last_lines(tmp_path: Path, data: Path) -> None:
    paths = JobPaths(tmp_path / "jobs", "broken")
    with launched(tmp_path / "jobs", "broken", data, *SMALL, ELASTICDL_FAULTS="no.such.point@*:1") as job:
        assert job.wait() == 1
    assert any(line.startswith("broken failed: the master failed 4 times: exit code 1") for line in job.lines)
    assert "no fault point 'no.such.point'" in job.output
    assert json.loads(paths.result.read_bytes())["outcome"] == "failed"
    assert job.left_over() == []


def test_a_terminated_check_starts_nothing(tmp_path: Path, data: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("print('importing')\nimport time\ntime.sleep(60)\n")
    flags = (*SMALL, f"--model_zoo={tmp_path}", "--model_def=slow.custom_model")
    command = [sys.executable, "-m", "elasticdl", "train", f"--training_data={data}", "--job_name=slow", *flags]
    process = subprocess.Popen(
        [*command, f"--state_dir={tmp_path / 'jobs'}"], cwd=ROOT, env=environment(), text=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    while "importing" not in process.stdout.readline():
        assert process.poll() is None
    checks = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=20)
    assert process.returncode == 143
    assert "Interrupted; nothing was started." in rest
    assert psutil.wait_procs(checks, timeout=10)[1] == []
    assert list((tmp_path / "jobs").iterdir()) == []  # no trace of a job that never began


def test_a_terminal_shows_a_live_view(tmp_path: Path, data: Path) -> None:
    valid = write_ids(tmp_path / "valid", 64)
    flags = [f"--validation_data={valid}", "--evaluation_steps=50", "--num_workers=1", "--minibatch_size=8"]
    command = [sys.executable, "-m", "elasticdl", "train", f"--training_data={data}", "--job_name=seen", *flags]
    command += [f"--state_dir={tmp_path / 'jobs'}", f"--model_zoo={MODELS}", "--model_def=witness.custom_model"]
    code, raw = run_on_terminal([*command, "--num_epochs=4"])
    assert code == 0
    text = ESCAPE.sub("", raw)
    for shown in ("checking model and data", "starting", "of 8,000 records", "worker-0", "working", "records/s"):
        assert shown in text
    assert "evaluation at step" in text
    assert "Ctrl-C stops with a checkpoint, twice without." in text
    assert "seen succeeded: all 8000 records are trained" in text
    assert raw.rstrip().endswith(str(tmp_path / "jobs" / "seen" / "logs"))
    assert raw.count("\x1b[?25l") == raw.count("\x1b[?25h")  # the cursor is back
