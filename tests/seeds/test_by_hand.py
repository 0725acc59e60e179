"""002: a master and workers started by hand, each with files of its own; between them there is only the network."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from elasticdl.cli import by_hand
from elasticdl.errors import UsageError
from elasticdl.job.names import JobPaths
from elasticdl.wire import control_pb2 as pb
from tests.processes.harness import ROOT, RunningJob, check_witness, started, write_ids

pytestmark = pytest.mark.processes

RECORDS, EPOCHS = 3000, 2  # some fifteen seconds: long enough for what happens to it
W1, W2 = "elasticdl-test-worker-1", "elasticdl-test-worker-2"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Terminal:
    """A folder, a home and a copy of the model file: what a container has for itself."""

    folder: Path

    def start(self, module: str, *flags: str) -> tuple[subprocess.Popen[str], Path]:
        home, output = self.folder / "home", self.folder / "output"
        home.mkdir(parents=True, exist_ok=True)
        models = self.folder / "examples"
        shutil.copytree(ROOT / "tests" / "models", models, dirs_exist_ok=True)
        env = {k: v for k, v in os.environ.items() if not k.startswith("ELASTICDL_")}
        with output.open("a") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", f"elasticdl.python.elasticdl.{module}.main", "--model_file=examples/witness.py",
                 "--codec_type=tf_example", "--log_level=INFO", *flags],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, text=True, cwd=self.folder,
                env={**env, "HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        return process, output


@dataclass
class ByHand:
    """The two commands of 002 with a port, a model file and data of the test's."""

    tmp: Path
    port: int

    def master(self, *flags: str, epochs: int = EPOCHS) -> RunningJob:
        data = write_ids(self.tmp / "ids", RECORDS)
        process, output = Terminal(self.tmp / "master").start(
            "master", "--job_name=test", f"--training_data_dir={data}", f"--evaluation_data_dir={data}",
            "--records_per_task=30", f"--num_epochs={epochs}", "--grads_to_wait=2", "--minibatch_size=10",
            "--aux_params=num_servers=1", f"--master_port={self.port}", f"--output={self.tmp / 'model'}", *flags,
        )  # fmt: skip
        job = RunningJob(JobPaths(self.tmp / "master" / "home" / ".elasticdl" / "jobs", "test"), process, output)
        started.append(job)
        return job

    def worker(self, index: int, *flags: str) -> RunningJob:
        process, output = Terminal(self.tmp / f"worker-{index}").start(
            "worker", f"--worker_id={index}", f"--master_addr=localhost:{self.port}", *flags
        )
        worker = RunningJob(JobPaths(self.tmp, f"worker-{index}"), process, output)
        started.append(worker)
        return worker


def at_work(status: pb.Status, name: str) -> bool:
    return any(r.name == name and r.leases for r in status.replicas)


def test_workers_and_the_master_are_killed_and_every_record_is_trained_exactly_once(tmp_path: Path) -> None:
    hand = ByHand(tmp_path, free_port())
    master = hand.master()
    first = hand.worker(1)
    master.wait_until(lambda s: s.version >= 4 and at_work(s, W1))
    first.process.kill()
    first.process.wait()
    again, second = hand.worker(1), hand.worker(2)
    master.wait_until(lambda s: s.version >= 12 and at_work(s, W1) and at_work(s, W2))
    assert master.kill("elasticdl-test-master")
    master.wait_until(lambda s: s.master_starts == 2 and s.version >= 20)
    status = check_witness(master, tmp_path / "model", RECORDS, EPOCHS, 1, averaged=2)
    assert [w.process.wait(30) for w in (again, second)] == [0, 0], again.output.read_text()
    said = master.output.read_text()
    assert said.count("No --token_file is given") == 1
    assert f"any process that reaches port {hand.port} of this machine can join" in said
    assert f"{W1} is gone: worker 1 was started again" in said or f"{W1} was started by hand" in said
    assert int(status["version"]) == EPOCHS * RECORDS // 10 // 2
    assert "Evaluation service started" in said and "Evaluation service stopped" in said


