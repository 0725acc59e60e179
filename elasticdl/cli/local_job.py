"""`LocalJob`: a job of this machine, whose folder and processes tell of it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elasticdl.cli.job import ALL, LogWish
from elasticdl.cli.job_dir import JobView, ended, look
from elasticdl.errors import UsageError

if TYPE_CHECKING:
    from elasticdl.cli.master_client import MasterClient
    from elasticdl.cluster.kubernetes.troubles import Trouble
    from elasticdl.job.spec import JobSpec

_NOW_SECONDS = 15.0  # from "at once" to the last process gone; after that the launcher is killed


@dataclass(frozen=True)
class LocalJob:
    """A job that was started here with `elasticdl train`."""

    view: JobView
    troubles: Sequence[Trouble] = ()  # processes either start or are gone

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def place(self) -> str:
        return "here"

    @property
    def state(self) -> str:
        return self.view.state

    @property
    def running(self) -> bool:
        return self.view.running

    @property
    def note(self) -> str:
        died = f"its launcher (process {self.view.pid}) ended without saying how"
        return died if self.view.state == "died" else ""

    @property
    def result(self) -> Mapping[str, Any]:
        return self.view.result

    @property
    def started_at(self) -> float | None:
        return self.view.started_at

    @property
    def ended_at(self) -> float | None:
        return self.view.ended_at

    @property
    def logs_at(self) -> str:
        return str(self.view.paths.logs)

    @property
    def answer_seconds(self) -> float:
        return 5.0  # one that is started again needs two

    @property
    def left_over(self) -> bool:
        return False  # the kernel sees to that

    def spec(self) -> JobSpec | None:
        from elasticdl.job.spec import JobSpec

        try:
            return JobSpec.from_json(self.view.paths.job_file.read_bytes())
        except (OSError, UsageError):  # not written yet, or by another version
            return None

    def facts(self) -> dict[str, Any]:
        return {
            "launcher_pid": self.view.pid if self.running else None,
            "directory": str(self.view.paths.root),
        }

    @contextlib.asynccontextmanager
    async def reach(self) -> AsyncIterator[MasterClient]:
        from elasticdl.cli.master_client import MasterClient

        yield MasterClient.of(self.view.paths)

    async def again(self) -> LocalJob:
        return LocalJob(look(self.view.paths))

    async def ended(self, deadline_seconds: float | None = None) -> bool:
        return await ended(self.view, deadline_seconds)

    async def stop_without_master(self) -> bool:
        """No master yet, or between two lives: the launcher sees to it."""
        self._signal(signal.SIGTERM)
        return True

    async def stop_now(self) -> None:
        self._signal(signal.SIGQUIT)
        if not await self.ended(_NOW_SECONDS):
            self._signal(signal.SIGKILL)  # the kernel and the guard take its processes along
            await self.ended(_NOW_SECONDS)

    async def log(self, wish: LogWish) -> AsyncGenerator[str, None]:
        from elasticdl.cli import job_logs

        chosen = job_logs.choose(self.view, wish.replica)
        if not wish.follow:
            for line in job_logs.lines(chosen, wish.tail, previous=wish.previous):
                yield line
            return
        async with contextlib.aclosing(job_logs.follow(self.view, chosen, wish.tail, wish.replica == ALL)) as lines:
            async for line in lines:
                yield line

    def _signal(self, number: signal.Signals) -> None:
        if look(self.view.paths).running and self.view.pid is not None:  # locked: the process id is the launcher's
            os.kill(self.view.pid, number)
