"""The tunnel to a master through an API server; this one runs the pod's command as a process of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from aiohttp import WSMsgType, web

from elasticdl.cluster.kubernetes.api import KubernetesApi
from elasticdl.cluster.kubernetes.credentials import Credentials
from elasticdl.cluster.kubernetes.tunnel import COMMAND, Tunnel

Run = Callable[[Coroutine[Any, Any, None]], None]
PROTOCOL = "v4.channel.k8s.io"
ENDED = web.AppKey("ended", asyncio.Event)


async def execute(request: web.Request) -> web.StreamResponse:
    """`pods/exec` with the channels of Kubernetes: a byte for the stream, then its data."""
    if request.match_info["pod"] != "master":
        words = {"kind": "Status", "reason": "NotFound", "message": f'pods "{request.match_info["pod"]}" not found'}
        return web.json_response(words, status=404)
    assert request.query["container"] == "main"
    socket = web.WebSocketResponse(protocols=(PROTOCOL,))
    await socket.prepare(request)
    pipe = asyncio.subprocess.PIPE
    command = request.query.getall("command")
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None

    async def pass_on(stream: asyncio.StreamReader, channel: int) -> None:
        while data := await stream.read(1 << 16):
            await socket.send_bytes(bytes([channel]) + data)

    async def end() -> None:
        await asyncio.gather(pass_on(process.stdout, 1), pass_on(process.stderr, 2))
        code = await process.wait()
        status = {"status": "Success"} if code == 0 else {"status": "Failure", "message": f"exit code {code}"}
        with contextlib.suppress(ConnectionError):  # the client may be gone
            await socket.send_bytes(b"\3" + json.dumps(status).encode())
        await socket.close()

    ending = asyncio.create_task(end())
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data[:1] == b"\0":
            process.stdin.write(message.data[1:])
    process.stdin.close()  # the client is gone: end the command's input
    await ending
    request.app[ENDED].set()
    return socket


@contextlib.asynccontextmanager
async def api_server() -> AsyncIterator[tuple[KubernetesApi, asyncio.Event]]:
    app = web.Application()
    app[ENDED] = asyncio.Event()
    app.router.add_get("/api/v1/namespaces/team/pods/{pod}/exec", execute)
    runner = web.AppRunner(app, handle_signals=False)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    api = KubernetesApi(Credentials(f"http://127.0.0.1:{port}"))
    try:
        yield api, app[ENDED]
    finally:
        await api.close()
        await runner.cleanup()


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """A port that echoes its input until the end."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def command(port: int) -> tuple[str, ...]:
    return sys.executable, *COMMAND[1:-1], str(port)


def test_what_goes_in_at_one_end_comes_out_at_the_other_and_nothing_stays_behind(run: Run) -> None:
    async def story() -> None:
        sent = bytes(range(256)) * 12_000
        async with (
            api_server() as (api, ended),
            echo() as port,
            Tunnel(api, "team", "master", command(port)).open() as address,
        ):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(sent)
            assert await reader.readexactly(len(sent)) == sent
            writer.close()
            await ended.wait()  # the input of the command in the pod has ended

    run(story())


def test_a_port_without_a_listener_is_reported(run: Run) -> None:
    async def story() -> None:
        async with echo() as port:
            pass
        async with api_server() as (api, _):
            tunnel = Tunnel(api, "team", "master", command(port))
            async with tunnel.open() as address:
                reader, _writer = await asyncio.open_connection(*address.split(":"))
                assert await reader.read() == b""
            assert tunnel.trouble == f"nothing listens on port {port} of this pod: Connection refused"

    run(story())


def test_output_of_a_containers_runtime_is_not_taken_for_the_masters_answer(run: Run) -> None:
    async def story() -> None:
        complaint = "OCI runtime exec failed: container not running"
        async with api_server() as (api, _):
            tunnel = Tunnel(api, "team", "master", (sys.executable, "-c", f"print({complaint!r}); exit(126)"))
            async with tunnel.open() as address:
                reader, _writer = await asyncio.open_connection(*address.split(":"))
                assert await reader.read() == b""
            assert tunnel.trouble == complaint

    run(story())


def test_a_missing_pod_is_reported_with_the_api_servers_message(run: Run) -> None:
    async def story() -> None:
        async with api_server() as (api, _):
            tunnel = Tunnel(api, "team", "gone")
            async with tunnel.open() as address:
                reader, _writer = await asyncio.open_connection(*address.split(":"))
                assert await reader.read() == b""
            assert tunnel.trouble == 'Kubernetes refused: pods "gone" not found'

    run(story())
