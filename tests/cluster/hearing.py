"""Waiting for what a cluster reports."""

from __future__ import annotations

import contextlib

from elasticdl.cluster.protocol import Cluster, ReplicaPhase, ReplicaStatus


async def hear(cluster: Cluster, name: str, phase: ReplicaPhase, other_than_uid: str = "") -> ReplicaStatus:
    """The first status of this replica in this phase, not of the process with this uid."""
    async with contextlib.aclosing(cluster.events()) as events:
        async for status in events:
            if status.name == name and status.phase is phase and status.uid != other_than_uid:
                return status
    raise AssertionError(f"the events ended before {name} was {phase}")


async def hear_end(cluster: Cluster, name: str, other_than_uid: str = "") -> ReplicaStatus:
    return await hear(cluster, name, ReplicaPhase.GONE, other_than_uid)


async def status_of(cluster: Cluster, name: str) -> ReplicaStatus:
    return next(status for status in await cluster.list() if status.name == name)
