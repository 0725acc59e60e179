"""The keeper, `python -m elasticdl.cluster.kubernetes.keeper JOB NAMESPACE`: a pod that restarts a lost master and
removes the job's objects when the job has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
import signal
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from elasticdl.cluster.kubernetes import credentials
from elasticdl.cluster.kubernetes.api import PASSING, SHORT_WATCH_SECONDS, ApiRefused, KubernetesApi, Pauses, named
from elasticdl.cluster.kubernetes.lease import Lease
from elasticdl.cluster.kubernetes.objects import owned, owner
from elasticdl.cluster.kubernetes.reading import Object, Pod, exit_of, leaving, main_container, phase_of
from elasticdl.cluster.kubernetes.submission import conclude, find, folder
from elasticdl.cluster.protocol import Exit, ReplicaPhase
from elasticdl.errors import ElasticDLError, Unreachable
from elasticdl.job import loglines, names
from elasticdl.job.outcome import Outcome

log = logging.getLogger("elasticdl.cluster.kubernetes.keeper")  # not `__main__`

BACKOFF_SECONDS = (1.0, 2.0, 4.0)  # before the master is restarted after a crash
LONG_SECONDS = 600.0  # a master that ran this long resets the count of crashes
LOST_SECONDS = (1.0, 60.0)  # the first and the longest pause if masters are lost in quick succession
RELIST_SECONDS = 60.0
LEAVING_SECONDS = 1.0  # between two reads of the Lease, while a master is being deleted
OVERDUE_SECONDS = 20.0  # after its grace period: its node is lost, and the pod would stay
PATIENCE_SECONDS = 300.0  # without an answer of the API server
STAY_SECONDS = (5.0, 20.0)  # at least, and then at most, of a grace period of 30
LOG_SECONDS = 5.0  # to read the end of a log
_TRIED_AGAIN = PASSING | {401, 410}


@dataclass
class Keeper:
    """Keeps one job's master running. Its only state is the job's ConfigMap and pods, so it can be replaced."""

    api: KubernetesApi
    namespace: str
    job: str
    crashes: int = 0  # of masters; each pod is annotated with the number before it
    standing: asyncio.Event = field(default_factory=asyncio.Event)  # there is a master that is not being deleted
    losses: Pauses | None = None  # None: no loss since a master that ran for a while
    hurry: asyncio.Event = field(default_factory=asyncio.Event)  # set by SIGTERM: no more pauses

    @property
    def master(self) -> str:
        return names.replica_name(self.job, names.MASTER)

    @property
    def _pods(self) -> str:
        return folder("Pod", self.namespace)

    async def run(self) -> None:
        """Run until the job has ended or has been removed."""
        config = await self._config()
        if config is None:
            log.info("The job %s no longer exists.", self.job)
            return
        uid, pauses = config["metadata"]["uid"], Pauses()
        while True:
            pod, version = await self._look()
            self._judge(pod)
            if pod is None:
                if not await self._make(uid):
                    return
                continue
            annotations, ended = pod["metadata"].get("annotations", {}), phase_of(pod) is ReplicaPhase.GONE
            self.crashes = int(annotations.get(names.ANNOTATION_CRASHES, 0))
            if names.ANNOTATION_RESULT in annotations and (ended or leaving(pod)):
                await self._finish(pod, uid)
                return
            if ended and not leaving(pod):
                if not await self._ended(pod, uid):
                    return
                continue
            if _unfit(pod) and not leaving(pod):
                await self.tell(pod, "MasterReplaced", f"Replacing the master: {_unfit(pod)}.")
                await self._remove(pod)
                continue
            patience, began = RELIST_SECONDS, time.monotonic()
            if leaving(pod):
                patience = LEAVING_SECONDS
                if await self._done_with(pod, uid):
                    await self._remove(pod)
            try:
                if await self._wait(pod, version, patience) or time.monotonic() - began >= SHORT_WATCH_SECONDS:
                    pauses = Pauses()
                else:
                    await asyncio.sleep(pauses.next())
            except ApiRefused as refusal:
                if refusal.code not in _TRIED_AGAIN:
                    raise
                await asyncio.sleep(pauses.next())  # the next read has what this watch missed
            except Unreachable:
                await asyncio.sleep(pauses.next())

    # Reading.

    async def _config(self) -> Object | None:
        return await find(self.api, "ConfigMap", self.namespace, names.config_name(self.job))

    async def _look(self) -> tuple[Pod | None, str]:
        answer = await self.api.call("GET", self._pods, params=named(self.master))
        return next(iter(answer["items"]), None), str(answer["metadata"]["resourceVersion"])

    def _judge(self, pod: Pod | None) -> None:
        if pod is None or leaving(pod) or phase_of(pod) is ReplicaPhase.GONE:
            self.standing.clear()
        else:
            self.standing.set()

    async def _wait(self, pod: Pod, version: str, seconds: float) -> bool:
        """Wait for an important change of the master's pod; False if there was none in this time."""
        params = {**named(self.master), "resourceVersion": version}
        async with contextlib.aclosing(self.api.watch(self._pods, params, seconds=seconds)) as changes:
            async for kind, seen in changes:
                if kind == "BOOKMARK":
                    continue
                self._judge(None if kind == "DELETED" else seen)
                if kind == "DELETED" or phase_of(seen) is ReplicaPhase.GONE or leaving(seen) != leaving(pod):
                    return True
                if _unfit(seen) and not leaving(seen):
                    return True
        return False

    async def _done_with(self, pod: Pod, uid: str) -> bool:
        """Whether a pod that is being deleted can be replaced now: its master released the Lease, or its node is lost.
        Kubelets may take a minute to report that a container has ended, and some never do.
        """
        if _overdue(pod):
            log.warning("The master's pod still exists %g s after its grace period; its node is lost.", OVERDUE_SECONDS)
            return True
        return not await self._lease(pod, uid).held()

    # Acting.

    async def _make(self, uid: str) -> bool:
        """Create the master's pod again from the ConfigMap; False if the job no longer exists."""
        config = await self._config()
        if config is None or leaving(config) or config["metadata"]["uid"] != uid:
            log.info("The job %s is being removed; not starting its master again.", self.job)
            return False
        pod = owned(json.loads(config["data"][names.MASTER_KEY]), owner(self.job, uid))
        marks = {**pod["metadata"].get("annotations", {}), names.ANNOTATION_CRASHES: str(self.crashes)}
        pod["metadata"] = {**pod["metadata"], "annotations": marks}
        try:
            made = await self.api.call("POST", self._pods, body=pod)
        except ApiRefused as refusal:
            if refusal.reason != "AlreadyExists":
                raise
        else:
            await self.tell(made, "MasterStarted", "Started the master again.")
        return True

    async def _ended(self, pod: Pod, uid: str) -> bool:
        """Handle a master that ended without a result; False if the job has ended."""
        path = f"{self._pods}/{self.master}"
        end = exit_of(pod, await self.api.last_lines(path, main_container(pod), LOG_SECONDS), ran=True)
        for line in end.last_lines:
            log.info("master: %s", line)
        if end.from_outside:
            pause = self._after_loss(pod)
            when = f" in {pause:.0f} s" if pause >= 1 else ""
            await self.tell(pod, "MasterLost", f"The master was lost ({end.reason}); starting it again{when}.")
            await self._pause(pause)
        else:
            self.crashes = 1 if _ran_seconds(pod) > LONG_SECONDS else self.crashes + 1
            if self.crashes > len(BACKOFF_SECONDS):
                await self._give_up(pod, end)
                await self._finish(pod, uid)
                return False
            pause = BACKOFF_SECONDS[self.crashes - 1]
            await self.tell(pod, "MasterFailed", f"The master failed ({end.reason}); starting it again in {pause:g} s.")
            await self._pause(pause)
        await self._release(pod, uid)
        await self._remove(pod)
        return await self._make(uid)

    def _after_loss(self, pod: Pod) -> float:
        """How long to wait: 0, unless masters are rejected by a node or end one after the other."""
        if self.losses is None or _ran_seconds(pod) > LOST_SECONDS[1]:
            self.losses = Pauses(*LOST_SECONDS)
            return 0.0
        return self.losses.next()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.hurry.wait(), seconds)

    async def _release(self, pod: Pod, uid: str) -> None:
        """Release the job's Lease for a master whose container has ended."""
        await self._lease(pod, uid).release()

    def _lease(self, pod: Pod, uid: str) -> Lease:
        return Lease(self.api, self.namespace, self.job, pod["metadata"]["uid"], owner(self.job, uid))

    async def _give_up(self, pod: Pod, end: Exit) -> None:
        reason = "\n".join([f"the master failed {self.crashes} times: {end.reason}", *end.last_lines])
        result = {"outcome": Outcome.FAILED, "reason": reason, "exit_code": 1, "status": {}}
        note = {names.ANNOTATION_RESULT: json.dumps(result)}
        body = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": note}}
        try:
            await self.api.patch(f"{self._pods}/{self.master}", body=body)
        except ApiRefused as refusal:
            if not refusal.missed:  # it was removed: there is no place for the result
                raise
        await self.tell(pod, "JobFailed", f"The master failed {self.crashes} times: {end.reason}.")

    async def _finish(self, pod: Pod, uid: str) -> None:
        """Remove the job's objects, if the master was lost before it did so."""
        log.info("The job %s has ended; removing its objects.", self.job)
        await conclude(self.api, self.namespace, self.job, pod, uid)

    async def _remove(self, pod: Pod) -> None:
        """Remove the pod at once, to free its name: it has ended, does not lead, or its node is lost."""
        await self.api.remove(f"{self._pods}/{self.master}", pod["metadata"]["uid"], grace_seconds=0)

    async def tell(self, pod: Pod, reason: str, message: str) -> None:
        """Log the message, and create an event of the master's pod, which `kubectl describe` shows."""
        log.warning("%s", message)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        meta = pod["metadata"]
        event: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{meta['name']}.{uuid.uuid4().hex[:12]}", "namespace": self.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": meta["name"],
                "namespace": self.namespace,
                "uid": meta["uid"],
            },
            "reason": reason,
            "message": message[:1000],
            "type": "Normal" if reason == "MasterStarted" else "Warning",
            "source": {"component": "elasticdl-keeper"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        with contextlib.suppress(ApiRefused, Unreachable):  # events are optional
            path = f"/api/v1/namespaces/{self.namespace}/events"
            await self.api.call("POST", path, body=event, deadline_seconds=5.0)


def _unfit(pod: Pod) -> str:
    """Why this master cannot lead the job, by its own annotation: another client created its pod. Usually empty."""
    return str(pod["metadata"].get("annotations", {}).get(names.ANNOTATION_UNFIT, ""))


def _overdue(pod: Pod) -> bool:
    """Whether a pod that is being deleted should long be gone; its deletion time includes the grace period."""
    return time.time() > _seconds(pod["metadata"]["deletionTimestamp"]) + OVERDUE_SECONDS


def _ran_seconds(pod: Pod) -> float:
    """How long its container ran, without the time that its pod waited for room or an image. On a lost node, or where
    a kubelet does not report evicted containers: the time since the pod was assigned to its node."""
    found = pod.get("status", {})
    for status in found.get("containerStatuses", []):
        if status["name"] == main_container(pod):
            ended = status.get("state", {}).get("terminated") or {}
            if not (ended.get("startedAt") and ended.get("finishedAt")):
                return 0.0
            return _seconds(ended["finishedAt"]) - _seconds(ended["startedAt"])
    return time.time() - _seconds(found["startTime"]) if found.get("startTime") else 0.0


def _seconds(moment: str) -> float:
    return datetime.datetime.fromisoformat(moment).timestamp()


async def keep(job: str, namespace: str) -> None:
    api = KubernetesApi(credentials.find(), deadline_seconds=PATIENCE_SECONDS)
    try:
        await _until_terminated(Keeper(api, namespace, job))
    finally:
        await api.close()


async def _until_terminated(keeper: Keeper) -> None:
    """Run the keeper until SIGTERM, and then until there is a master: a drained node may terminate both at once.

    A running master starts another keeper.
    """
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    keeping, leaving = asyncio.create_task(keeper.run()), asyncio.create_task(terminated.wait())
    standing = None
    try:
        await asyncio.wait({keeping, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not keeping.done():
            log.info("Received SIGTERM; still restarting a master that is lost in the meantime.")
            keeper.hurry.set()
            await asyncio.wait({keeping}, timeout=STAY_SECONDS[0])
            standing = asyncio.create_task(keeper.standing.wait())
            await asyncio.wait({keeping, standing}, timeout=STAY_SECONDS[1], return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            keeping.result()
    finally:
        tasks = [task for task in (keeping, leaving, standing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def main() -> int:
    job, namespace = sys.argv[1:]
    loglines.configure_logging("INFO", names.keeper_name(job))
    try:
        asyncio.run(keep(job, namespace))
    except ElasticDLError as error:  # the kubelet restarts the keeper
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
