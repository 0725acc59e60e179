"""The demo: trains MNIST elastically on local processes, kills workers on the way, and shows what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
from rich.console import Console
from rich.table import Table

from elasticdl.job.names import ENV_REPLICA, JobPaths
from elasticdl.wire import auth
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_service import ControlStub

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data" / "mnist"
JOB = "demo-mnist"
PATHS = JobPaths(ROOT / "data" / "jobs", JOB)
KILL_AT = (0.25, 0.55)  # of the records


def make_data() -> None:
    """Make the data, and make it anew where an earlier attempt was interrupted."""
    if not (DATA / "_SOURCE").is_file():
        command = [sys.executable, "-m", "elasticdl", "data", "mnist", str(DATA), "--force"]
        subprocess.run(command, check=True, cwd=ROOT)


def statuses(over: threading.Event) -> Iterator[pb.Status]:
    """The job's statuses, as soon as there is a master to ask."""
    while not over.is_set():
        with contextlib.suppress(OSError, grpc.RpcError):
            address, token = PATHS.master_address.read_text(), PATHS.token.read_text()
            with grpc.insecure_channel(address) as channel:
                yield from ControlStub(channel).Watch(pb.WatchRequest(), metadata=auth.metadata(token))
        over.wait(0.3)


def kill_workers(launcher: int, killed: list[str], over: threading.Event) -> None:
    """SIGKILL a worker that is training, at each of the moments."""
    moments = list(KILL_AT)
    for status in statuses(over):
        if not moments or over.is_set():
            return
        training = [r.name for r in status.replicas if r.role == "worker" and r.leases]
        if status.records_total and status.records_done >= moments[0] * status.records_total and training:
            moments.pop(0)
            for process in psutil.Process(launcher).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if process.environ().get(ENV_REPLICA) == training[-1]:
                        process.send_signal(signal.SIGKILL)
                        killed.append(training[-1])
                        break


def main() -> int:
    make_data()
    command = [
        sys.executable, "-m", "elasticdl", "train", "--model_zoo=model_zoo",
        "--model_def=mnist.mnist_functional_api.custom_model", f"--training_data={DATA / 'train'}",
        f"--validation_data={DATA / 'test'}", "--num_epochs=1", "--minibatch_size=64", "--num_minibatches_per_task=2",
        "--num_ps_pods=1", "--num_workers=2", "--evaluation_steps=200", f"--job_name={JOB}",
        "--distribution_strategy=ParameterServerStrategy", f"--state_dir={PATHS.state_dir}", "--audit=true",
        f"--output={ROOT / 'data' / 'mnist-model'}",
    ]  # fmt: skip
    for stale in (PATHS.result, PATHS.master_address):
        stale.unlink(missing_ok=True)
    killed: list[str] = []
    over = threading.Event()
    with subprocess.Popen(command, cwd=ROOT, env=os.environ) as train:
        killer = threading.Thread(target=kill_workers, args=(train.pid, killed, over), daemon=True)
        killer.start()
        try:
            code = train.wait()
        except KeyboardInterrupt:  # the job got it too, and ends by itself
            code = train.wait()
        over.set()
    if not PATHS.result.exists():
        return code
    show(json.loads(PATHS.result.read_text()), killed)
    if code == 0 and len(killed) < len(KILL_AT):
        print(f"only {len(killed)} of {len(KILL_AT)} workers were killed", file=sys.stderr)
        return 1
    return code


def show(result: dict[str, object], killed: list[str]) -> None:
    status = result["status"]
    assert isinstance(status, dict)
    evaluations = status.get("evaluations", [])
    accuracy = f"{evaluations[-1]['metrics']['accuracy']:.4f}" if evaluations else "none"
    recoveries = ", ".join(f"{s:.2f}" for s in status.get("recovery_seconds", []))
    source = DATA / "_SOURCE"
    table = Table(title=f"{JOB}: {result['outcome']}", show_header=False, title_justify="left")
    table.add_row("data", source.read_text().splitlines()[-1] if source.exists() else str(DATA))
    table.add_row("steps", str(status["version"]))
    table.add_row("records trained", f"{int(status['records_done']):,} (audit: {status.get('audit') or 'not made'})")
    table.add_row("kills survived", f"{len(killed)} ({', '.join(killed)})" if killed else "0")
    table.add_row("recovery seconds", recoveries or "none needed")
    table.add_row("accuracy", accuracy)
    table.add_row("model", os.path.relpath(str(status.get("output", "")), ROOT))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
