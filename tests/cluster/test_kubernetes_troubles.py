"""A faulty API server, as a real one rarely is: an HTTP server with given answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from elasticdl.cluster.kubernetes import jobs
from elasticdl.cluster.kubernetes.api import ApiRefused, KubernetesApi
from elasticdl.cluster.kubernetes.cluster import KubernetesCluster
from elasticdl.cluster.kubernetes.credentials import Credentials
from elasticdl.cluster.kubernetes.keeper import Keeper
from elasticdl.cluster.kubernetes.lease import Lease
from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.errors import Unreachable

Run = Callable[..., None]
Answer = Callable[[web.Request], web.StreamResponse]
NONE = {"items": [], "metadata": {"resourceVersion": "1"}}


@contextlib.asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return answer(request)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def pod_of(request: ReplicaRequest) -> dict[str, Any]:
    spec = {"restartPolicy": "Never", "containers": [{"name": "main"}]}
    return {"metadata": {"name": request.name}, "spec": spec}


def cluster_at(url: str, **more: Any) -> KubernetesCluster:
    return KubernetesCluster(KubernetesApi(Credentials(url), deadline_seconds=1), "n", "j", pod_of, **more)


def refusal(code: int, reason: str = "") -> web.Response:
    return web.json_response({"reason": reason, "message": f"no: {code}"}, status=code)


def test_an_answer_that_makes_no_sense_ends_the_events_in_words(run: Run) -> None:
    async def story() -> None:
        async with serving(lambda _: web.Response(text="<html>")) as url:
            cluster = cluster_at(url)
            for _ in range(2):
                with pytest.raises(Unreachable, match="did not answer with JSON: <html>"):
                    await anext(cluster.events())
            await cluster.close()

    run(story(), 5)


def test_a_mistake_of_our_own_is_not_taken_for_a_cluster_that_is_away(run: Run) -> None:
    async def story() -> None:
        async with serving(lambda _: web.json_response({"items": [{}], "metadata": {}})) as url:
            cluster = cluster_at(url)
            for _ in range(2):
                with pytest.raises(KeyError):
                    await anext(cluster.events())
            await cluster.close()

    run(story(), 5)


def test_what_a_kubelet_answers_without_a_log_is_not_the_end_of_it(run: Run) -> None:
    answers = ["first\nlast\n", "unable to retrieve container logs for docker://48b1baa5"]

    async def story() -> None:
        async with serving(lambda _: web.Response(text=answers.pop(0))) as url:
            api = KubernetesApi(Credentials(url))
            assert await api.last_lines("/pods/w-0", "main", 1.0) == ["first", "last"]
            assert await api.last_lines("/pods/w-0", "main", 1.0) == []
            await api.close()

    run(story(), 5)


def test_events_of_a_closed_cluster_end(run: Run) -> None:
    async def story() -> None:
        async with serving(lambda _: web.json_response(NONE)) as url:
            cluster = cluster_at(url)
            await cluster.close()
            before = asyncio.all_tasks()
            assert [status async for status in cluster.events()] == []
            assert asyncio.all_tasks() == before  # no watch runs

    run(story(), 5)


def test_a_token_that_cannot_be_read_for_a_moment_is_read_again(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with serving(lambda request: web.json_response(dict(request.headers))) as url:
            api = KubernetesApi(Credentials(url, user={"tokenFile": str(tmp_path / "token")}), deadline_seconds=5)
            with pytest.raises(Unreachable, match="No such file or directory"):
                await api.call("GET", "/", deadline_seconds=0.3)
            with pytest.raises(Unreachable, match="No such file or directory"):
                await anext(api.watch("/", {}, seconds=1))
            call = asyncio.create_task(api.call("GET", "/"))
            await asyncio.sleep(0.2)
            (tmp_path / "token").write_text("late")
            assert (await call)["Authorization"] == "Bearer late"
            await api.close()

    run(story(), 10)


def test_a_server_is_not_trusted_by_another_authority_when_its_own_cannot_be_read(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        cluster = {"certificate-authority": str(tmp_path / "ca.crt")}
        api = KubernetesApi(Credentials("https://127.0.0.1:1", cluster=cluster), deadline_seconds=0.5)
        with pytest.raises(Unreachable, match=r"No such file or directory: .*ca\.crt"):
            await api.call("GET", "/")
        await api.close()

    run(story(), 5)


def test_watches_that_end_at_once_are_not_asked_for_without_a_pause(run: Run) -> None:
    watches = 0

    def answer(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        watches += "watch" in request.query
        return web.Response() if "watch" in request.query else web.json_response(NONE)

    async def story() -> None:
        async with serving(answer) as url:
            cluster = cluster_at(url)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await anext(cluster.events())
            await cluster.close()

    run(story(), 5)
    assert 2 <= watches <= 8


def test_rights_that_are_away_for_a_moment_end_no_events(run: Run) -> None:
    lists = iter([web.json_response(NONE), refusal(403, "Forbidden"), refusal(403, "Forbidden")])

    def answer(request: web.Request) -> web.StreamResponse:
        return web.Response() if "watch" in request.query else next(lists, web.json_response({**NONE, "items": [NEW]}))

    async def story() -> None:
        async with serving(answer) as url:
            cluster = cluster_at(url)
            assert (await anext(cluster.events())).uid == "new"
            await cluster.close()
        async with serving(lambda _: refusal(403, "Forbidden")) as url:  # from the start: they are missing
            cluster = cluster_at(url)
            with pytest.raises(ApiRefused, match="no: 403"):
                await anext(cluster.events())
            await cluster.close()

    run(story(), 10)


def test_a_lease_is_kept_through_refused_tokens_and_rights_and_given_up_when_they_stay(run: Run) -> None:
    codes = iter([401, 401, 403, 0, 403, 0])
    written = []

    def answer(request: web.Request) -> web.StreamResponse:
        code = next(codes, 403) if request.method == "PUT" else 0
        written.append(code)
        return refusal(code) if code else web.json_response({"metadata": {"resourceVersion": "1"}})

    async def story() -> None:
        async with serving(answer) as url:
            api = KubernetesApi(Credentials(url))
            lease = Lease(api, "n", "j", "me", {}, give_up_seconds=1.0, renew_seconds=0.05)
            with pytest.raises(Unreachable, match=r"could not be renewed for 1 s: Kubernetes refused: no: 403"):
                await lease.keep()
            await api.close()

    run(story(), 5)
    assert written[:6] == [401, 401, 403, 0, 403, 0] and len(written) > 10


def test_a_masters_pod_is_watched_with_pauses_when_each_watch_ends_at_once(run: Run) -> None:
    watches = 0
    meta = {"name": "elasticdl-j-master", "namespace": "n", "uid": "1", "resourceVersion": "1"}
    labels = {"elasticdl-job-name": "j", "elasticdl-replica-type": "master"}
    pod = {**NEW, "metadata": {**NEW["metadata"], **meta, "labels": labels}}

    def answer(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        watches += "watch" in request.query
        if "watch" in request.query:
            return web.Response()
        if request.path.endswith("/configmaps/elasticdl-j"):
            return web.json_response({"metadata": {"uid": "7"}})
        return web.json_response({**NONE, "items": [pod] if request.path.endswith("/pods") else []})

    async def story(what: Callable[[KubernetesApi], Coroutine[Any, Any, Any]]) -> None:
        async with serving(answer) as url:
            api = KubernetesApi(Credentials(url))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(what(api), 1.2)
            await api.close()

    run(story(lambda api: Keeper(api, "n", "j").run()), 5)
    assert 2 <= watches <= 8
    watches = 0
    run(story(lambda api: jobs.ended(api, jobs.ClusterJob("n", "j"))), 5)
    assert 1 <= watches <= 3


OLD: dict[str, Any] = {
    "metadata": {
        "name": "w-0",
        "uid": "old",
        "creationTimestamp": "2024-01-01T00:00:00Z",
        "deletionTimestamp": "2024-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 0,
    },
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]},
    "status": {"phase": "Running"},
}
NEW: dict[str, Any] = {**OLD, "metadata": {"name": "w-0", "uid": "new", "creationTimestamp": "2024-01-01T00:00:09Z"}}


def with_an_old_pod(watches: Iterator[web.Response]) -> Answer:
    """A server whose pod w-0 is gone after these answers to a watch."""
    gone = False

    def answer(request: web.Request) -> web.StreamResponse:
        nonlocal gone
        if request.method == "POST":
            return web.json_response(NEW) if gone else refusal(409, "AlreadyExists")
        if "watch" in request.query:
            said = next(watches, None)
            gone = said is None
            return said or web.Response()
        if request.path.endswith("/w-0"):
            return web.json_response(OLD)
        return web.json_response({**NONE, "items": [] if gone else [OLD]})

    return answer


def test_a_launch_waits_for_its_name_through_passing_troubles(run: Run) -> None:
    async def story() -> None:
        passing = iter([refusal(503), refusal(401), web.Response()])
        async with serving(with_an_old_pod(passing)) as url:
            cluster = cluster_at(url)
            await cluster.launch(ReplicaRequest("w-0", "worker", 0, ("true",), {}))
            await cluster.close()

    run(story(), 10)


def test_a_launch_whose_name_stays_taken_reports_why(run: Run) -> None:
    async def story() -> None:
        async with serving(with_an_old_pod(refusal(503) for _ in range(1000))) as url:
            cluster = cluster_at(url, overdue_seconds=0.5)
            with pytest.raises(Unreachable, match=r"the old pod w-0 still exists after 1 s: Kubernetes refused: no"):
                await cluster.launch(ReplicaRequest("w-0", "worker", 0, ("true",), {}))
            await cluster.close()

    run(story(), 10)
