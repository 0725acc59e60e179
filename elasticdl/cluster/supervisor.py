"""`Supervisor`, which the launcher runs: the parent of every process of a local job, and a server for its master."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from elasticdl.cluster.exits import OutOfMemoryKills, never_started
from elasticdl.cluster.guard import Guard
from elasticdl.cluster.process import Process
from elasticdl.cluster.protocol import Exit, ReplicaPhase, ReplicaRequest, ReplicaStatus
from elasticdl.cluster.server import ClusterServer
from elasticdl.cluster.status_board import Board
from elasticdl.errors import Problem, Refused, UsageError

log = logging.getLogger(__name__)

_END_SECONDS = 10.0  # from SIGKILL to the last process reaped


class Supervisor:
    """Implements `Cluster` with processes of this machine, in the event loop of the launcher's main thread.

    None of its processes outlives it: `shutdown` ends them; if it is killed, the kernel and the guard do.
    """

    def __init__(
        self,
        log_dir: Path,
        socket_path: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Log to `log_dir/<name>.log`, serve at `socket_path`, give replicas `environment` (default: our own)."""
        self._log_dir = log_dir
        self._environment = dict(os.environ if environment is None else environment)
        self._board = Board()
        self._processes: dict[str, Process] = {}  # running ones
        self._ends: dict[str, asyncio.Future[Exit]] = {}  # of the last process of each name
        self._guard = Guard()
        self._kills_for_memory = OutOfMemoryKills()
        self._server = ClusterServer(self, socket_path) if socket_path is not None else None
        self._shutting_down = False

    async def start(self) -> None:
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot write logs here: {error.strerror}"
            raise UsageError(
                [Problem(str(self._log_dir), "", what, "Choose a directory that you can write to")]
            ) from error
        if self._server is not None:
            await self._server.start()
        self._guard.start()

    async def __aenter__(self) -> Supervisor:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown(grace_seconds=0)

    async def launch(self, request: ReplicaRequest) -> None:
        if self._shutting_down:
            raise Refused(f"cannot start {request.name}: the job is ending")
        if self._board.alive(request.name):
            return
        uid = secrets.token_hex(8)
        self._ends[request.name] = asyncio.get_running_loop().create_future()
        status = ReplicaStatus(request.name, request.role, request.index, uid, ReplicaPhase.RUNNING)
        try:
            process = Process(request, uid, self._log_dir, self._environment, self._kills_for_memory, self._ended)
        except OSError as error:  # no memory, no more processes allowed, an environment too large, a full disk
            self._gone(status, never_started(error.strerror or str(error)))
            return
        self._guard.add(process.pid)
        self._processes[request.name] = process
        self._board.post(replace(status, pid=process.pid))

    async def stop(self, name: str, grace_seconds: float) -> None:
        if name in self._processes:
            self._processes[name].stop(grace_seconds)

    async def kill(self, name: str) -> None:
        if name in self._processes:
            self._processes[name].kill(because="")

    def replicas(self) -> list[ReplicaStatus]:
        """Every replica of the job, gone ones too."""
        return self._board.all()

    async def wait(self, name: str) -> Exit:
        """The exit of the current or last process with this name."""
        if name not in self._ends:
            raise Refused(f"there is no replica {name}")
        return await asyncio.shield(self._ends[name])

    async def shutdown(self, grace_seconds: float) -> None:
        """End all processes with SIGTERM, and SIGKILL after the grace period; no process and no socket remains.

        A second call while the first one waits may shorten the grace period.
        """
        self._shutting_down = True
        ends = [self._ends[name] for name in self._processes]
        for process in self._processes.values():
            process.stop(grace_seconds)
        if ends:
            await asyncio.wait(ends, timeout=grace_seconds + _END_SECONDS)
        for process in self._processes.values():
            log.error("%s (process %d) is still running after SIGKILL", process.request.name, process.pid)
        self._board.close()
        if self._server is not None:
            await self._server.close()
        self._guard.close()

    async def close(self) -> None:
        await self.shutdown(grace_seconds=0)

    def events(self) -> AsyncGenerator[ReplicaStatus, None]:
        return self._board.watch()

    async def list(self) -> list[ReplicaStatus]:
        return self._board.all()

    def _ended(self, process: Process, exit: Exit) -> None:
        self._guard.remove(process.pid)
        status = self._board.get(process.request.name)
        assert status is not None
        del self._processes[process.request.name]
        self._gone(status, exit)

    def _gone(self, status: ReplicaStatus, exit: Exit) -> None:
        self._board.post(replace(status, phase=ReplicaPhase.GONE, exit=exit))
        self._ends[status.name].set_result(exit)
