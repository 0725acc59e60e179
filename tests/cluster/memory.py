"""`MemoryCluster`: a cluster without processes, for tests and simulations.

Replicas are entries that run until the test (`exit`, `preempt`) or the code under test (`stop`, `kill`) ends them.
Replicas beyond the capacity stay pending until there is room.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from dataclasses import replace

from elasticdl.cluster.protocol import Exit, ReplicaPhase, ReplicaRequest, ReplicaStatus
from elasticdl.cluster.status_board import Board
from elasticdl.errors import Unreachable


class MemoryCluster:
    """Implements `Cluster` in one event loop, with deterministic uids."""

    def __init__(self, capacity: int | None = None) -> None:
        self.requests: dict[str, ReplicaRequest] = {}  # the last request of each name
        self.stubborn: set[str] = set()  # names that ignore SIGTERM and have to be killed
        self._board = Board()
        self._capacity = capacity
        self._launched = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    # What the code under test calls.

    async def launch(self, request: ReplicaRequest) -> None:
        self._check_open()
        if self._board.alive(request.name):
            return
        self.requests[request.name] = request
        self._launched += 1
        uid = f"{request.name}/{self._launched}"
        self._board.post(ReplicaStatus(request.name, request.role, request.index, uid, ReplicaPhase.PENDING))
        self._start_pending()

    async def stop(self, name: str, grace_seconds: float) -> None:
        self._check_open()
        status = self._board.get(name)
        if status is None or status.phase is ReplicaPhase.GONE:
            return
        if status.phase is ReplicaPhase.PENDING:
            self.exit(name, Exit(None, None, oom=False, reason="stopped before it started"))
        elif name not in self.stubborn:
            self.exit(name, Exit(None, signal.SIGTERM, oom=False, reason="killed by SIGTERM"))
        else:
            loop = asyncio.get_running_loop()
            timer = self._timers.get(name)
            if timer is None or timer.when() > loop.time() + grace_seconds:
                if timer is not None:
                    timer.cancel()
                reason = f"killed by SIGKILL: it did not end within {grace_seconds:g} s of SIGTERM"
                end = Exit(None, signal.SIGKILL, oom=False, reason=reason)
                self._timers[name] = loop.call_later(grace_seconds, self.exit, name, end)

    async def kill(self, name: str) -> None:
        self._check_open()
        if self._board.alive(name):
            self.preempt(name)

    async def list(self) -> list[ReplicaStatus]:
        self._check_open()
        return self._board.all()

    def events(self) -> AsyncGenerator[ReplicaStatus, None]:
        return self._board.watch()

    async def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._board.close()

    # What a test calls.

    def exit(self, name: str, exit: Exit) -> None:
        """End the replica with this exit."""
        status = self._board.get(name)
        if status is None or status.phase is ReplicaPhase.GONE:
            raise ValueError(f"{name} does not run")
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        self._board.post(replace(status, phase=ReplicaPhase.GONE, exit=exit))
        self._start_pending()

    def preempt(self, name: str) -> None:
        """End the replica as if its machine were lost."""
        self.exit(name, Exit(None, signal.SIGKILL, oom=False, reason="killed by SIGKILL"))

    def set_capacity(self, capacity: int | None) -> None:
        """Change the number of replicas that may run; running ones stay."""
        self._capacity = capacity
        self._start_pending()

    def _start_pending(self) -> None:
        running = sum(status.phase is ReplicaPhase.RUNNING for status in self._board.all())
        for status in self._board.all():
            if status.phase is ReplicaPhase.PENDING and (self._capacity is None or running < self._capacity):
                self._board.post(replace(status, phase=ReplicaPhase.RUNNING))
                running += 1

    def _check_open(self) -> None:
        if self._closed:
            raise Unreachable("the cluster is closed")
