"""The folder of a local job: the claim on its name, and what becomes of an earlier job's files."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from pathlib import Path

from elasticdl.cli.local_job import look
from elasticdl.errors import Problem, UsageError
from elasticdl.job.names import JobPaths

PREVIOUS = "previous"  # where a job's state lies once its name is used again
_ATTEMPTS, _ATTEMPT_SECONDS = 10, 0.02


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
        """Release the name. A job that never began leaves no trace."""
        if not self._begun and self._created:
            self.paths.launcher_pid.unlink(missing_ok=True)
            self.paths.root.rmdir()
        elif not self._begun:
            self._write_pid(self._before)
        os.close(self._fd)


def claim(paths: JobPaths) -> Claim:
    """Take a job's name; raises UsageError when another job has it or its folder is unusable."""
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
        # A process that only looks holds the lock for a moment, a launcher until it ends.
        time.sleep(_ATTEMPT_SECONDS)
    return None


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner reads, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    partial.rename(path)
