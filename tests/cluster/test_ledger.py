"""Reports of pods that arrive late, twice or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from elasticdl.cluster.kubernetes.ledger import Ledger
from elasticdl.cluster.kubernetes.reading import exit_of
from elasticdl.cluster.protocol import Exit, ReplicaPhase
from elasticdl.cluster.status_board import Board
from elasticdl.job import names

Run = Callable[..., None]


def pod(name: str, uid: str, phase: str, *, first: int = 1, code: int | None = None) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code}} if code is not None else {"running": {}}
    return {
        "metadata": {
            "name": name,
            "uid": uid,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": names.labels("j", "worker", 0),
            "annotations": {names.ANNOTATION_ORDER: str(first)},
        },
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": "main", "state": state}] if phase != "Pending" else [],
        },
    }


class Scene:
    """A ledger whose investigations wait until they may end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.board = Board()
        self.ledger = Ledger(self.board, self._investigate)

    async def _investigate(self, account: dict[str, Any], ran: bool, deleted: bool) -> Exit:
        await self.may_end.wait()
        return exit_of(account, ran=ran)

    def phases(self) -> list[tuple[str, str, ReplicaPhase]]:
        return [(status.name, status.uid, status.phase) for status in self.ledger.all()]


def test_an_older_account_changes_nothing(run: Run) -> None:
    async def story() -> None:
        scene = Scene()
        scene.ledger.take(pod("w", "a", "Running"))
        scene.ledger.take(pod("w", "a", "Pending"))
        assert scene.phases() == [("w", "a", ReplicaPhase.RUNNING)]
        scene.ledger.take(pod("w", "a", "Failed", code=1))
        await scene.ledger.settle()
        scene.ledger.take(pod("w", "a", "Running"))
        assert scene.phases() == [("w", "a", ReplicaPhase.GONE)]

    run(story())


def test_a_pod_that_was_replaced_is_not_believed_again(run: Run) -> None:
    async def story() -> None:
        scene = Scene()
        scene.ledger.take(pod("w", "a", "Running"))
        scene.ledger.take(pod("w", "b", "Pending"))
        scene.ledger.take(pod("w", "a", "Running"))
        scene.ledger.take(pod("w", "a", "Running"), deleted=True)
        assert scene.phases() == [("w", "b", ReplicaPhase.PENDING)]

    run(story())


def test_the_end_of_a_pod_is_posted_before_another_takes_its_name(run: Run) -> None:
    async def story() -> None:
        scene = Scene()
        heard = []

        async def hear() -> None:
            async for status in scene.board.watch():
                heard.append((status.uid, status.phase))

        hearing = asyncio.create_task(hear())
        scene.may_end.clear()
        scene.ledger.take(pod("w", "a", "Running"))
        await asyncio.sleep(0)
        scene.ledger.take(pod("w", "a", "Failed", code=1))  # its log is being fetched …
        scene.ledger.take(pod("w", "b", "Running"))  # … when the next comes
        await scene.ledger.settle()
        scene.board.close()
        await hearing
        assert heard == [("a", ReplicaPhase.RUNNING), ("a", ReplicaPhase.GONE), ("b", ReplicaPhase.RUNNING)]

    run(story())


def test_a_pod_first_seen_at_its_end_is_gone_with_its_exit(run: Run) -> None:
    async def story() -> None:
        scene = Scene()
        scene.ledger.take(pod("w", "a", "Failed", code=7))
        await scene.ledger.settle()
        (status,) = scene.ledger.all()
        assert status.phase is ReplicaPhase.GONE
        assert status.exit is not None
        assert status.exit.code == 7

    run(story())


def test_a_pod_that_ends_as_failed_before_its_container_started_did_not_run(run: Run) -> None:
    async def story() -> None:
        scene = Scene()
        account = pod("w", "a", "Pending")
        account["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:01Z"}
        scene.ledger.take(account)
        unknown = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
        statuses = [{"name": "main", "state": {"terminated": unknown}}]
        scene.ledger.take({**account, "status": {"phase": "Failed", "containerStatuses": statuses}})
        await scene.ledger.settle()
        (status,) = scene.ledger.all()
        assert status.exit is not None
        assert (status.exit.code, status.exit.signal) == (None, None)
        assert status.exit.reason == "deleted, before it started"

    run(story())


def test_a_pod_whose_deletion_was_missed_was_deleted(run: Run) -> None:
    async def story() -> None:
        scene = Scene()
        scene.ledger.take(pod("w", "a", "Running"))
        scene.ledger.forget(scene.ledger.alive()[0])
        assert scene.ledger.alive() == []
        await scene.ledger.settle()
        (status,) = scene.ledger.all()
        assert status.exit is not None
        assert status.exit.reason == "deleted"
        assert status.exit.from_outside

    run(story())


def test_the_order_is_that_of_first_launch_not_of_first_report(run: Run) -> None:
    async def story() -> None:
        scene = Scene()
        for name, first in (("b", 3), ("c", 1), ("a", 2)):
            scene.ledger.take(pod(name, name, "Running", first=first))
        scene.ledger.take(pod("c", "c2", "Running", first=9))
        assert [status.name for status in scene.ledger.all()] == ["c", "a", "b"]
        assert scene.ledger.first_launch("c") == 1

    run(story())
