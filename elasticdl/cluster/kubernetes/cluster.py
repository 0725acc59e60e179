"""`KubernetesCluster`: the master's control of its job's pods."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

from elasticdl.cluster.kubernetes.api import (
    PASSING,
    SHORT_WATCH_SECONDS,
    ApiRefused,
    KubernetesApi,
    Pauses,
    labelled,
    named,
)
from elasticdl.cluster.kubernetes.ledger import Ledger
from elasticdl.cluster.kubernetes.reading import (
    EVENT_REASONS,
    KILLED,
    STOPPED,
    Pod,
    exit_of,
    leaving,
    main_container,
    phase_of,
)
from elasticdl.cluster.protocol import Exit, ReplicaPhase, ReplicaRequest, ReplicaStatus
from elasticdl.cluster.status_board import Board
from elasticdl.errors import Refused, Unreachable, WireError
from elasticdl.job import names

LEAST_GRACE_SECONDS = 2  # the least that a kubelet gives
INVESTIGATION_SECONDS = 2.0  # for the log and events of a pod that ended
KILL_OVERDUE_SECONDS = 5.0
# For a watch: renewed credentials, or the version of a new list, may help.
_TRIED_AGAIN = PASSING | {401, 410}


class KubernetesCluster:
    """Replicas as pods of one namespace, found by the job's labels. The pods are the only state: a new client finds
    them.

    Differences from local processes:

    - The grace period is in whole seconds, at least 2. A killed replica also receives SIGTERM shortly before SIGKILL.
    - Exit codes above 128 count as signals: the container's runtime does not distinguish them.
    - A pod that was stopped, killed or deleted is soon removed, with its log. Kubelets before 1.22 often forget how its
      container ended; then the exit has neither code nor signal, and a new client does not find the pod.
    - Kubelets before 1.22 do not shorten a grace period that has begun. A pod that exists after its grace period, for
      this reason or because its node is lost, is removed by force, so that its name can be used again. Its process may
      still be running.
    """

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        job_name: str,
        make_pod: Callable[[ReplicaRequest], Pod],
        *,
        relist_seconds: float = 60.0,
        outage_seconds: float = 300.0,
        overdue_seconds: float = 20.0,
    ) -> None:
        """`outage_seconds`: how long the API server may be unreachable before events end in `Unreachable`."""
        self._api, self._make_pod = api, make_pod
        self._home = f"/api/v1/namespaces/{namespace}"
        self._ours = labelled(names.labels(job_name))
        self._relist_seconds, self._outage_seconds = relist_seconds, outage_seconds
        self._overdue_seconds = overdue_seconds
        self._board = Board()
        self._ledger = Ledger(self._board, self._investigate)
        self._overdue: dict[str, asyncio.TimerHandle] = {}  # by uid
        self._following: asyncio.Task[None] | None = None
        self._synced = asyncio.Event()
        self._failure: BaseException | None = None
        self._closed = False
        self._errands: set[asyncio.Task[None]] = set()

    # The protocol.

    async def launch(self, request: ReplicaRequest) -> None:
        self._check_open()
        launch, first = uuid.uuid4().hex, self._ledger.first_launch(request.name) or time.time_ns()
        pod, pauses = self._make_pod(request), Pauses()
        while True:
            marks = {names.ANNOTATION_LAUNCH: launch, names.ANNOTATION_ORDER: str(first)}
            meta = {**pod["metadata"], "annotations": {**pod["metadata"].get("annotations", {}), **marks}}
            try:
                self._take(await self._api.call("POST", f"{self._home}/pods", body={**pod, "metadata": meta}))
                return
            except ApiRefused as refusal:
                if refusal.reason != "AlreadyExists":
                    raise
            there = await self._api.find(self._path(request.name))
            if there is None:
                await asyncio.sleep(pauses.next())
                continue
            self._take(there)
            annotations = there["metadata"].get("annotations", {})
            ended = phase_of(there) is ReplicaPhase.GONE
            # This launch created the pod and its answer was lost: the replica has been launched.
            if annotations.get(names.ANNOTATION_LAUNCH) == launch or not (ended or leaving(there)):
                return
            first = self._ledger.first_launch(request.name) or first
            await self._make_room(there, ended)

    async def stop(self, name: str, grace_seconds: float) -> None:
        await self._delete(name, STOPPED, max(LEAST_GRACE_SECONDS, math.ceil(grace_seconds)))

    async def kill(self, name: str) -> None:
        # Not 0: that removes the pod at once, even if its process still runs.
        await self._delete(name, KILLED, 1)

    async def list(self) -> list[ReplicaStatus]:
        self._check_open()
        await self._sync()
        await self._ledger.settle()
        return self._ledger.all()

    async def events(self) -> AsyncGenerator[ReplicaStatus, None]:
        self._check_open()
        if self._following is None and not self._closed:
            self._following = asyncio.create_task(self._follow())
            self._following.add_done_callback(self._followed)
        await self._synced.wait()
        async with contextlib.aclosing(self._board.watch()) as changes:
            async for status in changes:
                yield status
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        self._closed = True
        for handle in self._overdue.values():
            handle.cancel()
        tasks = [*self._errands, *filter(None, [self._following])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._ledger.close()
        self._synced.set()
        self._board.close()
        await self._api.close()

    # Watching pods.

    async def _follow(self) -> None:
        """List, watch for a while, list again: the next list has what a watch missed."""
        loop, pauses, trouble = asyncio.get_running_loop(), Pauses(), ""
        heard, allowed = loop.time(), False  # whether a watch ever succeeded
        while True:
            try:
                version = await self._sync()
                began = heard = loop.time()
                self._synced.set()
                params = {**self._ours, "resourceVersion": version}
                watch = self._api.watch(f"{self._home}/pods", params, seconds=self._relist_seconds)
                async with contextlib.aclosing(watch) as changes:
                    async for kind, pod in changes:
                        heard, pauses, allowed = loop.time(), Pauses(), True
                        if kind != "BOOKMARK":
                            self._take(pod, deleted=kind == "DELETED")
                allowed = True
                if loop.time() - began >= SHORT_WATCH_SECONDS:
                    continue
            except ApiRefused as refusal:
                # A right that we had may return: a role may be being applied again.
                if refusal.code not in _TRIED_AGAIN and not (refusal.code == 403 and allowed):
                    raise
                trouble = str(refusal)
            except WireError as error:
                if isinstance(error, Refused) or not self._synced.is_set():
                    raise
                trouble = str(error)
            if loop.time() - heard > self._outage_seconds:
                raise Unreachable(f"cannot watch the pods: {trouble}")
            await asyncio.sleep(pauses.next())

    def _followed(self, task: asyncio.Task[None]) -> None:
        """Pass the error that ended the task to the readers of events, unchanged: reported as an unreachable cluster,
        a bug would make the keeper restart the master again and again."""
        if task.cancelled():
            return  # by `close`
        self._failure = task.exception()
        self._board.close()
        self._synced.set()

    async def _sync(self) -> str:
        """Read all pods; returns the version of the list."""
        before = {status.uid for status in self._ledger.alive()}
        answer = await self._api.call("GET", f"{self._home}/pods", params=self._ours)
        pods: list[Pod] = answer["items"]
        for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"])):
            self._take(pod)
        listed = {pod["metadata"]["uid"] for pod in pods}
        for status in self._ledger.alive():
            if status.uid in before - listed:
                self._ledger.forget(status)
        return str(answer["metadata"]["resourceVersion"])

    def _take(self, pod: Pod, *, deleted: bool = False) -> None:
        self._ledger.take(pod, deleted=deleted)
        uid = pod["metadata"]["uid"]
        if deleted or phase_of(pod) is ReplicaPhase.GONE:
            handle = self._overdue.pop(uid, None)
            if handle is not None:
                handle.cancel()
        elif leaving(pod):
            self._expect_end(pod)

    async def _investigate(self, pod: Pod, ran: bool, deleted: bool) -> Exit:
        """How it ended, with the end of its log and, if others deleted it, the events that say why."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        lines: list[str] = []
        events: list[dict[str, Any]] = []
        if not deleted and ran:
            lines = await self._api.last_lines(self._path(name), main_container(pod), INVESTIGATION_SECONDS)
        with contextlib.suppress(WireError):
            if leaving(pod) and names.ANNOTATION_ENDING not in pod["metadata"].get("annotations", {}):
                params = {"fieldSelector": f"involvedObject.uid={uid}"}
                answer = await self._api.call(
                    "GET", f"{self._home}/events", params=params, deadline_seconds=INVESTIGATION_SECONDS
                )
                events = [event for event in answer["items"] if event.get("reason") in EVENT_REASONS]
        return exit_of(pod, lines, events, ran=ran)

    # Ending pods.

    async def _delete(self, name: str, how: str, grace_seconds: int) -> None:
        self._check_open()
        path, meant, pauses = self._path(name), "", Pauses()
        while True:
            pod = await self._api.find(path)
            if pod is None or phase_of(pod) is ReplicaPhase.GONE:
                return
            meta = pod["metadata"]
            uid, said = meta["uid"], meta.get("annotations", {}).get(names.ANNOTATION_ENDING)
            soon_enough = leaving(pod) and meta.get("deletionGracePeriodSeconds", 0) <= grace_seconds
            if meant not in ("", uid) or (soon_enough and said in (how, KILLED)):
                return
            meant = uid
            try:
                if not leaving(pod) or said is not None:  # keep a deletion by others as theirs
                    mark = {"metadata": {"uid": uid, "annotations": {names.ANNOTATION_ENDING: how}}}
                    await self._api.patch(path, body=mark)
                answer = await self._api.delete(path, uid, grace_seconds=grace_seconds)
                if answer.get("kind") == "Pod":
                    self._take(answer)
                return
            except ApiRefused as refusal:
                if not refusal.missed:
                    raise
            await asyncio.sleep(pauses.next())  # it changed or is gone: look again

    async def _make_room(self, pod: Pod, ended: bool) -> None:
        """Wait until the name can be used again."""
        meta, loop, pauses = pod["metadata"], asyncio.get_running_loop(), Pauses()
        name, uid = meta["name"], meta["uid"]
        patience = meta.get("deletionGracePeriodSeconds", 0) + 2 * self._overdue_seconds
        deadline, trouble = loop.time() + patience, ""
        if ended:
            await self._ledger.settle()  # its log is removed with it
        while (left := deadline - loop.time()) > 0:
            try:
                if ended:
                    await self._api.remove(self._path(name), uid, grace_seconds=0)
                if await self._gone_within(left, name, uid, ended):
                    return
            except ApiRefused as refusal:
                if refusal.code not in _TRIED_AGAIN:
                    raise
                trouble = f": {refusal}"
            except Unreachable as error:
                if self._closed:
                    raise
                trouble = f": {error}"
            await asyncio.sleep(min(pauses.next(), max(0.0, deadline - loop.time())))
        raise Unreachable(f"the old pod {name} still exists after {patience:g} s{trouble}")

    async def _gone_within(self, seconds: float, name: str, uid: str, ended: bool) -> bool:
        """Whether, before the watch ends, the pod is gone or, if it had not ended yet, has ended."""
        only = named(name)
        answer = await self._api.call("GET", f"{self._home}/pods", params=only)
        there = [pod for pod in answer["items"] if pod["metadata"]["uid"] == uid]
        if not there or (phase_of(there[0]) is ReplicaPhase.GONE and not ended):
            return True
        params = {**only, "resourceVersion": answer["metadata"]["resourceVersion"]}
        watch = self._api.watch(f"{self._home}/pods", params, seconds=seconds)
        async with contextlib.aclosing(watch) as changes:
            async for kind, pod in changes:
                if kind == "BOOKMARK" or pod["metadata"]["uid"] != uid:
                    continue
                self._take(pod, deleted=kind == "DELETED")
                if kind == "DELETED" or (phase_of(pod) is ReplicaPhase.GONE and not ended):
                    return True
        return False

    def _expect_end(self, pod: Pod) -> None:
        """Remove the pod by force if it exists long after its grace period."""
        meta, loop = pod["metadata"], asyncio.get_running_loop()
        killed = meta.get("annotations", {}).get(names.ANNOTATION_ENDING) == KILLED
        spare = min(KILL_OVERDUE_SECONDS, self._overdue_seconds) if killed else self._overdue_seconds
        when = loop.time() + meta.get("deletionGracePeriodSeconds", 0) + spare
        handle = self._overdue.get(meta["uid"])
        if handle is None or handle.when() > when:
            if handle is not None:
                handle.cancel()
            self._overdue[meta["uid"]] = loop.call_at(when, self._force, meta["name"], meta["uid"])

    def _force(self, name: str, uid: str) -> None:
        self._overdue.pop(uid, None)  # the next list sets it again if needed

        async def remove() -> None:
            with contextlib.suppress(WireError):
                await self._api.delete(self._path(name), uid, grace_seconds=0)

        task = asyncio.create_task(remove())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def _path(self, name: str) -> str:
        return f"{self._home}/pods/{name}"

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
