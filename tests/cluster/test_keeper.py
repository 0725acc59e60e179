"""What the keeper reads from ended masters' pods, and how long it waits before the next one."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import pytest

from elasticdl.cluster.kubernetes import keeper
from elasticdl.cluster.kubernetes.api import KubernetesApi
from elasticdl.cluster.kubernetes.credentials import Credentials


def master(seconds: int | None = None, code: int = 143) -> dict[str, Any]:
    """A master's pod, created long ago, whose container ran for this time; None: there was no container."""
    pod: dict[str, Any] = {
        "metadata": {"name": "elasticdl-j-master", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": "Failed", "reason": "OutOfcpu"},
    }
    if seconds is not None:
        ran = {
            "startedAt": "2026-01-01T12:00:00Z",
            "finishedAt": f"2026-01-01T12:{seconds // 60:02}:{seconds % 60:02}Z",
        }
        pod["status"] = {
            "phase": "Failed",
            "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": code, **ran}}}],
        }
    return pod


@pytest.fixture
def kept() -> keeper.Keeper:
    return keeper.Keeper(KubernetesApi(Credentials("https://nowhere.example")), "n", "j")


def test_a_master_counts_as_having_run_since_its_container_started() -> None:
    assert keeper._ran_seconds(master(90)) == 90.0, "not since its pod was made, which waited for half a day"
    assert keeper._ran_seconds(master(None)) == 0.0


def test_a_master_without_a_container_status_ran_since_it_came_to_its_node() -> None:
    lost, waiting = master(None), master(None)
    came = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2)
    lost["status"]["startTime"] = waiting["status"]["startTime"] = came.isoformat(timespec="seconds")
    assert 7190 < keeper._ran_seconds(lost) < 7300
    waiting["status"]["containerStatuses"] = [{"name": "main", "state": {"waiting": {"reason": "ErrImagePull"}}}]
    assert keeper._ran_seconds(waiting) == 0.0


def test_a_keeper_that_is_sent_away_waits_no_longer_before_it_makes_a_master(kept: keeper.Keeper) -> None:
    async def story() -> None:
        pausing = asyncio.create_task(kept._pause(60))
        done, _ = await asyncio.wait({pausing}, timeout=0.05)
        assert not done
        kept.hurry.set()
        await asyncio.wait_for(pausing, 5)
        await asyncio.wait_for(kept._pause(60), 5)

    asyncio.run(story())


def test_masters_that_are_lost_one_after_the_other_are_made_again_more_and_more_slowly(kept: keeper.Keeper) -> None:
    assert kept._after_loss(master(5)) == 0.0, "the first at once"
    pauses = [kept._after_loss(master(seconds)) for seconds in (None, None, 0, 3, None, None, None, None)]
    assert all(least / 2 <= pause <= least for least, pause in zip((1, 2, 4, 8, 16, 32, 60, 60), pauses, strict=True))


def test_a_master_that_ran_for_a_while_is_made_again_at_once(kept: keeper.Keeper) -> None:
    for seconds in (5, None, None):
        kept._after_loss(master(seconds))
    assert kept._after_loss(master(61)) == 0.0
    assert kept._after_loss(master(5)) <= 1.0
