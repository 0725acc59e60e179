"""The contenders of the all-reduce benchmarks: torchrun, torchft, ElasticDL, each started as its documentation says.

A contender says why it cannot run here (`missing`), or starts a run; a run has a step log, can be given one more worker
(`join`) or one in place of a lost one (`replace`), and ends with everything it started.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

import psutil

from benchmarks.peers.observing import Commit, Mark, Seen
from elasticdl.cli.view import CHANGE_PARTS
from elasticdl.job.names import ENV_REPLICA

ROOT = Path(__file__).resolve().parents[2]
HERE, MODELS = ROOT / "benchmarks" / "peers", ROOT / "benchmarks" / "models"
PEER_LOG = "STEP_LOG"
POLL_SECONDS = 0.1  # times are the workers' own, so that seeing them late costs nothing
RECORDS = 8192  # as in toy.py

# Of our workers' logs: the time and the text; a step; a world; and what else is worth a mark.
LINE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})\] \[\w+\] \[[^\]]+\] (.*)")
STEP = re.compile(r"Loss = \S+, steps = (\d+)")
WORLD = re.compile(r"World (\d+): rank")
MARKS = {
    "ready": re.compile("Ready: "),
    "broken": re.compile("The world broke"),
    "called off": re.compile(r"Abandoned step \d+"),
}


class Failed(Exception):
    """A contender did not do what was asked; the message ends with its last output."""


@dataclass(frozen=True)
class Toy:
    """What is trained: a model of benchmarks/models, and how many records one worker's step has."""

    model: str
    minibatch_size: int
    hidden: int = 0  # of the MLP
    virtual_workers: int = 0  # 0: the default
    standby: int = 0


@dataclass
class Run:
    """One training of one contender, with its step log."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ending: signal.Signals = signal.SIGTERM
    stopped: list[int] = field(default_factory=list)  # processes that take turns with those of other runs

    @property
    def log(self) -> Path:
        return self.folder / "steps"

    def seen(self) -> Seen:
        return Seen.read(self.log)

    def spawn(self, command: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{len(self.processes)}.out").open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **env}, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def wait(self, condition: Callable[[Seen], bool], seconds: float, what: str) -> Seen:
        """The log as soon as it shows this."""
        deadline = time.monotonic() + seconds
        while not condition(seen := self.seen()):
            if time.monotonic() > deadline:
                raise Failed(f"{what}: not within {seconds:.0f} s\n{self.story()}")
            if self.processes[0].poll() is not None:
                raise Failed(f"{what}: it ended with exit code {self.processes[0].returncode}\n{self.story()}")
            time.sleep(POLL_SECONDS)
        return seen

    def turn(self, seconds: float) -> float:
        """Let it run for so long; it is stopped before and afterwards. How long it was awake."""
        began = time.monotonic()
        self.wake()
        time.sleep(seconds)
        self._signal(signal.SIGSTOP)
        spent = time.monotonic() - began
        self.stop()
        return spent

    def stop(self) -> None:
        """Hold everything that it has started, where it is."""
        known: set[int] = set()
        while (found := {p.pid for p in self._alive()}) != known:  # some may have been started meanwhile
            self.stopped, known = sorted(found), found
            self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, what: signal.Signals) -> None:
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, what)

    def _alive(self) -> list[psutil.Process]:
        found = []
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(process.pid)
                found += [root, *root.children(recursive=True)]
        return found

    def join(self) -> None:
        raise Failed("no worker can join here")

    def replace(self) -> None:
        """What replaces a lost worker does so by itself, unless a contender needs help."""

    def breakdown(self, lost: bool) -> dict[str, float]:
        """How long each part of the last change took, where the contender reports it; whether it lost a worker."""
        return {}

    def story(self) -> str:
        outputs = sorted(self.folder.glob("*.out"))
        lines = [
            f"  {out.name}: {line}" for out in outputs for line in out.read_text(errors="replace").splitlines()[-6:]
        ]
        return "\n".join(lines) or "  it printed nothing"

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(self.ending)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in Seen.read(self.log).pids:  # torchrun's workers are in sessions of their own
            with contextlib.suppress(OSError):
                if str(self.log).encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    os.kill(pid, signal.SIGKILL)


class Contender(Protocol):
    name: str

    def missing(self) -> str | None: ...

    def start(self, folder: Path, toy: Toy, workers: int) -> Run: ...


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@functools.cache
def peer_versions(python: str) -> dict[str, str]:
    """Of torch and torchft under the peer's Python; what cannot be imported is left out."""
    if not python:
        return {}
    code = (
        "import importlib.metadata as m\n"
        "for package, module in (('torch', 'torch'), ('torchft-nightly', 'torchft')):\n"
        "  try: __import__(module); print(package, m.version(package))\n"
        "  except ImportError: pass\n"
    )
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())


