"""Stages for the contract suite: a cluster, and means to control its replicas."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from elasticdl.cluster.local import LocalCluster
from elasticdl.cluster.protocol import Cluster, Exit, ReplicaRequest
from elasticdl.cluster.server import ClusterServer
from elasticdl.cluster.supervisor import Supervisor
from tests.cluster.memory import MemoryCluster

from .hearing import status_of


class Stage(Protocol):
    cluster: Cluster

    def another_client(self) -> Cluster: ...

    def request(self, name: str, *, stubborn: bool = False) -> ReplicaRequest:
        """A replica that runs until `end`; a stubborn one ignores SIGTERM."""

    async def ready(self, name: str) -> None:
        """Wait until the replica has started."""

    async def end(self, name: str, code: int) -> None: ...

    async def signal(self, name: str, number: signal.Signals) -> None: ...

    least_grace_seconds: float  # the least that a stop gives

    def check_ended_by(self, exit: Exit, number: signal.Signals, because: str = "") -> None:
        """Check that a stop or a kill ended it with this signal."""


class TellsHowTheStoppedEnd:
    """Most clusters report how a stopped replica ended."""

    least_grace_seconds = 0.0

    def check_ended_by(self, exit: Exit, number: signal.Signals, because: str = "") -> None:
        assert (exit.code, exit.signal, exit.oom) == (None, number, False)
        assert exit.reason == f"killed by {number.name}{because}"


class MemoryStage(TellsHowTheStoppedEnd):
    def __init__(self, memory: MemoryCluster, client: Callable[[], Cluster]) -> None:
        self._memory, self._client = memory, client
        self.cluster = client()

    def another_client(self) -> Cluster:
        return self._client()

    def request(self, name: str, *, stubborn: bool = False) -> ReplicaRequest:
        if stubborn:
            self._memory.stubborn.add(name)
        return ReplicaRequest(name, "worker", 7, ("anything",), {})

    async def ready(self, name: str) -> None:
        pass

    async def end(self, name: str, code: int) -> None:
        self._memory.exit(name, Exit(code, None, oom=False, reason=f"exit code {code}"))

    async def signal(self, name: str, number: signal.Signals) -> None:
        self._memory.exit(name, Exit(None, number, oom=False, reason=f"killed by {number.name}"))


class ProcessStage(TellsHowTheStoppedEnd):
    """Replicas are shells that report when they are ready and wait for the exit code on a named pipe."""

    def __init__(self, directory: Path, client: Callable[[], Cluster]) -> None:
        self._directory, self._client = directory, client
        self._pipes: dict[Path, int] = {}
        self.cluster = client()

    def another_client(self) -> Cluster:
        return self._client()

    def request(self, name: str, *, stubborn: bool = False) -> ReplicaRequest:
        trap = "trap '' TERM; " if stubborn else ""
        ready, orders = self._pipe(f"{name}.ready"), self._pipe(f"{name}.orders")
        script = f"{trap}echo ready > {ready}; read code < {orders}; exit $code"
        return ReplicaRequest(name, "worker", 7, ("sh", "-c", script), {})

    async def ready(self, name: str) -> None:
        fd = self._pipes[self._directory / f"{name}.ready"]
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(fd, heard.set)
        try:
            await heard.wait()
        finally:
            loop.remove_reader(fd)
        os.read(fd, 100)

    async def end(self, name: str, code: int) -> None:
        os.write(self._pipes[self._directory / f"{name}.orders"], f"{code}\n".encode())

    async def signal(self, name: str, number: signal.Signals) -> None:
        pid = (await status_of(self.cluster, name)).pid
        assert pid is not None
        os.kill(pid, number)

    def close(self) -> None:
        for fd in self._pipes.values():
            os.close(fd)

    def _pipe(self, name: str) -> Path:
        path = self._directory / name
        if path not in self._pipes:
            os.mkfifo(path)
            self._pipes[path] = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        return path


@contextlib.asynccontextmanager
async def memory_stage(_: Path) -> AsyncIterator[Stage]:
    memory = MemoryCluster()
    yield MemoryStage(memory, lambda: memory)
    await memory.close()


@contextlib.asynccontextmanager
async def memory_stage_through_a_socket(directory: Path) -> AsyncIterator[Stage]:
    memory = MemoryCluster()
    server = ClusterServer(memory, directory / "run" / "cluster.sock")
    await server.start()
    yield MemoryStage(memory, lambda: LocalCluster(directory / "run" / "cluster.sock"))
    await server.close()
    await memory.close()


@contextlib.asynccontextmanager
async def supervisor_stage(directory: Path) -> AsyncIterator[Stage]:
    async with Supervisor(directory / "logs") as supervisor:
        stage = ProcessStage(directory, lambda: supervisor)
        yield stage
    stage.close()


@contextlib.asynccontextmanager
async def local_stage(directory: Path) -> AsyncIterator[Stage]:
    socket = directory / "run" / "launcher.sock"
    async with Supervisor(directory / "logs", socket):
        stage = ProcessStage(directory, lambda: LocalCluster(socket))
        yield stage
        await stage.cluster.close()
    stage.close()
