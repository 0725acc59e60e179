"""The Lease of a job on a real cluster: one master at a time, and a quick change."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from elasticdl.cluster.kubernetes.api import KubernetesApi
from elasticdl.cluster.kubernetes.lease import Lease
from elasticdl.errors import Refused, Unreachable
from tests.cluster.kubernetes_stage import kubectl, kubectl_soon, make_api
from tests.cluster.wires import Wire

pytestmark = pytest.mark.kubernetes

Run = Callable[..., None]
LEASE_SECONDS = 3


@asynccontextmanager
async def job(namespace: str, api: KubernetesApi | None = None) -> AsyncIterator[Callable[[str], Lease]]:
    """Makes Leases of one new job for different holders."""
    name, api = f"j{uuid.uuid4().hex[:6]}", api or make_api()
    await kubectl_soon("create", "configmap", f"elasticdl-{name}", namespace=namespace)
    config = json.loads(kubectl("get", "configmap", f"elasticdl-{name}", "-o", "json", namespace=namespace))
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": f"elasticdl-{name}", "uid": config["metadata"]["uid"]}

    def lease(holder: str, submission: str = owner["uid"]) -> Lease:
        by = {**owner, "uid": submission}
        return Lease(
            api, namespace, name, holder, by, lease_seconds=LEASE_SECONDS, give_up_seconds=2.0, renew_seconds=0.2
        )

    try:
        yield lease
    finally:
        await api.close()


def test_a_released_lease_is_acquired_at_once_and_a_lost_holders_when_it_expires(run: Run, namespace: str) -> None:
    async def story() -> None:
        async with job(namespace) as lease:
            first, second, third = lease("first"), lease("second"), lease("third")
            await first.acquire()
            waiting = asyncio.create_task(second.acquire())
            await asyncio.sleep(0.5)
            assert not waiting.done()
            await first.release()
            await asyncio.wait_for(waiting, 2.0)
            began = time.monotonic()
            await third.acquire()  # the second is lost and does not release it
            assert LEASE_SECONDS <= time.monotonic() - began < LEASE_SECONDS + 3

    run(story(), 30)


def test_a_holder_that_renews_keeps_it_and_one_that_lost_it_is_refused(run: Run, namespace: str) -> None:
    async def story() -> None:
        async with job(namespace) as lease:
            mine, other = lease("mine"), lease("other")
            await mine.acquire()
            keeping = asyncio.create_task(mine.keep())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(other.acquire(), LEASE_SECONDS + 2)
            keeping.cancel()
            await asyncio.wait({keeping})
            await other.acquire()
            with pytest.raises(Refused, match="another master has taken the lease"):
                await asyncio.wait_for(mine.keep(), 5)
            await mine.release()  # not its own any more: nothing happens
            await asyncio.wait_for(other.acquire(), 2)

    run(story(), 40)


def test_the_lease_of_an_earlier_job_of_the_same_name_does_not_block(run: Run, namespace: str) -> None:
    async def story() -> None:
        async with job(namespace) as lease:
            await lease("old", submission=str(uuid.uuid4())).acquire()
            await asyncio.wait_for(lease("new").acquire(), 2)

    run(story(), 30)


def test_a_deleted_lease_is_created_again(run: Run, namespace: str) -> None:
    async def story() -> None:
        async with job(namespace) as lease:
            mine = lease("mine")
            await mine.acquire()
            await kubectl_soon("delete", "leases", "--all", namespace=namespace)
            keeping = asyncio.create_task(mine.keep())
            await asyncio.sleep(1.0)
            assert not keeping.done()
            keeping.cancel()
            assert "mine" in kubectl("get", "leases", "-o", "yaml", namespace=namespace)

    run(story(), 30)


def test_a_master_that_cannot_reach_the_api_server_gives_up_before_another_may_take_over(
    run: Run, namespace: str
) -> None:
    async def story() -> None:
        found = make_api().credentials
        url = urlsplit(found.server)
        async with Wire(str(url.hostname), url.port or 443) as wire:
            cluster = {"tls-server-name": url.hostname, **found.cluster}
            through = replace(found, server=f"https://127.0.0.1:{wire.port}", cluster=cluster)
            async with job(namespace, KubernetesApi(through)) as lease:
                mine = lease("mine")
                await mine.acquire()
                await wire.cut()
                began = time.monotonic()
                with pytest.raises(Unreachable, match=r"the lease of elasticdl-\w+ could not be renewed for [23] s"):
                    await mine.keep()
                assert time.monotonic() - began < LEASE_SECONDS

    run(story(), 30)
