"""The parts of `MemoryCluster` that are not in the contract: capacity and preemption."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from elasticdl.cluster.protocol import Exit, ReplicaPhase, ReplicaRequest
from tests.cluster.memory import MemoryCluster

Run = Callable[..., None]


def request(name: str) -> ReplicaRequest:
    return ReplicaRequest(name, "worker", 0, ("anything",), {})


async def phases(cluster: MemoryCluster) -> dict[str, str]:
    return {status.name: status.phase.value for status in await cluster.list()}


def test_what_has_no_room_waits_and_runs_when_there_is(run: Run) -> None:
    async def story() -> None:
        cluster = MemoryCluster(capacity=1)
        for name in ("a", "b", "c"):
            await cluster.launch(request(name))
        assert await phases(cluster) == {"a": "running", "b": "pending", "c": "pending"}
        cluster.preempt("a")
        assert await phases(cluster) == {"a": "gone", "b": "running", "c": "pending"}
        cluster.set_capacity(2)
        assert await phases(cluster) == {"a": "gone", "b": "running", "c": "running"}
        cluster.set_capacity(0)
        assert await phases(cluster) == {"a": "gone", "b": "running", "c": "running"}

    run(story())


def test_a_pending_replica_keeps_its_uid_when_it_starts_and_when_it_is_launched_again(run: Run) -> None:
    async def story() -> None:
        cluster = MemoryCluster(capacity=0)
        await cluster.launch(request("a"))
        (pending,) = await cluster.list()
        await cluster.launch(request("a"))
        cluster.set_capacity(None)
        (running,) = await cluster.list()
        assert (pending.phase, running.phase) == (ReplicaPhase.PENDING, ReplicaPhase.RUNNING)
        assert pending.uid == running.uid

    run(story())


def test_a_pending_replica_that_is_stopped_never_started(run: Run) -> None:
    async def story() -> None:
        cluster = MemoryCluster(capacity=0)
        await cluster.launch(request("a"))
        await cluster.stop("a", grace_seconds=10)
        (gone,) = await cluster.list()
        assert gone.exit == Exit(None, None, oom=False, reason="stopped before it started")

    run(story())


def test_preemption_is_death_by_sigkill_without_lack_of_memory(run: Run) -> None:
    async def story() -> None:
        cluster = MemoryCluster()
        await cluster.launch(request("a"))
        cluster.preempt("a")
        (gone,) = await cluster.list()
        assert gone.exit == Exit(None, signal.SIGKILL, oom=False, reason="killed by SIGKILL")

    run(story())


def test_ending_what_does_not_run_is_a_mistake_of_the_test(run: Run) -> None:
    async def story() -> None:
        cluster = MemoryCluster()
        with pytest.raises(ValueError, match="nobody does not run"):
            cluster.preempt("nobody")

    run(story())
