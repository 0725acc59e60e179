"""Reads the logs of a job's pods from the API server: merged in the order of time, or followed."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from elasticdl.cluster.kubernetes.api import PASSING, ApiRefused, KubernetesApi, Pauses, labelled
from elasticdl.cluster.kubernetes.jobs import ClusterJob, ended
from elasticdl.cluster.kubernetes.reading import Pod, main_container, phase_of
from elasticdl.cluster.protocol import ReplicaPhase
from elasticdl.errors import Unreachable, WireError
from elasticdl.job import names

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?")
_LAST_SECONDS = 5.0  # to read the rest after the job has ended
_WATCH_SECONDS = 60.0
_SILENCE_SECONDS = 20.0  # within a log
_TRY_SECONDS = 30.0
_TRIED_AGAIN = PASSING | {401}  # the retry uses new credentials
_NOT_YET = 400  # the API server's answer while a container waits to start

Line = tuple[int, str]  # nanoseconds since 1970, text


def short_name(pod: Pod, job_name: str) -> str:
    return str(pod["metadata"]["name"]).removeprefix(f"{names.APP}-{job_name}-")


def parse(line: str) -> Line:
    """Parse a line with the API server's timestamp, which has no trailing zeros in its fraction of a second."""
    found = _TIME.match(line)
    if found is None:
        return 0, line
    seconds = int(datetime.datetime.fromisoformat(found[1] + found[3]).timestamp())
    return seconds * 10**9 + int((found[2] or "").ljust(9, "0")), line[found.end() :]


async def read(
    api: KubernetesApi,
    pod: Pod,
    tail: int | None = None,
    *,
    previous: bool = False,
    silence_seconds: float = _SILENCE_SECONDS,
    try_seconds: float = _TRY_SECONDS,
) -> list[Line]:
    """The log of a pod; empty before it starts. A long log has no deadline while more lines arrive."""
    params = {"container": main_container(pod), "timestamps": "true"}
    if tail is not None:
        params["tailLines"] = str(tail)
    if previous:
        params["previous"] = "true"
    loop, pauses = asyncio.get_running_loop(), Pauses()
    deadline = loop.time() + try_seconds
    while True:
        try:
            return await _all(api.lines(_path(pod), params), silence_seconds)
        except ApiRefused as refusal:
            if refusal.code == _NOT_YET and not previous:
                return []
            if refusal.code not in _TRIED_AGAIN or loop.time() > deadline:
                raise
        except Unreachable:
            if loop.time() > deadline:
                raise
        await asyncio.sleep(pauses.next())


async def _all(lines: AsyncGenerator[str, None], silence_seconds: float) -> list[Line]:
    loop, found = asyncio.get_running_loop(), list[Line]()
    try:
        async with contextlib.aclosing(lines), asyncio.timeout(silence_seconds) as silence:
            async for line in lines:
                silence.reschedule(loop.time() + silence_seconds)
                found.append(parse(line))
    except TimeoutError:
        raise Unreachable(f"no more of a log came within {silence_seconds:g} s") from None
    return found


@dataclass
class Following:
    """Follows the logs of pods, also of pods that start later."""

    api: KubernetesApi
    job: ClusterJob
    only: str | None  # the short name of one replica; None: all
    seen: dict[str, int] = field(default_factory=dict)  # by a pod's uid: the time of the last line that was shown
    _lines: asyncio.Queue[tuple[str, str]] = field(default_factory=asyncio.Queue)
    _readers: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def lines(self) -> AsyncGenerator[tuple[str, str], None]:
        """(short name of the replica, line) until the job has ended and all logs are read."""
        over = asyncio.create_task(self._over())
        finding = asyncio.create_task(self._find())
        try:
            while True:
                line = asyncio.create_task(self._lines.get())
                await asyncio.wait({line, over}, return_when=asyncio.FIRST_COMPLETED)
                if line.done():
                    yield line.result()
                    continue
                line.cancel()
                over.result()
                return
        finally:
            for task in (over, finding, *self._readers.values()):
                task.cancel()
            await asyncio.wait({over, finding, *self._readers.values()})

    async def _over(self) -> None:
        """Wait until the job has ended and the last lines of its pods are read."""
        await ended(self.api, self.job)
        if self._readers:
            await asyncio.wait(self._readers.values(), timeout=_LAST_SECONDS)

    async def _find(self) -> None:
        home = f"/api/v1/namespaces/{self.job.namespace}/pods"
        mine, pauses = labelled(names.labels(self.job.name)), Pauses()
        while True:
            with contextlib.suppress(WireError):
                watch = self.api.watch(home, mine, seconds=_WATCH_SECONDS)  # begins with the current pods
                async with contextlib.aclosing(watch) as changes:
                    async for kind, pod in changes:
                        pauses = Pauses()
                        if kind not in ("BOOKMARK", "DELETED"):
                            self._consider(pod)
            await asyncio.sleep(pauses.next())  # before the next watch

    def _consider(self, pod: Pod) -> None:
        uid, short = pod["metadata"]["uid"], short_name(pod, self.job.name)
        wanted = self.only in (None, short) and phase_of(pod) is not ReplicaPhase.PENDING
        if wanted and uid not in self._readers:
            self._readers[uid] = asyncio.create_task(self._read(pod, uid, short))

    async def _read(self, pod: Pod, uid: str, short: str) -> None:
        """Read until the pod has ended; continue after a broken connection or a restarted container."""
        pauses = Pauses()
        while True:
            params = {"container": main_container(pod), "timestamps": "true", "follow": "true"}
            last = self.seen.get(uid, 0)
            if last:  # whole seconds: earlier lines of the same second are skipped below
                at = datetime.datetime.fromtimestamp(last // 10**9, datetime.UTC)
                params["sinceTime"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
            with contextlib.suppress(WireError):
                async with contextlib.aclosing(self.api.lines(_path(pod), params)) as lines:
                    async for line in lines:
                        at_ns, text = parse(line)
                        if at_ns > last:
                            self.seen[uid] = at_ns
                            self._lines.put_nowait((short, text))
                            pauses = Pauses()
            if await self._is_over(pod, uid):
                return
            await asyncio.sleep(pauses.next())

    async def _is_over(self, pod: Pod, uid: str) -> bool:
        path = f"/api/v1/namespaces/{self.job.namespace}/pods/{pod['metadata']['name']}"
        try:
            now = await self.api.call("GET", path)
        except ApiRefused as refusal:
            return refusal.code == 404
        except WireError:
            return False
        return now["metadata"]["uid"] != uid or phase_of(now) is ReplicaPhase.GONE


def merged(parts: Sequence[tuple[str, list[Line]]]) -> list[tuple[str, str]]:
    """(short name, line) of several replicas, in the order of time."""
    timed = [(at, number, short, text) for short, lines in parts for number, (at, text) in enumerate(lines)]
    return [(short, text) for _, _, short, text in sorted(timed, key=lambda found: (found[0], found[1]))]


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/log"
