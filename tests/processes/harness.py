"""Real jobs in real processes: started by the command line, watched through the master, killed with real signals."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import grpc
import psutil
from safetensors.numpy import load_file

from elasticdl import __version__
from elasticdl.data.recordio import RecordIOWriter
from elasticdl.job.names import ENV_REPLICA, JobPaths
from elasticdl.wire import auth
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_service import ControlStub

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 270.0  # below the limit of a test, so that the story of a job that hangs is told
OURS = re.compile("elasticdl/(worker|strategies)")  # frames of these are not in a user's traceback


def write_ids(directory: Path, records: int, files: int = 2) -> Path:
    """Records that are nothing but their own number, for the witness model."""
    directory.mkdir(parents=True, exist_ok=True)
    bounds = [records * f // files for f in range(files + 1)]
    for f in range(files):
        with RecordIOWriter(directory / f"part-{f}.recordio") as writer:
            for i in range(bounds[f], bounds[f + 1]):
                writer.write(struct.pack("<q", i))
    return directory


class JobEnded(AssertionError):
    """There is no job left to watch."""


@dataclass
class RunningJob:
    """One `elasticdl train` process and what can be seen of it."""

    paths: JobPaths
    process: subprocess.Popen[str]
    output: Path
    deadline_seconds: float = DEADLINE_SECONDS
    kills: list[str] = field(default_factory=list)
    _signalled: set[int] = field(default_factory=set)

    def end(self) -> None:
        """See that nothing of the job is left, whatever became of it."""
        if self.process.poll() is None:
            self.process.kill()  # takes every replica with it
            self.process.wait()

    # Watching.

    def statuses(self) -> Iterator[pb.Status]:
        """Statuses as they come, over restarts of the master, until the job ends."""
        began = time.monotonic()
        while self.process.poll() is None:
            if time.monotonic() - began > self.deadline_seconds:
                raise TimeoutError(f"the job did not end in {self.deadline_seconds:.0f} s:\n{self.story()}")
            try:
                address, token = self.paths.master_address.read_text(), self.paths.token.read_text()
                with grpc.insecure_channel(address) as channel:
                    watch = ControlStub(channel).Watch(pb.WatchRequest(), metadata=auth.metadata(token), timeout=60)
                    yield from watch
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.2)
            except (OSError, grpc.RpcError):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.1)  # no master yet, or none at the moment

    def wait_until(self, condition: Callable[[pb.Status], bool]) -> pb.Status:
        """The first status for which the condition holds."""
        for status in self.statuses():
            if condition(status):
                return status
        raise JobEnded(f"the job ended before the condition held:\n{self.story()}")

    def finish(self) -> tuple[int, dict[str, object]]:
        """Exit code and result of the job."""
        code = self.process.wait(self.deadline_seconds)
        assert self.paths.result.exists(), f"exit code {code}, no result:\n{self.story()}"
        return code, json.loads(self.paths.result.read_text())

    def replicas(self) -> dict[str, psutil.Process]:
        """The job's processes by replica name."""
        found = {}
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    name = process.environ().get(ENV_REPLICA, "")
                    if name:
                        found[name] = process
        return found

    def story(self) -> str:
        parts = [self.output.read_text()[-3000:]]
        for log in sorted(self.paths.logs.glob("*.log")):
            parts.append(f"--- {log.name}\n{log.read_text()[-1500:]}")
        return "\n".join(parts)

    # Killing.

    def kill(self, name: str, signum: int = signal.SIGKILL) -> bool:
        """Whether there was a process of this name to send the signal to, and not one that had got it already."""
        process = self.replicas().get(name)
        if process is None or process.pid in self._signalled:
            return False
        try:
            process.send_signal(signum)
        except psutil.NoSuchProcess:
            return False
        self._signalled.add(process.pid)
        self.kills.append(name)
        return True

    def kill_training_worker(
        self, status: pb.Status, choose: Callable[[list[str]], str] = min, signum: int = signal.SIGKILL
    ) -> bool:
        """Kill a worker that holds a lease, so that it hits training and not an import."""
        training = [r.name for r in status.replicas if r.role == "worker" and r.leases and r.name not in self.kills]
        return bool(training) and self.kill(choose(training), signum)


def start(tmp: Path, job: str, *flags: str, env: dict[str, str] | None = None) -> RunningJob:
    """`elasticdl train` with a state directory of its own."""
    output = tmp / f"{job}.out"
    with output.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "elasticdl", "train", f"--job_name={job}", f"--state_dir={tmp / 'state'}", *flags],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(env or {})},
        )
    job_started = RunningJob(JobPaths(tmp / "state", job), process, output)
    started.append(job_started)
    return job_started


started: list[RunningJob] = []


def end_all() -> None:
    """For after a test: a job that it left running would slow the next ones down."""
    while started:
        started.pop().end()


def start_witness(
    tmp: Path, job: str, *flags: str, model: str = "witness", records: int = 1000, epochs: int = 2,
    servers: int = 2, workers: int = 2, env: dict[str, str] | None = None,
) -> RunningJob:  # fmt: skip
    data = write_ids(tmp / f"ids-{records}", records)
    return start(
        tmp, job, "--model_zoo=tests/models", f"--model_def={model}.custom_model", f"--training_data={data}",
        f"--num_epochs={epochs}", "--minibatch_size=8", "--num_minibatches_per_task=4", f"--num_ps_pods={servers}",
        f"--num_workers={workers}", f"--aux_params=num_servers={servers}", f"--output={tmp / job}-model", *flags,
        env=env,
    )  # fmt: skip


def audit_witness(model: Path, records: int, epochs: int, servers: int, averaged: int = 1) -> None:
    """Every row says how often its record was trained, each scalar how many records its server saw.

    In a synchronous job each step is the mean of `averaged` batches, so that a record moves it by as much less.
    """
    table = load_file(model / "seen.safetensors")
    ids, rows = table["ids"], table["rows"].reshape(-1)
    assert sorted(ids.tolist()) == list(range(records)), "some records were never trained"
    wrong = {int(i): averaged * float(-r) for i, r in zip(ids, rows, strict=True) if averaged * r != -epochs}
    assert not wrong, f"trained another number of times than {epochs}: {wrong}"
    dense = load_file(model / "model.safetensors")
    seen = {name: averaged * float(-value.reshape(())) for name, value in dense.items() if name.startswith("scalars")}
    assert len(seen) == servers
    assert set(seen.values()) == {float(epochs * records)}, f"records seen by each server: {seen}"


def check_witness(
    job: RunningJob, model: Path, records: int, epochs: int, servers: int, averaged: int = 1
) -> dict[str, Any]:
    """The witness job succeeded, and trained every record of every epoch exactly once; its last status."""
    code, result = job.finish()
    assert code == 0 and result["outcome"] == "succeeded", f"{result}\n{job.story()}"
    status = result["status"]
    assert isinstance(status, dict)
    assert int(status["records_done"]) == records * epochs
    assert [int(e["records"]) for e in status["epochs_done"]] == [records] * epochs
    audit_witness(model, records, epochs, servers, averaged)
    return status


def about() -> dict[str, Any]:
    """What a report says of where it was made."""
    return {"date": date.today().isoformat(), "elasticdl": __version__, "python": platform.python_version()}