def _peer_missing(python: str, package: str) -> str | None:
    if not python:
        return "no --peer_python given"
    return None if package in peer_versions(python) else f"{python} has no {package}"


def _toy_flags(toy: Toy) -> list[str]:
    return [f"--model={toy.model}", f"--minibatch_size={toy.minibatch_size}", f"--hidden={toy.hidden}"]


@dataclass
class Torchrun:
    """DDP with a checkpoint every 20 steps; one agent for all workers, or one for each, as on several machines."""

    python: str
    agents: bool = False
    checkpoint_steps: int = 20

    @property
    def name(self) -> str:
        return "torchrun, an agent each" if self.agents else "torchrun"

    def missing(self) -> str | None:
        return _peer_missing(self.python, "torch")

    def start(self, folder: Path, toy: Toy, workers: int) -> Run:
        run = TorchrunRun(folder)
        run.flags = [
            str(HERE / "torchrun_train.py"), *_toy_flags(toy), f"--checkpoint={folder / 'checkpoint.pt'}",
            f"--checkpoint_steps={self.checkpoint_steps}",
        ]  # fmt: skip
        run.command = [self.python, "-m", "torch.distributed.run", "--max-restarts=100"]
        if self.agents:
            # It waits for more agents than the least number for 30 s by default.
            run.command += [
                f"--nnodes={workers}:{workers + 1}", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=toy",
                f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-conf=last_call_timeout=1",
            ]  # fmt: skip
            for _ in range(workers):
                run.join()
        else:
            run.command += ["--standalone", f"--nproc-per-node={workers}"]
            run.join()
        return run


