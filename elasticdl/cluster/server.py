"""Serves a cluster to other processes of the same user over a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from elasticdl.cluster import endpoint, messages
from elasticdl.cluster.protocol import Cluster, ReplicaStatus
from elasticdl.errors import Refused

log = logging.getLogger(__name__)


class ClusterServer:
    """Answers calls on a socket. A faulty client gets an error and does not affect other clients."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self._cluster, self._path = cluster, path
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        listener = endpoint.bind(self._path)
        self._server = await asyncio.start_unix_server(self._connected, sock=listener, limit=messages.MOST_LINE_BYTES)

    async def close(self) -> None:
        """Refuse new calls, close all connections, remove the socket's file."""
        if self._server is None:
            return
        self._server.close()
        self._path.unlink(missing_ok=True)
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        connection = _Connection(self._cluster, reader, writer)
        try:
            if endpoint.is_own_user(writer.get_extra_info("socket")):
                await connection.serve()
            else:
                connection.send(messages.Reply(id=None, refused="this job belongs to another user"))
        except asyncio.CancelledError:
            pass  # by `close`; asyncio would report a cancelled handler as an error
        except OSError as error:  # the client is gone
            log.debug("Lost a client: %s", error)
        finally:
            connection.close()
            self._connections.discard(task)


class _Connection:
    """One client."""

    def __init__(self, cluster: Cluster, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._cluster, self._reader, self._writer = cluster, reader, writer
        self._watch: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:  # no end of line within the limit: the start of the next message is unknown
                self.send(messages.Reply(id=None, refused=f"message longer than {messages.MOST_LINE_BYTES} bytes"))
                return
            if not line.endswith(b"\n"):
                return
            self.send(await self._answer(line))
            await self._writer.drain()

    async def _answer(self, line: bytes) -> messages.Reply:
        try:
            call = messages.decode_call(line)
        except messages.Malformed as error:
            return messages.Reply(id=error.call_id, refused=str(error))
        try:
            return messages.Reply(id=call.id, replicas=await self._act(call.action))
        except Refused as error:
            return messages.Reply(id=call.id, refused=str(error))

    async def _act(self, action: messages.Action) -> list[ReplicaStatus] | None:
        match action:
            case messages.Launch():
                await self._cluster.launch(action.request)
            case messages.Stop():
                await self._cluster.stop(action.name, action.grace_seconds)
            case messages.Kill():
                await self._cluster.kill(action.name)
            case messages.List():
                return await self._cluster.list()
            case messages.Watch():
                if self._watch is None:
                    self._watch = asyncio.create_task(self._send_events())
        return None

    async def _send_events(self) -> None:
        with contextlib.suppress(OSError):  # a client that is gone ends `serve` too
            async with contextlib.aclosing(self._cluster.events()) as events:
                async for status in events:
                    self.send(messages.ReplicaChanged(status=status))
                    await self._writer.drain()

    def send(self, message: messages.Message) -> None:
        self._writer.write(messages.encode(message))

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._writer.close()
