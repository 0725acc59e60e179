"""A TCP proxy whose connections a test can cut, refuse and rewrite."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Self


class Wire:
    """Forwards to one address. `rewrite` changes the data on its way there."""

    def __init__(self, host: str, port: int, rewrite: Callable[[bytes], bytes] | None = None) -> None:
        self._target, self._rewrite = (host, port), rewrite
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.connections = 0

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def cut(self) -> None:
        """Refuse new connections, and close the existing ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(list(self._open))

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.connections += 1
        there = None
        try:
            there_reader, there = await asyncio.open_connection(*self._target)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, there, self._rewrite))
                group.create_task(_pump(there_reader, writer, None))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            for end in (writer, there):
                if end is not None:
                    end.transport.abort()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rewrite: Callable[[bytes], bytes] | None
) -> None:
    while data := await reader.read(1 << 16):
        writer.write(rewrite(data) if rewrite else data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