@dataclass
class TorchrunRun(Run):
    command: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)

    def join(self) -> None:
        # By default torch 2.13 keeps one store over all restarts: workers that start again may read the addresses of
        # the dead there and hang (four of them did, three times of three), and an agent that comes later waits in vain.
        env = {PEER_LOG: str(self.log), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        self.spawn([*self.command, *self.flags], env)


@dataclass(frozen=True)
class TorchftSettings:
    """Its knobs; those given here are its defaults, the group's timeout as in its example."""

    heartbeat_interval_ms: int = 100
    heartbeat_timeout_ms: int = 5000
    quorum_tick_ms: int = 100
    join_timeout_ms: int = 60000
    group_timeout_seconds: float = 5.0


# With four workers the fastest of four settings tried; they trained 30 s on a busy machine without a false alarm.
# A heartbeat timeout of 50 ms was no faster.
TUNED = TorchftSettings(
    heartbeat_interval_ms=10, heartbeat_timeout_ms=100, quorum_tick_ms=10, join_timeout_ms=1000,
    group_timeout_seconds=0.25,
)  # fmt: skip


@dataclass
class Torchft:
    python: str
    settings: TorchftSettings = TorchftSettings()
    title: str = "defaults"

    @property
    def name(self) -> str:
        return f"torchft, {self.title}"

    def missing(self) -> str | None:
        return _peer_missing(self.python, "torchft-nightly")

    def start(self, folder: Path, toy: Toy, workers: int) -> Run:
        run, port, s = TorchftRun(folder), free_port(), self.settings
        lighthouse = Path(self.python).parent / "torchft_lighthouse"
        command = [
            str(lighthouse), "--min_replicas=1", f"--bind=127.0.0.1:{port}",
            f"--heartbeat_timeout_ms={s.heartbeat_timeout_ms}", f"--quorum_tick_ms={s.quorum_tick_ms}",
            f"--join_timeout_ms={s.join_timeout_ms}",
        ]  # fmt: skip
        run.spawn(command, {})
        run.env = {PEER_LOG: str(run.log), "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
        run.command = [
            self.python, str(HERE / "torchft_train.py"), *_toy_flags(toy), f"--replicas={workers}",
            f"--heartbeat_interval_ms={s.heartbeat_interval_ms}", f"--group_timeout_seconds={s.group_timeout_seconds}",
        ]  # fmt: skip
        for _ in range(workers):
            run.join()
        return run


@dataclass
class TorchftRun(Run):
    command: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def join(self) -> None:
        self.spawn([*self.command, f"--replica={len(self.processes) - 1}"], self.env)

    replace = join


@dataclass
class ElasticDL:
    """A job of `elasticdl train` on local processes."""

    deterministic: bool = True

    @property
    def name(self) -> str:
        return "elasticdl" if self.deterministic else "elasticdl, not deterministic"

    def missing(self) -> str | None:
        flags = self._flags(Path("/tmp"), Toy("conv", 64), 2)
        command = [sys.executable, "-m", "elasticdl", "train", *flags, "--dry_run"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        return f"`elasticdl train` refuses the job: {done.stderr.strip()[-400:]}" if done.returncode else None

    def start(self, folder: Path, toy: Toy, workers: int) -> Run:
        _write_records(folder / "data", toy.model)
        run = ElasticDLRun(folder, workers=workers)
        command = [sys.executable, "-m", "elasticdl", "train", *self._flags(folder, toy, workers)]
        run.spawn(command, {"PYTHONPATH": str(ROOT)})
        return run

    def _flags(self, folder: Path, toy: Toy, workers: int) -> list[str]:
        flags = [
            "--job_name=toy", f"--state_dir={folder / 'state'}", f"--model_zoo={MODELS}",
            f"--model_def=allreduce_{toy.model}.custom_model", f"--training_data={folder / 'data'}",
            "--distribution_strategy=AllreduceStrategy", f"--minibatch_size={toy.minibatch_size}",
            "--num_epochs=10000", f"--num_workers={workers}", f"--max_workers={workers + 1}",
            f"--deterministic={str(self.deterministic).lower()}", "--log_loss_steps=1",
        ]  # fmt: skip
        flags += [f"--aux_params=hidden={toy.hidden}"] * bool(toy.hidden)
        flags += [f"--virtual_workers={toy.virtual_workers}"] * bool(toy.virtual_workers)
        return flags + [f"--num_standby={toy.standby}"] * bool(toy.standby)


@dataclass
class ElasticDLRun(Run):
    """Its step log is what the workers log: every line has its time, every committed step a line."""

    workers: int = 0
    ending: signal.Signals = signal.SIGQUIT  # as `elasticdl stop --now`
    pids: dict[tuple[str, int], int] = field(default_factory=dict)  # of each start of each worker

    def seen(self) -> Seen:
        commits: list[Commit] = []
        marks: list[Mark] = []
        behind = time.time() - time.monotonic()
        for log in sorted((self.folder / "state" / "toy" / "logs").glob("*worker*.log")):
            pid, generation, start = 0, 0, 0
            for line in log.read_text().splitlines():
                if line.startswith("===="):
                    start, generation = start + 1, 0
                    pid = self._pid(log.stem, start)
                elif found := LINE.match(line):
                    when = datetime.fromisoformat(found[1]).timestamp() + int(found[2]) / 1000 - behind
                    if step := STEP.match(found[3]):
                        commits.append(Commit(when, int(step[1]), pid, generation))
                    elif world := WORLD.match(found[3]):
                        generation = int(world[1])
                        marks.append(Mark(when, "built", pid, generation))
                    elif name := next((n for n, text in MARKS.items() if text.match(found[3])), None):
                        marks.append(Mark(when, name, pid, generation))
        return Seen(tuple(sorted(commits)), tuple(sorted(marks)))

    def _pid(self, name: str, start: int) -> int:
        """Of the process that a replica's log is of; one that died before anyone looked has a number of its own."""
        if (name, start) not in self.pids:
            alive = {}
            with contextlib.suppress(psutil.Error):
                for process in psutil.Process(self.processes[0].pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        alive[process.environ().get(ENV_REPLICA)] = process.pid
            known = set(self.pids.values())
            pid = alive.get(name, 0)
            self.pids[name, start] = pid if pid and pid not in known else -len(known) - 1
        return self.pids[name, start]

    def join(self) -> None:
        self.workers += 1
        command = [sys.executable, "-m", "elasticdl", "scale", "toy", f"--workers={self.workers}", "--timeout=0"]
        command.append(f"--state_dir={self.folder / 'state'}")
        subprocess.run(command, cwd=ROOT, check=True, timeout=60, stdout=subprocess.DEVNULL)

    def breakdown(self, lost: bool) -> dict[str, float]:
        """As `elasticdl status` shows it; the parts follow each other."""
        command = [sys.executable, "-m", "elasticdl", "status", "toy", "--json", f"--state_dir={self.folder / 'state'}"]
        shown = subprocess.run(command, cwd=ROOT, check=True, timeout=60, capture_output=True).stdout
        found = [change for change in json.loads(shown)["status"]["changes"] if ("without" in change["who"]) == lost]
        return {part: found[-1][f"{part}_seconds"] for part in CHANGE_PARTS} if found else {}

    def story(self) -> str:
        logs = sorted((self.folder / "state").rglob("*.log"))
        parts = [f"  {log.name}: {line}" for log in logs for line in log.read_text().splitlines()[-5:]]
        return "\n".join([super().story(), *parts])


def _write_records(folder: Path, model: str) -> None:
    """The toy's records as RecordIO, the very bytes the peers make for themselves."""
    from elasticdl.data.recordio import RecordIOWriter

    sys.path.insert(0, str(MODELS))
    rows = __import__(f"allreduce_{model}").make_records(RECORDS)
    folder.mkdir()
    with RecordIOWriter(folder / "records.recordio") as writer:
        for row in rows:
            writer.write(row.tobytes())