@pytest.mark.long
def test_with_a_token_file_only_workers_that_have_it_take_part(tmp_path: Path) -> None:
    hand = ByHand(tmp_path, free_port())
    (tmp_path / "secret").write_text("only we know\n")
    (tmp_path / "other").write_text("a guess\n")
    master = hand.master(f"--token_file={tmp_path / 'secret'}")
    stranger = hand.worker(3, f"--token_file={tmp_path / 'other'}")
    assert stranger.process.wait(120) == 1
    assert "refused: not the token of this job" in stranger.output.read_text()
    worker = hand.worker(1, f"--token_file={tmp_path / 'secret'}", "--minibatch_size=32")
    master.wait_until(lambda s: at_work(s, W1))
    twin = hand.worker(1, f"--token_file={tmp_path / 'secret'}")
    assert twin.process.wait(120) == 1
    assert "worker 1 is already running: use another --worker_id" in twin.output.read_text()
    check_witness(master, tmp_path / "model", RECORDS, EPOCHS, 1, averaged=2)
    assert worker.process.wait(30) == 0
    assert "--minibatch_size=32 changes nothing: the master uses 10" in worker.output.read_text()
    assert "No --token_file is given" not in master.output.read_text()


@pytest.mark.long
def test_ctrl_c_ends_the_job_with_a_checkpoint_and_sends_the_worker_home(tmp_path: Path) -> None:
    hand = ByHand(tmp_path, free_port())
    master, worker = hand.master(epochs=500), hand.worker(1)
    master.wait_until(lambda s: at_work(s, W1))
    master.process.send_signal(signal.SIGINT)
    code, result = master.finish()
    assert (code, result["outcome"]) == (130, "stopped"), master.story()
    assert worker.process.wait(30) == 0


MODEL = "--model_file=examples/witness.py"


@pytest.mark.parametrize(
    ("read", "flags", "said"),
    [
        (by_hand.worker_job, ["--worker_id=1"], "--master_addr: needed: it names the master"),
        (by_hand.master, [MODEL, "--job_name=test"], "--training_data: needed to train"),
        (by_hand.master, [MODEL, "--token_file=nowhere", "--training_data=x"], "--token_file=nowhere: cannot be read"),
        (
            by_hand.master,
            [MODEL, "--distribution_strategy=AllreduceStrategy", "--training_data=x"],
            "has no workers that are started by hand",
        ),
        (by_hand.master, [MODEL, "--encrypt_data_plane", "--training_data=x"], "started by hand have no key"),
        (by_hand.master, ["--job_nam=test"], "Did you mean --job_name?"),
        (by_hand.master, ["--master_addr=localhost:50001"], "--model_def: needed: it names the model"),
    ],
)
def test_what_is_missing_or_wrong_is_said_with_its_remedy(
    read: Callable[[list[str]], object], flags: list[str], said: str
) -> None:
    with pytest.raises(UsageError) as raised:
        read(flags)
    assert said in str(raised.value)


def test_a_worker_needs_to_be_told_nothing_but_where_its_master_is() -> None:
    assert by_hand.worker_job(["--master_addr=localhost:50001"]).master_addr == "localhost:50001"


def test_a_wrong_flag_of_a_worker_is_reported_alone() -> None:
    with pytest.raises(UsageError) as raised:
        by_hand.worker_job(["--master_addr=localhost:50001", "--num_workers=x", "--max_workers=1"])
    (problem,) = raised.value.problems
    assert problem.where == "--num_workers"


def test_that_the_job_is_open_to_all_is_said_once_and_only_where_it_is() -> None:
    words = [MODEL, "--training_data=x"]
    notes = by_hand.master_job(words).notes
    assert [note for note in notes if "token_file" in note] == [
        "No --token_file is given: any process that reaches port 50001 of this machine can join, watch and stop "
        "the job."
    ]
    assert not [note for note in by_hand.master_job([*words, "--token_file=secret"]).notes if "No --token" in note]
