"""A tunnel to a job's master in its pod: a local port whose connections go through the API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import aiohttp

from elasticdl.cluster.kubernetes import pipe
from elasticdl.cluster.kubernetes.api import ApiRefused, KubernetesApi
from elasticdl.cluster.kubernetes.reading import CONTAINER
from elasticdl.errors import WireError
from elasticdl.job import names

# A command, not `portforward`: before Kubernetes 1.24 that needs socat on the nodes, and its websockets differ between
# versions, while those of a command are the same in all versions.
# The program is part of the command and needs only Python in the image: it starts in a third of the time.
COMMAND = ("python", "-S", "-c", Path(pipe.__file__).read_text(encoding="utf-8"), str(names.MASTER_PORT))
_PROTOCOL = "v4.channel.k8s.io"
_INPUT, _OUTPUT, _ERRORS, _END = range(4)  # the first byte of a message names its stream
_CHUNK = 1 << 15


class Tunnel:
    """Each connection leads to the pod that has the name at that moment, also to a replaced master."""

    def __init__(self, api: KubernetesApi, namespace: str, pod: str, command: tuple[str, ...] = COMMAND) -> None:
        asked = [("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
        query = urlencode([*asked, *(("command", word) for word in command)])
        self._path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec?{query}"
        self._api = api
        self.trouble = ""  # why the last connection failed

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """host:port of the local end."""
        serving: set[asyncio.Task[None]] = set()

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._serve(reader, writer))
            serving.add(task)
            task.add_done_callback(serving.discard)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            host, port = server.sockets[0].getsockname()[:2]
            yield f"{host}:{port}"
        finally:
            server.close()
            for task in serving:
                task.cancel()
            if serving:
                await asyncio.wait(serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            socket = await self._connect()
            async with socket:
                ways = {
                    asyncio.create_task(self._send(reader, socket)),
                    asyncio.create_task(self._receive(socket, writer)),
                }
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.wait(ways)
        except WireError as error:
            self.trouble = str(error)
        finally:
            writer.close()

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        try:
            return await self._api.websocket(f"{self._path}&container={CONTAINER}", _PROTOCOL)
        except ApiRefused as refusal:
            if refusal.code != 400:
                raise
            return await self._api.websocket(self._path, _PROTOCOL)  # a pod of the old client has only one container

    async def _send(self, reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
        with contextlib.suppress(OSError, aiohttp.ClientError):  # one end is closed; the other notices
            while data := await reader.read(_CHUNK):
                await socket.send_bytes(bytes([_INPUT]) + data)

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
        before, complaint, joined = b"", b"", False
        with contextlib.suppress(OSError, aiohttp.ClientError):
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                    continue
                kind, data = message.data[0], message.data[1:]
                if kind == _OUTPUT and not joined:
                    before = (before + data)[:_CHUNK]
                    joined, data = before.startswith(pipe.READY), before[len(pipe.READY) :]
                if kind == _OUTPUT and joined:
                    self.trouble = ""
                    writer.write(data)
                    await writer.drain()
                elif kind == _ERRORS:
                    complaint = (complaint + data)[-_CHUNK:]
                elif kind == _END:  # a container's runtime reports errors on either stream
                    self.trouble = _why(data, complaint if joined else before + complaint)


def _why(end: bytes, complaint: bytes) -> str:
    """How the command in the pod failed: its own message, else that of Kubernetes; empty if it succeeded."""
    try:
        status = json.loads(end)
    except ValueError:
        status = {}
    if not isinstance(status, dict) or status.get("status") == "Success":
        return ""
    said = complaint.decode(errors="replace").strip().splitlines()
    return said[-1] if said else str(status.get("message", "the connection into the pod ended"))
