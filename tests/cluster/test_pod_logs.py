"""The log of a pod, read from a slow or faulty API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from elasticdl.cluster.kubernetes.api import KubernetesApi
from elasticdl.cluster.kubernetes.credentials import Credentials
from elasticdl.cluster.kubernetes.pod_logs import read
from elasticdl.errors import Unreachable

POD: dict[str, Any] = {"metadata": {"name": "w-0", "namespace": "n"}, "spec": {"containers": [{"name": "main"}]}}
LINES = [f"2026-01-01T00:00:0{i}Z line {i}" for i in range(5)]
SAID = [f"line {i}" for i in range(5)]


@contextlib.asynccontextmanager
async def serving(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[KubernetesApi]:
    """A client whose attempts at a whole answer last 0.2 s."""
    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        api = KubernetesApi(Credentials(f"http://{host}:{port}"), deadline_seconds=1, attempt_seconds=0.2)
        try:
            yield api
        finally:
            await api.close()
    finally:
        await runner.cleanup()


async def slowly(request: web.Request, seconds: float, *, end: str = "\n") -> web.StreamResponse:
    """The lines, each after a pause."""
    answer = web.StreamResponse()
    await answer.prepare(request)
    for line in LINES:
        await asyncio.sleep(seconds)
        await answer.write((line + (end if line == LINES[-1] else "\n")).encode())
    return answer


def test_a_log_that_takes_longer_than_an_attempt_is_read_to_its_end_in_one() -> None:
    asked = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(dict(request.query))
        return await slowly(request, 0.1)

    async def story() -> None:
        async with serving(answer) as api:
            assert [text for _, text in await read(api, POD)] == SAID

    asyncio.run(story())
    assert asked == [{"container": "main", "timestamps": "true"}]


def test_the_last_line_of_a_log_counts_also_when_it_was_not_ended() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await slowly(request, 0, end="")

    async def story() -> None:
        async with serving(answer) as api:
            assert [text for _, text in await read(api, POD)] == SAID

    asyncio.run(story())


def test_a_server_that_stumbles_is_asked_again_for_the_whole_log() -> None:
    answers = iter([503, 401, "cut", "all"])

    async def answer(request: web.Request) -> web.StreamResponse:
        what = next(answers)
        if isinstance(what, int):
            return web.json_response({"message": "later"}, status=what)
        if what == "cut":
            half = web.StreamResponse(headers={"Content-Length": "1000"})
            await half.prepare(request)
            await half.write(f"{LINES[0]}\n".encode())
            assert request.transport is not None
            request.transport.close()
            return half
        return await slowly(request, 0)

    async def story() -> None:
        async with serving(answer) as api:
            assert [text for _, text in await read(api, POD)] == SAID

    asyncio.run(story())


def test_a_log_that_falls_silent_is_not_waited_for_without_end() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await slowly(request, 5)

    async def story() -> None:
        async with serving(answer) as api:
            with pytest.raises(Unreachable, match=r"no more of a log came within 0\.2 s"):
                await read(api, POD, silence_seconds=0.2, try_seconds=0.1)

    asyncio.run(story())


def test_a_pod_that_has_not_started_has_no_log() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "container main is waiting to start"}, status=400)

    async def story() -> None:
        async with serving(answer) as api:
            assert await read(api, POD) == []

    asyncio.run(story())
