"""Runs the check of model and data in its own process, since neither launcher nor master imports a framework."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasticdl.cluster import exec_shim
from elasticdl.cluster.exits import signal_name
from elasticdl.errors import Problem
from elasticdl.job import names
from elasticdl.job.spec import JobSpec

_END_SECONDS = 5.0


Show = Callable[[str], None]


@dataclass(frozen=True)
class Checked:
    """The results of the check."""

    datasets: dict[str, Any] = field(default_factory=dict)  # their descriptions by mode
    problems: list[Problem] = field(default_factory=list)  # with the model or the data
    notes: list[str] = field(default_factory=list)  # for the user


async def check(spec: JobSpec, show: Show, doing: Show) -> Checked:
    """Check model and data. `show` gets the output of the user's code, `doing` gets the progress of long steps."""
    with tempfile.TemporaryDirectory(prefix="elasticdl-check-") as folder:
        job_file = Path(folder) / "job.json"
        job_file.write_text(spec.to_json())
        answer, sending = os.pipe()
        with os.fdopen(answer, "rb") as receiving:
            try:
                process = await _start(job_file, sending, spec)
            finally:
                os.close(sending)
            try:
                async with asyncio.timeout(spec.start_seconds) as limit:

                    def progress(text: str) -> None:
                        limit.reschedule(asyncio.get_running_loop().time() + spec.start_seconds)  # it makes progress
                        doing(text)

                    text, _ = await asyncio.gather(_read(receiving.fileno(), progress), _show(process, show))
                    code = await process.wait()
            except TimeoutError:
                what = f"loading it took longer than {spec.start_seconds:g} s"
                return Checked(problems=[_problem(spec, what, "Make it faster, or increase --start_seconds.")])
            finally:
                await _end(process)
    return _read_answer(spec, text, code)


async def _start(job_file: Path, sending: int, spec: JobSpec) -> asyncio.subprocess.Process:
    env = {"OMP_NUM_THREADS": "1", **os.environ, **spec.envs}
    env |= {names.ENV_JOB_FILE: str(job_file), "PYTHONUNBUFFERED": "1"}
    shim = [sys.executable, "-I", "-S", exec_shim.__file__, str(os.getpid()), "-", env.get("LC_CTYPE", "-")]
    return await asyncio.create_subprocess_exec(
        *shim, sys.executable, "-m", "elasticdl.worker.check", str(sending),
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        pass_fds=(sending,),
        start_new_session=True,  # Ctrl-C goes to the launcher, which ends this process
    )  # fmt: skip


async def _read(fd: int, progress: Show) -> bytes:
    """The last line that the check writes; earlier lines report progress."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    with os.fdopen(os.dup(fd), "rb") as pipe:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            rest = b""
            while data := await reader.read(1 << 16):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    said = json.loads(line)
                    if "doing" not in said:
                        return line
                    progress(said["doing"])
            return rest
        finally:
            transport.close()


async def _show(process: asyncio.subprocess.Process, show: Callable[[str], None]) -> None:
    assert process.stdout is not None
    rest = b""
    while data := await process.stdout.read(1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            show(line.decode(errors="replace"))
    if rest:
        show(rest.decode(errors="replace"))


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _END_SECONDS)


def _read_answer(spec: JobSpec, text: bytes, code: int) -> Checked:
    try:
        answer = json.loads(text)
    except ValueError:
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        what = f"the process that checked it {how}"
        return Checked(problems=[_problem(spec, what, "See its output above.")])
    problems = [Problem(**problem) for problem in answer.get("problems", [])]
    return Checked(answer.get("datasets", {}), problems, answer.get("notes", []))


def _problem(spec: JobSpec, what: str, remedy: str) -> Problem:
    return Problem("--model_def", str(spec.model_def), what, remedy)
