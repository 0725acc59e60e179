"""The state of a job's pods, from lists, watches and answers that may arrive in any order."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from dataclasses import replace

from elasticdl.cluster.kubernetes.reading import Pod, exit_of, has_run, held_up_by, note_of, phase_of
from elasticdl.cluster.protocol import Exit, ReplicaPhase, ReplicaStatus
from elasticdl.cluster.status_board import Board
from elasticdl.job import names

Investigate = Callable[[Pod, bool, bool], Awaitable[Exit]]


class Ledger:
    """The last status of each name. Older reports change nothing.

    `investigate(pod, ran, deleted)` finds out how a pod ended, with calls to the API server; then the end is posted.
    """

    def __init__(self, board: Board, investigate: Investigate) -> None:
        self._board, self._investigate = board, investigate
        self._pods: dict[str, Pod] = {}  # the newest report of each name
        self._order: dict[str, tuple[int, str]] = {}
        self._past: set[str] = set()  # uids of pods that were replaced by others of the same name
        self._ending: dict[str, asyncio.Task[None]] = {}  # by uid

    def all(self) -> list[ReplicaStatus]:
        """In the order of first launch."""
        return sorted(self._board.all(), key=lambda status: self._order[status.name])

    def first_launch(self, name: str) -> int | None:
        """When a pod of this name was first created."""
        found = self._order.get(name)
        return found[0] if found else None

    def alive(self) -> list[ReplicaStatus]:
        """Replicas whose end has not been reported, not even partly."""
        statuses = self._board.all()
        return [s for s in statuses if s.phase is not ReplicaPhase.GONE and s.uid not in self._ending]

    def take(self, pod: Pod, *, deleted: bool = False) -> None:
        """Process another report of a pod; `deleted`: its last one."""
        meta = pod["metadata"]
        name, uid = meta["name"], meta["uid"]
        known = self._board.get(name)
        if uid in self._past or uid in self._ending:
            return
        if known is not None and known.uid != uid:
            self._replaced(known)
            known = None
        if known is not None and known.phase is ReplicaPhase.GONE:
            return
        phase = phase_of(pod)
        running = known is not None and known.phase is ReplicaPhase.RUNNING
        if running and phase is ReplicaPhase.PENDING and not deleted:
            return  # an older report
        self._pods[name] = pod
        self._order[name] = min(_first_launch(pod), self._order.get(name, _first_launch(pod)))
        status = _status(pod, phase)
        if deleted or phase is ReplicaPhase.GONE:
            # A pod that ended at once may never have been seen running.
            task = asyncio.create_task(self._end(pod, known or status, running or has_run(pod), deleted))
            self._ending[uid] = task
            task.add_done_callback(lambda _: self._ending.pop(uid))
        elif status != known:
            self._board.post(status)

    def forget(self, status: ReplicaStatus) -> None:
        """Process the deletion of a pod, which was missed."""
        pod = self._pods[status.name]
        if pod["metadata"]["uid"] == status.uid:
            meta = {"deletionTimestamp": None, **pod["metadata"]}
            self.take({**pod, "metadata": meta}, deleted=True)

    async def settle(self) -> None:
        """Wait until every known end has been posted."""
        while self._ending:
            await asyncio.wait(list(self._ending.values()))

    async def close(self) -> None:
        for task in self._ending.values():
            task.cancel()
        await self.settle()

    async def _end(self, pod: Pod, status: ReplicaStatus, ran: bool, deleted: bool) -> None:
        exit = await self._investigate(pod, ran, deleted)
        self._board.post(replace(status, phase=ReplicaPhase.GONE, exit=exit, note="", held_up=""))

    def _replaced(self, old: ReplicaStatus) -> None:
        self._past.add(old.uid)
        task = self._ending.get(old.uid)
        if task is not None:
            task.cancel()
        if old.phase is not ReplicaPhase.GONE:
            end = exit_of(self._pods[old.name], ran=old.phase is ReplicaPhase.RUNNING)
            self._board.post(replace(old, phase=ReplicaPhase.GONE, exit=end, note="", held_up=""))


def _status(pod: Pod, phase: ReplicaPhase) -> ReplicaStatus:
    meta = pod["metadata"]
    marks = meta.get("labels", {})
    index = marks.get(names.LABEL_INDEX, "")
    return ReplicaStatus(
        meta["name"],
        marks.get(names.LABEL_TYPE, ""),
        int(index) if index.isdecimal() else 0,
        meta["uid"],
        phase,
        note=note_of(pod),
        held_up=held_up_by(pod),
    )


def _first_launch(pod: Pod) -> tuple[int, str]:
    """Nanoseconds; whole seconds for a pod that another program created."""
    meta = pod["metadata"]
    said = meta.get("annotations", {}).get(names.ANNOTATION_ORDER, "")
    if said.isdecimal():
        return int(said), meta["name"]
    made = datetime.datetime.fromisoformat(meta["creationTimestamp"]).timestamp()
    return int(made * 1e9), meta["name"]
