"""`LocalCluster`: the master's control of its job's processes, which are the launcher's children."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator
from pathlib import Path

from elasticdl.cluster import endpoint, messages
from elasticdl.cluster.protocol import ReplicaRequest, ReplicaStatus
from elasticdl.errors import Refused, Unreachable


class LocalCluster:
    """A client of the launcher. A new master's client finds every replica and every exit that was missed.

    Calls share a connection, opened at the first call and reopened after it broke; each watch has its own.
    """

    def __init__(self, socket_path: Path, *, deadline_seconds: float = 10.0) -> None:
        self._path, self._deadline_seconds = socket_path, deadline_seconds
        self._calls: _Connection | None = None
        self._watches: set[_Connection] = set()
        self._connecting = asyncio.Lock()
        self._closed = False

    async def launch(self, request: ReplicaRequest) -> None:
        await self._call(messages.Launch(request=request))

    async def stop(self, name: str, grace_seconds: float) -> None:
        await self._call(messages.Stop(name=name, grace_seconds=grace_seconds))

    async def kill(self, name: str) -> None:
        await self._call(messages.Kill(name=name))

    async def list(self) -> list[ReplicaStatus]:
        return (await self._call(messages.List())).replicas or []

    async def events(self) -> AsyncGenerator[ReplicaStatus, None]:
        connection = await self._connect()
        self._watches.add(connection)
        try:
            await connection.call(messages.Watch(), self._deadline_seconds)
            while (status := await connection.events.get()) is not None:
                yield status
            if not self._closed:
                raise Unreachable(connection.lost)
        finally:
            self._watches.discard(connection)
            await connection.close()

    async def close(self) -> None:
        self._closed = True
        for connection in [*self._watches, *filter(None, [self._calls])]:
            await connection.close()

    async def _call(self, action: messages.Action) -> messages.Reply:
        async with self._connecting:
            if self._calls is None or self._calls.lost:
                self._calls = await self._connect()
        return await self._calls.call(action, self._deadline_seconds)

    async def _connect(self) -> _Connection:
        if self._closed:
            raise Unreachable("the cluster is closed")
        try:
            connected = endpoint.connect(self._path)
        except OSError as error:
            raise Unreachable(f"no launcher at {self._path}: {error.strerror}") from error
        # The socket is already connected, so this does not wait.
        return _Connection(*await asyncio.open_unix_connection(sock=connected, limit=messages.MOST_LINE_BYTES))


class _Connection:
    """Calls and their replies by id, and the events in between."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[messages.Reply]] = {}
        self.events: asyncio.Queue[ReplicaStatus | None] = asyncio.Queue()
        self.lost = ""  # the reason, once it is lost
        self._reading = asyncio.create_task(self._read())

    async def call(self, action: messages.Action, deadline_seconds: float) -> messages.Reply:
        if self.lost:
            raise Unreachable(self.lost)
        call = messages.Call(id=next(self._ids), action=action)
        future: asyncio.Future[messages.Reply] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_seen)
        self._waiting[call.id] = future
        try:
            async with asyncio.timeout(deadline_seconds):
                self._writer.write(messages.encode(call))
                await self._writer.drain()
                reply = await future
        except TimeoutError:
            raise Unreachable(f"the launcher did not answer {action.do!r} within {deadline_seconds:g} s") from None
        except OSError as error:
            raise Unreachable(f"the connection to the launcher broke: {error}") from error
        finally:
            self._waiting.pop(call.id, None)
        if reply.refused is not None:
            raise Refused(reply.refused)
        return reply

    async def close(self) -> None:
        self._lose("the cluster is closed")
        self._reading.cancel()
        await asyncio.wait([self._reading])
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        why = "the launcher closed the connection"
        try:
            while line := await self._reader.readline():
                self._heard(messages.decode_answer(line))
        except (OSError, ValueError) as error:  # ValueError: a line too long, or malformed
            why = f"the connection to the launcher broke: {error}"
        self._lose(why)

    def _heard(self, answer: messages.Reply | messages.ReplicaChanged) -> None:
        match answer:
            case messages.ReplicaChanged():
                self.events.put_nowait(answer.status)
            case messages.Reply(id=None):
                raise messages.Malformed(answer.refused or "a reply to nothing")
            case messages.Reply():
                future = self._waiting.get(answer.id) if answer.id is not None else None
                if future is not None and not future.done():
                    future.set_result(answer)

    def _lose(self, why: str) -> None:
        if self.lost:
            return
        self.lost = why
        self._writer.close()
        self.events.put_nowait(None)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Unreachable(why))


def _seen(future: asyncio.Future[messages.Reply]) -> None:
    """Retrieve the error: a caller that failed to write does not, and asyncio would report it."""
    if not future.cancelled():
        future.exception()
