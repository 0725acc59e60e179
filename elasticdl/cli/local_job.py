"""`LocalJob`: a job of this machine, as its folder and its processes show it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from elasticdl.cli.job import ALL, LogWish
from elasticdl.cluster.watch import open_pidfd
from elasticdl.errors import Problem, UsageError
from elasticdl.job.names import JobPaths

if TYPE_CHECKING:
    from elasticdl.cli.master_client import MasterClient
    from elasticdl.cluster.kubernetes.troubles import Trouble
    from elasticdl.job.spec import JobSpec

State = Literal["running", "succeeded", "stopped", "failed", "died"]
_NOW_SECONDS = 15.0  # from "at once" to the last process gone; after that the launcher is killed
_LOCK_SECONDS = 0.2


@dataclass(frozen=True)
class LocalJob:
    """A job that was started here with `elasticdl train`."""

    paths: JobPaths
    state: State
    pid: int | None = None  # of the launcher; it may have ended
    started_at: float | None = None  # seconds since 1970
    ended_at: float | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    troubles: Sequence[Trouble] = ()  # processes either start or are gone

    @property
    def name(self) -> str:
        return self.paths.job_name

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def place(self) -> str:
        return "here"

    @property
    def note(self) -> str:
        died = f"its launcher (process {self.pid}) ended without a result"
        return died if self.state == "died" else ""

    @property
    def logs_at(self) -> str:
        return str(self.paths.logs)

    @property
    def answer_seconds(self) -> float:
        return 5.0  # a restarted master needs two

    @property
    def left_over(self) -> bool:
        return False  # the kernel ends its processes

    def spec(self) -> JobSpec | None:
        from elasticdl.job.spec import JobSpec

        try:
            return JobSpec.from_json(self.paths.job_file.read_bytes())
        except (OSError, UsageError):  # not written yet, or by another version
            return None

    def facts(self) -> dict[str, Any]:
        return {
            "launcher_pid": self.pid if self.running else None,
            "directory": str(self.paths.root),
        }

    @contextlib.asynccontextmanager
    async def reach(self) -> AsyncIterator[MasterClient]:
        from elasticdl.cli.master_client import MasterClient

        yield MasterClient.of(self.paths)

    async def again(self) -> LocalJob:
        return look(self.paths)

    async def ended(self, deadline_seconds: float | None = None) -> bool:
        over = asyncio.Event()
        cancel = self._on_end(over)
        try:
            await asyncio.wait_for(over.wait(), deadline_seconds)
        except TimeoutError:
            return False
        finally:
            cancel()
        return True

    async def stop_without_master(self) -> bool:
        """Without a master, the launcher stops the job."""
        self._signal(signal.SIGTERM)
        return True

    async def stop_now(self) -> None:
        self._signal(signal.SIGQUIT)
        if not await self.ended(_NOW_SECONDS):
            self._signal(signal.SIGKILL)  # the kernel and the guard take its processes along
            await self.ended(_NOW_SECONDS)

    async def log(self, wish: LogWish) -> AsyncGenerator[str, None]:
        from elasticdl.cli import job_logs

        chosen = job_logs.choose(self, wish.replica)
        if not wish.follow:
            for line in job_logs.lines(chosen, wish.tail, previous=wish.previous):
                yield line
            return
        async with contextlib.aclosing(job_logs.follow(self, chosen, wish.tail, wish.replica == ALL)) as lines:
            async for line in lines:
                yield line

    def _signal(self, number: signal.Signals) -> None:
        if look(self.paths).running and self.pid is not None:  # locked: the process id is the launcher's
            os.kill(self.pid, number)

    def _on_end(self, over: asyncio.Event) -> Callable[[], object]:
        """Set the event when the launcher has ended; returns a function that cancels this."""
        loop = asyncio.get_running_loop()
        try:
            fd = open_pidfd(self.pid or 0)
        except OSError:  # it has ended already, or this system has no pidfd: watch the lock
            return loop.create_task(self._lock_released(over)).cancel
        loop.add_reader(fd, over.set)

        def cancel() -> None:
            loop.remove_reader(fd)
            os.close(fd)

        return cancel

    async def _lock_released(self, over: asyncio.Event) -> None:
        while look(self.paths).running:  # noqa: ASYNC110 (locks have no events)
            await asyncio.sleep(_LOCK_SECONDS)
        over.set()


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


def look(paths: JobPaths) -> LocalJob:
    """The job as its folder shows it now."""
    running = _locked(paths.launcher_pid)
    pid, started_at = _launcher(paths)
    result = {} if running else read_result(paths)
    if running:
        return LocalJob(paths, "running", pid, started_at)
    if not result:
        return LocalJob(paths, "died", pid, started_at)
    outcome = result.get("outcome")
    state: State = outcome if outcome in ("succeeded", "stopped") else "failed"
    return LocalJob(paths, state, pid, started_at, paths.result.stat().st_mtime, result)


def _launcher(paths: JobPaths) -> tuple[int | None, float | None]:
    try:
        pid, started_at = paths.launcher_pid.read_text().split()
        return int(pid), float(started_at)
    except (OSError, ValueError):  # not written yet, or by hand
        return None, None


def read_result(paths: JobPaths) -> dict[str, Any]:
    """How the job ended; empty where that is not written."""
    try:
        found = json.loads(paths.result.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def all_jobs(state_dir: Path) -> list[LocalJob]:
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
