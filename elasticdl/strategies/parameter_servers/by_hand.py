"""Workers that a user starts: how they join, what they receive, and when they count as gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from elasticdl.core import events as e
from elasticdl.core.replicas import PREEMPTED, State
from elasticdl.errors import Refused
from elasticdl.job.names import WORKER, replica_name
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
from elasticdl.wire import control_pb2 as pb

DECIDE_SECONDS = 10.0
UID = "by hand"  # no cluster gave them one


class Hands:
    """Belongs to the master's loop."""

    def __init__(
        self, job: ParameterServerMachine, hear: Callable[[e.Event], None], job_json: str, datasets: str
    ) -> None:
        self._job, self._hear = job, hear
        self._part = pb.JoinReply(job=job_json, datasets=datasets)
        self._coming: dict[int, asyncio.Future[None]] = {}

    async def come(self, index: int) -> pb.JoinReply:
        """Let a worker of this number join; raises Refused when it cannot."""
        if not self._job.terms.by_hand:
            raise Refused("this job starts its workers itself")
        name = replica_name(self._job.terms.job, WORKER, index)
        before = self._job.replicas.replicas.get(name)
        if index in self._coming or (before is not None and before.state is State.JOINED):
            raise Refused(f"worker {index} is already running: use another --worker_id")
        if before is not None and before.state is not State.GONE:  # it was killed, and no cluster reported it
            self._hear(e.ReplicaGone(name, "", PREEMPTED, f"worker {index} was started again"))
        self._coming[index] = asyncio.get_running_loop().create_future()
        self._hear(e.WorkerCame(index))
        try:
            async with asyncio.timeout(DECIDE_SECONDS):
                await self._coming[index]
        except TimeoutError:
            raise Refused("the job has ended, or its master is busy") from None
        finally:
            del self._coming[index]
        part = pb.JoinReply(replica=name)
        part.MergeFrom(self._part)
        return part

    def decided(self, event: e.Event) -> None:
        """The machine has handled this event."""
        if isinstance(event, e.WorkerCame) and event.index in self._coming:
            coming = self._coming[event.index]
            if not coming.done():  # else the worker has gone meanwhile
                coming.set_result(None)

    def running(self) -> tuple[tuple[str, str], ...]:
        """Workers that the journal has and no cluster lists."""
        if not self._job.terms.by_hand:
            return ()
        there = [r for r in self._job.replicas.replicas.values() if r.role == WORKER and r.state is not State.GONE]
        return tuple((r.name, r.uid or UID) for r in there)

    def sent_away(self, name: str, reason: str) -> None:
        """The master can neither end its process nor see it end: without a stream it counts as gone."""
        if self._job.terms.by_hand and self._job.replicas.role_of(name) == WORKER:
            self._hear(e.ReplicaGone(name, "", PREEMPTED, reason))
