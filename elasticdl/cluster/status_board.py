"""The last status of each replica, and its watchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from elasticdl.cluster.protocol import ReplicaPhase, ReplicaStatus


class Board:
    """Statuses by name. A slow watcher loses nothing: changes are queued for it."""

    def __init__(self) -> None:
        self._statuses: dict[str, ReplicaStatus] = {}
        self._watchers: set[asyncio.Queue[ReplicaStatus | None]] = set()
        self._closed = False

    def all(self) -> list[ReplicaStatus]:
        return list(self._statuses.values())

    def get(self, name: str) -> ReplicaStatus | None:
        return self._statuses.get(name)

    def alive(self, name: str) -> bool:
        status = self._statuses.get(name)
        return status is not None and status.phase is not ReplicaPhase.GONE

    def post(self, status: ReplicaStatus) -> None:
        self._statuses[status.name] = status
        for queue in self._watchers:
            queue.put_nowait(status)

    async def watch(self) -> AsyncGenerator[ReplicaStatus, None]:
        """All current statuses, then every change, until the board is closed."""
        queue: asyncio.Queue[ReplicaStatus | None] = asyncio.Queue()
        for status in self._statuses.values():
            queue.put_nowait(status)
        if self._closed:
            queue.put_nowait(None)
        self._watchers.add(queue)
        try:
            while (change := await queue.get()) is not None:
                yield change
        finally:
            self._watchers.discard(queue)

    def close(self) -> None:
        """End every watch, after all changes so far."""
        if not self._closed:
            self._closed = True
            for queue in self._watchers:
                queue.put_nowait(None)
