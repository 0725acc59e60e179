"""A real `elasticdl train` for tests: started, read line by line, signalled, and looked after until nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import queue
import re
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from elasticdl.data.recordio import RecordIOWriter
from elasticdl.files import File
from elasticdl.job.names import ENV_JOB_FILE, JobPaths

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "models"
ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[()][A-Z0-9])")


def write_ids(folder: Path, records: int, files: int = 2) -> Path:
    """Records that the witness model reads: little-endian 64-bit ids from 0 on."""
    folder.mkdir(parents=True)
    for number in range(files):
        with RecordIOWriter(folder / f"ids-{number}.recordio") as writer:
            for record in range(number * records // files, (number + 1) * records // files):
                writer.write(struct.pack("<q", record))
    return folder


def flip_byte(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0x20
    file.write_bytes(data)


def write_manifest(checkpoint: Path, files: dict[str, list[File]], **changes: object) -> None:
    """The manifest of a checkpoint at version 7, whose parts may or may not be there."""
    manifest = {
        "cut": 1,
        "version": 7,
        "files": files,
        "open": {},
        "next": [0, 7],
        "done": {"0": [7, 224]},
        "bad_records": [],
        "training_data": "another fingerprint",
        "minibatch_size": 32,
        "max_step": 0,
        "num_minibatches_per_task": 1,
        "seed": 5,
        "shuffle": True,
    }
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ELASTICDL_")}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def elasticdl(*words: str, state_dir: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "elasticdl", *words, f"--state_dir={state_dir}"]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=timeout)


class Launched:
    """A train command in a process of its own; its output is read as it comes."""

    def __init__(self, state_dir: Path, job: str, data: Path, *flags: str, **env: str) -> None:
        self.paths = JobPaths(state_dir, job)
        command = [sys.executable, "-m", "elasticdl", "train", f"--job_name={job}", f"--state_dir={state_dir}"]
        command += [f"--model_zoo={MODELS}", "--model_def=witness.custom_model", f"--training_data={data}", *flags]
        self._start(command, env)

    def _start(self, command: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(**env),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.lines: list[str] = []
        self._coming: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @classmethod
    def by_command(cls, command: list[str], paths: JobPaths) -> Launched:
        """Run a whole command line that starts with `elasticdl`."""
        made = cls.__new__(cls)
        made.paths = paths
        assert command[0] == "elasticdl"
        made._start([sys.executable, "-m", *command], {})
        return made

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._coming.put(line.rstrip("\n"))
        self._coming.put(None)

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str, deadline_seconds: float = 60) -> str:
        """The first line from now on that holds this text."""
        until = time.monotonic() + deadline_seconds
        while True:
            try:
                line = self._coming.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {text!r} within {deadline_seconds} s:\n{self.output}") from None
            if line is None:
                raise AssertionError(f"the command ended without saying {text!r}:\n{self.output}")
            self.lines.append(line)
            if text in line:
                return line

    def wait_until_training(self) -> None:
        self.wait_for("] training: ")

    def wait(self, deadline_seconds: float = 60) -> int:
        """The exit code, once everything that was said is read."""
        code = self.process.wait(deadline_seconds)
        while (line := self._coming.get(timeout=10)) is not None:
            self.lines.append(line)
        return code

    def replicas(self, role: str) -> list[psutil.Process]:
        """The processes of this job, and of no other, that have a role."""
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if child.cmdline()[-1:] == [f"elasticdl.{role}"]]

    def left_over(self) -> list[psutil.Process]:
        """Processes of this very job that still run, by the job file in their environment."""
        return [p for p in psutil.process_iter() if self._is_ours(p)]

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            return process.environ().get(ENV_JOB_FILE) == str(self.paths.job_file)
        return False

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process.poll() is None:
            for process in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.process.wait(10)


def run_on_terminal(command: list[str], deadline_seconds: float = 60) -> tuple[int, str]:
    """The exit code of a command, and everything it writes to its terminal until it ends."""
    master, terminal = pty.openpty()
    env = environment(TERM="xterm-256color", COLUMNS="120", LINES="40")
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=terminal, stderr=terminal)
    os.close(terminal)
    timer = threading.Timer(deadline_seconds, process.kill)
    timer.start()
    found = b""
    try:
        while select.select([master], [], [], deadline_seconds)[0]:
            found += os.read(master, 1 << 16)
    except OSError:  # the last process that had it open is gone
        pass
    finally:
        timer.cancel()
        os.close(master)
    return process.wait(10), found.decode(errors="replace")


def port_of(paths: JobPaths) -> int:
    return int(paths.master_address.read_text().rpartition(":")[2])


@contextlib.contextmanager
def launched(*args: object, **env: str) -> Iterator[Launched]:
    """A command that is gone at the end of the block."""
    made = Launched(*args, **env)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.end()
