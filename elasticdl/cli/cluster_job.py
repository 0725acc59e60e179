"""`JobInCluster`: a job of a Kubernetes cluster, as its objects and pods show it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from elasticdl.cli.job import ALL, LogWish, no_such_replica
from elasticdl.cli.master_client import MasterClient
from elasticdl.cluster.kubernetes import jobs, pod_logs
from elasticdl.cluster.kubernetes.api import ApiRefused, KubernetesApi
from elasticdl.cluster.kubernetes.jobs import ClusterJob
from elasticdl.cluster.kubernetes.reading import Pod
from elasticdl.cluster.kubernetes.tunnel import Tunnel
from elasticdl.errors import Problem, Unreachable, UsageError
from elasticdl.job import names
from elasticdl.job.spec import JobSpec

_READ_AT_ONCE = 16  # logs


@dataclass(frozen=True, kw_only=True)
class JobInCluster(ClusterJob):
    """A job that was submitted to a cluster, with a way to reach it: the cluster's API server."""

    api: KubernetesApi

    @classmethod
    def of(cls, api: KubernetesApi, seen: ClusterJob) -> JobInCluster:
        return cls(**vars(seen), api=api)

    @property
    def place(self) -> str:
        return f"{self.api.credentials.context}/{self.namespace}"

    @property
    def logs_at(self) -> str:
        pod = names.replica_name(self.name, names.MASTER)
        return f"kubectl logs -n {self.namespace} {pod}" if self.master is not None else "deleted with its pods"

    @property
    def answer_seconds(self) -> float:
        return 20.0  # for each connection a process starts in its pod, which may have little of a busy node

    @property
    def left_over(self) -> bool:
        return self.config is not None and self.state not in ("running", "pending")

    def spec(self) -> JobSpec | None:
        if self.job_json is None:
            return None
        try:
            found = JobSpec.from_json(self.job_json)
        except UsageError:  # of another version
            return None
        file = self.overlay_file  # the one in the job's own is a path in its pods
        return found if file is None else found.with_values(cluster_spec=file)

    def facts(self) -> dict[str, Any]:
        return {
            "context": self.api.credentials.context,
            "namespace": self.namespace,
            "pods": [str(pod["metadata"]["name"]) for pod in self.pods],
        }

    @contextlib.asynccontextmanager
    async def reach(self) -> AsyncIterator[MasterClient]:
        secrets = await jobs.secret(self.api, self)
        tunnel = Tunnel(self.api, self.namespace, names.replica_name(self.name, names.MASTER))
        async with tunnel.open() as address:
            client = MasterClient(address, secrets.get(names.ENV_TOKEN, ""), secrets.get(names.ENV_TLS_CERT))
            try:
                yield client
            except Unreachable as error:
                raise Unreachable(f"the master of {self.name} does not answer: {tunnel.trouble or error}") from error

    async def again(self) -> JobInCluster:
        return JobInCluster.of(self.api, await jobs.look(self.api, self.namespace, self.name))

    async def ended(self, deadline_seconds: float | None = None) -> bool:
        return await jobs.ended(self.api, self, deadline_seconds)

    async def stop_without_master(self) -> bool:
        """One that never ran has nothing to save; one between two lives is about to answer."""
        now = await self.again()
        if not now.never_ran:
            return False
        await now.stop_now()
        return True

    async def stop_now(self) -> None:
        await jobs.delete(self.api, self)

    # Logs.

    async def log(self, wish: LogWish) -> AsyncGenerator[str, None]:
        only = None if wish.replica == ALL else wish.replica.removeprefix(f"{names.APP}-{self.name}-")
        pods = self._choose(only, wish)
        width = max((len(pod_logs.short_name(pod, self.name)) for pod in pods), default=0)

        def marked(short: str, line: str) -> str:
            return line if only is not None else f"{short:<{width}} | {line}"

        following = pod_logs.Following(self.api, self, only)
        said = []
        for pod, lines in zip(pods, await self._read(pods, wish), strict=True):
            if lines:
                following.seen[pod["metadata"]["uid"]] = lines[-1][0]
                said.append((pod_logs.short_name(pod, self.name), lines))
        shown = pod_logs.merged(said)
        for short, line in shown if wish.tail is None else shown[len(shown) - min(wish.tail, len(shown)) :]:
            yield marked(short, line)
        if wish.follow and self.running:
            async with contextlib.aclosing(following.lines()) as coming:
                async for short, line in coming:
                    yield marked(short, line)

    def _choose(self, only: str | None, wish: LogWish) -> list[Pod]:
        there = {pod_logs.short_name(pod, self.name): pod for pod in self.pods}
        if only is None:
            return list(there.values())
        if only in there:
            return [there[only]]
        if only == names.MASTER and self.running:
            return []  # about to be made, again perhaps
        known = f"There are {', '.join([*there, ALL])}. Logs of other replicas were deleted with their pods."
        raise no_such_replica(self, wish.replica, only, there, known)

    async def _read(self, pods: list[Pod], wish: LogWish) -> list[list[pod_logs.Line]]:
        turn = asyncio.Semaphore(_READ_AT_ONCE)

        async def read(pod: Pod) -> list[pod_logs.Line]:
            async with turn:
                try:
                    return await pod_logs.read(self.api, pod, wish.tail, previous=wish.previous)
                except ApiRefused as refusal:
                    if len(pods) > 1:  # of several, one may be gone since, or have had no container before
                        return []
                    if wish.previous and refusal.code in (400, 404):
                        what = "its container was never restarted, so there is no earlier log"
                        raise UsageError([Problem("--previous", "", what, "Leave it out.")]) from refusal
                    raise

        return await asyncio.gather(*(read(pod) for pod in pods))
