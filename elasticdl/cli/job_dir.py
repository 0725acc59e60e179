"""The folder of a local job: who runs it, how it ended, and what a new job of the same name does with the old one's."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from elasticdl.cluster.watch import open_pidfd
from elasticdl.errors import Problem, UsageError
from elasticdl.job.names import JobPaths

State = Literal["running", "succeeded", "stopped", "failed", "died"]
PREVIOUS = "previous"  # where a job's state lies once its name is used again
_ATTEMPTS, _ATTEMPT_SECONDS = 10, 0.02
_LOCK_SECONDS = 0.2


@dataclass(frozen=True)
class JobView:
    """A local job as its folder shows it."""

    paths: JobPaths
    state: State
    pid: int | None = None  # of the launcher; it may have ended
    started_at: float | None = None  # seconds since 1970
    ended_at: float | None = None
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.paths.job_name

    @property
    def running(self) -> bool:
        return self.state == "running"


class Claim:
    """Holds a job's name. The lock on `launcher.pid` ends with this process, however it ends."""

    def __init__(self, paths: JobPaths, fd: int, created: bool) -> None:
        self.paths, self._fd, self._created = paths, fd, created
        self._before = os.read(fd, 4096)
        self._begun = False
        self._write_pid(f"{os.getpid()}\n{time.time()}\n".encode())

    def _write_pid(self, text: bytes) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text, 0)

    def begin(self, job_json: str, kept: Path | None = None, token: str | None = None) -> str:
        """Make the folder ready for a new job, and return the job's token: a new one, unless it is given.

        What an earlier job of this name left goes to `previous/`, where it stays until the next one starts;
        the checkpoints stay in place when `kept`, the one to start from, lies among them.
        """
        root = self.paths.root
        stay = {self.paths.launcher_pid.name, PREVIOUS}
        if kept is not None and kept.resolve().is_relative_to(self.paths.checkpoint.resolve()):
            stay.add(self.paths.checkpoint.name)
        old = [entry for entry in root.iterdir() if entry.name not in stay]
        if old:
            shutil.rmtree(root / PREVIOUS, ignore_errors=True)
            (root / PREVIOUS).mkdir()
        for entry in old:
            entry.rename(root / PREVIOUS / entry.name)
        token = secrets.token_urlsafe(32) if token is None else token
        write_private(self.paths.token, token)
        write_private(self.paths.job_file, job_json)
        self._begun = True
        return token

    def release(self) -> None:
        """Give the name free. A job that never began leaves no trace."""
        if not self._begun and self._created:
            self.paths.launcher_pid.unlink(missing_ok=True)
            self.paths.root.rmdir()
        elif not self._begun:
            self._write_pid(self._before)
        os.close(self._fd)


def claim(paths: JobPaths) -> Claim:
    """Take a job's name; raises UsageError when another job has it, or when its folder cannot be used."""
    created = not paths.root.exists()
    try:
        paths.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = _lock(paths.launcher_pid)
    except OSError as error:
        where = error.filename or paths.root
        what = f"jobs cannot be kept here: {where}: {error.strerror}"
        remedy = "Choose a directory that you can write to."
        raise UsageError([Problem("--state_dir", str(paths.state_dir), what, remedy)]) from error
    if fd is None:
        job = look(paths)
        since = "" if job.started_at is None else f" since {time.strftime('%F %T', time.localtime(job.started_at))}"
        what = f"job {job.name} is running{since}" + (f" (process {job.pid})" if job.pid else "")
        remedy = f"Stop it with `elasticdl stop {job.name}`, or choose another --job_name."
        raise UsageError([Problem("--job_name", job.name, what, remedy)])
    return Claim(paths, fd, created)


def _lock(path: Path) -> int | None:
    """The locked file's descriptor; None when another launcher holds it."""
    for _ in range(_ATTEMPTS):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.fstat(fd).st_ino == path.stat().st_ino:
                return fd
        except BlockingIOError:
            pass
        os.close(fd)
        # Somebody who only looks holds the lock for a moment; a launcher holds it all the time.
        time.sleep(_ATTEMPT_SECONDS)
    return None


def _locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def look(paths: JobPaths) -> JobView:
    """What the folder of a job says about it."""
    running = _locked(paths.launcher_pid)
    pid, started_at = _launcher(paths)
    result = {} if running else _result(paths)
    if running:
        return JobView(paths, "running", pid, started_at)
    if not result:
        return JobView(paths, "died", pid, started_at)
    outcome = result.get("outcome")
    state: State = outcome if outcome in ("succeeded", "stopped") else "failed"
    return JobView(paths, state, pid, started_at, paths.result.stat().st_mtime, result)


def _launcher(paths: JobPaths) -> tuple[int | None, float | None]:
    try:
        pid, started_at = paths.launcher_pid.read_text().split()
        return int(pid), float(started_at)
    except (OSError, ValueError):  # not written yet, or by hand
        return None, None


def _result(paths: JobPaths) -> dict[str, Any]:
    try:
        found = json.loads(paths.result.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def all_jobs(state_dir: Path) -> list[JobView]:
    """Every job kept here, the newest first."""
    try:
        names = [
            entry.name for entry in state_dir.iterdir() if (entry / JobPaths(entry, "").launcher_pid.name).exists()
        ]
    except FileNotFoundError:
        return []
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise UsageError([Problem("--state_dir", str(state_dir), what, "Name the directory of your jobs.")]) from error
    found = [look(JobPaths(state_dir, name)) for name in sorted(names)]
    return sorted(found, key=lambda job: job.started_at or 0.0, reverse=True)


def find_job(state_dir: Path, name: str) -> JobView:
    """The job of this name; raises UsageError that names the nearest one."""
    jobs = {job.name: job for job in all_jobs(state_dir)}
    if name in jobs:
        return jobs[name]
    from elasticdl.job.invalid import nearest

    meant = nearest(name, jobs)
    if meant:
        remedy = f"Did you mean {meant}?"
    else:
        remedy = "`elasticdl list` shows them." if jobs else "There are none; --state_dir names another place."
    raise UsageError([Problem(name, "", f"there is no such job in {state_dir}", remedy)])


async def ended(job: JobView, deadline_seconds: float | None = None) -> bool:
    """Wait until the job's launcher has ended. False when the deadline came first."""
    over = asyncio.Event()
    cancel = _on_end(job, over)
    try:
        await asyncio.wait_for(over.wait(), deadline_seconds)
    except TimeoutError:
        return False
    finally:
        cancel()
    return True


def _on_end(job: JobView, over: asyncio.Event) -> Callable[[], object]:
    """Set the event when the launcher has ended; returns what takes this back."""
    loop = asyncio.get_running_loop()
    try:
        fd = open_pidfd(job.pid or 0)
    except OSError:  # it has ended already, or there is no pidfd here, and its lock is all there is to look at
        return loop.create_task(_lock_released(job, over)).cancel
    loop.add_reader(fd, over.set)

    def cancel() -> None:
        loop.remove_reader(fd)
        os.close(fd)

    return cancel


async def _lock_released(job: JobView, over: asyncio.Event) -> None:
    while look(job.paths).running:  # noqa: ASYNC110 (nothing tells of a lock)
        await asyncio.sleep(_LOCK_SECONDS)
    over.set()


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner reads, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    partial.rename(path)
