"""The master's loop, which owns the state: take events, let core decide, write the journal, act."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from elasticdl import faults
from elasticdl.cluster import protocol
from elasticdl.cluster.protocol import Cluster, Exit, ReplicaPhase, ReplicaRequest, ReplicaStatus
from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.machine import Machine
from elasticdl.core.replicas import CRASHED, FINISHED, OUT_OF_MEMORY, PREEMPTED, TURNED_AWAY
from elasticdl.errors import Refused, Unreachable
from elasticdl.job import loglines
from elasticdl.job.names import KEEPER, MASTER, replica_name
from elasticdl.job.outcome import Outcome
from elasticdl.master.actions import Actions
from elasticdl.master.journal import Journal
from elasticdl.master.servicer import Streams
from elasticdl.master.side import Context, Effect, Send, Side
from elasticdl.master.status import Chronicle, phase, status
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.usage import Meter

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 10.0
END_SECONDS = 15.0
OVER_QUOTA = "exceeded quota"  # Kubernetes' words; the quota may have room later
CUT_SECONDS = 0.5  # after its grace period the master closes the stream of a replica that it stops


def cause_of(end: Exit) -> str:
    """A signal from outside is preemption; the process's own signal, an error or too little memory is not."""
    if end.oom:
        return OUT_OF_MEMORY
    if end.taken == protocol.TURNED_AWAY:
        return TURNED_AWAY
    if end.from_outside:  # a worker that left on SIGTERM exits with 143
        return PREEMPTED
    return FINISHED if end.code == 0 else CRASHED


class Master:
    def __init__(
        self, make_side: Callable[[Context], Side[Any]], now: float, journal: Journal, cluster: Cluster,
        actions: Actions, token: str, starts: int, clock: Callable[[], float] = time.time, datasets: str = "",
    ) -> None:  # fmt: skip
        self.journal, self.cluster, self.actions = journal, cluster, actions
        self.chronicle = Chronicle(journal.fact("started_at") or clock())
        self._clock, self._now, self._starts = clock, now, starts
        self._inbox: asyncio.Queue[e.Event] = asyncio.Queue()
        self._errands: asyncio.Queue[Callable[[], Awaitable[None]] | None] = asyncio.Queue()  # of the cluster, in order
        self._deleting: dict[str, asyncio.Task[None]] = {}  # by the name of the checkpoint
        put, started_at = self._inbox.put_nowait, self.chronicle.started_at
        self.side = make_side(
            Context(actions.spec, actions.training, actions.folder, self._send, put, datasets, started_at)
        )
        self.machine: Machine = self.side.machine
        self.streams = Streams(
            token, starts, put, self._hear, self.machine.replicas.admits, self.status,
            refuses=self.machine.refused, join=self.side.join, datasets=datasets,
        )  # fmt: skip
        self._said_at = 0.0
        self._meter = Meter()
        self._decided = asyncio.Event()
        self.going = False  # this master leaves, and launches no more replicas

    def now(self) -> float:
        """The clock, which never runs back, not even across a restart."""
        self._now = max(self._now, self._clock())
        return self._now

    def status(self) -> pb.Status:
        out = status(self.side, self.chronicle, self.now(), self._starts)
        for name, used in {replica_name(out.job, MASTER): self._meter.read(), **self.streams.usage}.items():
            out.usage[name].CopyFrom(used)
        return out

    def _hear(self, replica: str, message: pb.FromReplica) -> None:
        if message.WhichOneof("body") == "stack":
            log.warning("Stack trace of %s:\n%s", replica, message.stack.text)
            return
        for event in self.side.hear(replica, message, self.now()):
            self._inbox.put_nowait(event)

    def _send(self, replica: str, message: pb.ToReplica) -> None:
        self.streams.send(replica, message)

    async def run(self) -> None:
        """Until the job is over. The outcome is then in `machine`."""
        if self.machine.outcome:
            return
        listed = [r for r in await self.cluster.list() if is_replica(r)]
        running = tuple((r.name, r.uid) for r in listed if r.phase is not ReplicaPhase.GONE)
        running += self.side.unlisted()
        ended = tuple((r.name, r.uid) for r in listed if r.phase is ReplicaPhase.GONE)
        waiting = tuple(r.name for r in listed if r.phase is ReplicaPhase.PENDING)
        # Exits come before the list of what is missing: a crash must not be taken for a loss without a reason.
        exits = [event for event in map(_event_of, listed) if isinstance(event, e.ReplicaGone)]
        watch = asyncio.create_task(self._watch())
        errands = asyncio.create_task(self._run_errands())
        try:
            await self._decide([*exits, e.MasterStarted(running, ended, waiting)])
            while not self.machine.outcome:
                events = await self._next(watch, errands)
                await self._decide(events)
                self._say_progress()
            self._errands.put_nowait(None)
            await errands  # the cluster's list then shows the last requests
        finally:
            for task in (watch, errands):
                task.cancel()
            await asyncio.gather(watch, errands, return_exceptions=True)  # a failure of one was raised above
            await self._all_deleted()

    async def _next(self, *never: asyncio.Task[None]) -> list[e.Event]:
        """All events that came, or `TimePassed` at a deadline; raises when a task of `never` ended."""
        deadline = min((t for t in (self.machine.deadline(), self.side.deadline()) if t is not None), default=None)
        wait = None if deadline is None else max(0.0, deadline - self.now()) + 0.001
        get = asyncio.create_task(self._inbox.get())
        done, _ = await asyncio.wait({get, *never}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        if ended := done.intersection(never):
            get.cancel()
            for task in ended:
                task.result()
            raise Unreachable("the cluster stopped reporting its replicas")
        if get not in done:
            get.cancel()
            return [*self.side.overdue(self.now()), e.TimePassed()]
        events = [get.result()]
        while not self._inbox.empty():
            events.append(self._inbox.get_nowait())
        return events

    async def _decide(self, events: list[e.Event]) -> None:
        entries, effects = [], []
        gone: list[Callable[[], None]] = []  # closes the streams of lost replicas, whose processes may still send
        for event in events:
            if self.machine.outcome:
                break
            if isinstance(event, e.ReplicaJoined) and not self.machine.replicas.admits(event.name, event.incarnation):
                continue
            if isinstance(event, e.ReplicaGone) and self.machine.replicas.concerns(event.name, event.uid):
                gone.append(self.streams.cutter(event.name))
            now = self.now()
            entries.append((event, now))
            effects += self.side.decide(event, now)
        self.journal.append(entries)
        faults.point("master.after_journal")
        for cut in gone:
            cut()
        # Messages first, since replicas wait for them: none depends on what is done below.
        for effect in effects:
            if isinstance(effect, Send):
                self._say(effect)
        for event, _ in entries:
            self.side.decided(event, self.now())
        await asyncio.sleep(0)  # the streams send them
        for effect in effects:
            await self._act(effect)
        self.journal.keep_state(self.machine, self.now())
        self._decided.set()

    async def until(self, so: Callable[[Machine], bool]) -> None:
        """Until `so` is true of the machine."""
        while not so(self.machine):
            self._decided.clear()
            await self._decided.wait()

    def _say(self, effect: Send) -> None:
        if effect.message.WhichOneof("body") == "freeze":
            faults.point("master.between_cut_phases")
        self.streams.send(effect.replica, effect.message)

    async def _act(self, effect: Effect) -> None:
        match effect:
            case c.LaunchReplica(role, reason=reason):
                request = self.actions.request(effect, self.side.program(role))
                self._announce(f"Starting {request.name} ({reason})")
                self._errands.put_nowait(partial(self._launch, request))
            case c.StopReplica(name, reason, grace_seconds):
                self._announce(f"Stopping {name} ({reason})")
                self._errands.put_nowait(partial(self._stop, name, grace_seconds))
                # A replica that cannot be reached to be killed must not believe that it still belongs to the job.
                loop, cut_seconds = asyncio.get_running_loop(), grace_seconds + CUT_SECONDS
                loop.call_later(cut_seconds, self.streams.cutter(name))
                loop.call_later(cut_seconds, self.side.cut_off, name, reason)
            case c.IdentifyRecord(shard, epoch, position):
                record, name = self.actions.identify(epoch, position)
                self._inbox.put_nowait(e.RecordIdentified(shard, position, record, name))
            case c.ReportMetrics(version, metrics):
                log.info(loglines.evaluation_metrics(version, json.loads(metrics)))
            case c.PublishCheckpoint(cut):
                faults.point("master.before_publishing")
                if (old := self._deleting.get(f"version-{effect.position.version}")) is not None:
                    await old  # or it would delete the new one
                try:
                    directory = self.side.publish(effect)
                    published = e.CheckpointPublished(cut, directory)
                except OSError as error:
                    published = e.CheckpointPublished(cut, "", f"{error.filename}: {error.strerror or error}")
                self._inbox.put_nowait(published)
            case c.DeleteCheckpoints(directories):
                deleting = asyncio.create_task(asyncio.to_thread(self.actions.folder.delete, directories))
                self._deleting |= {Path(d).name: deleting for d in directories}
                deleting.add_done_callback(self._deleted)
            case c.Announce(text):
                self._announce(text)
            case c.FinishJob(outcome, reason):
                self._announce(f"Job {outcome}: {reason}")

    def _deleted(self, task: asyncio.Task[None]) -> None:
        self._deleting = {name: other for name, other in self._deleting.items() if other is not task}

    async def _all_deleted(self) -> None:
        if self._deleting:
            _, left = await asyncio.wait(set(self._deleting.values()), timeout=END_SECONDS)
            if left:
                log.warning("Old checkpoints are still being deleted: %s", ", ".join(self._deleting))

    # The cluster may answer slowly: no decision waits for it.

    async def _run_errands(self) -> None:
        while (errand := await self._errands.get()) is not None:
            if not self.machine.outcome:  # else all replicas end
                await errand()

    async def _launch(self, request: ReplicaRequest) -> None:
        if self.going:
            return
        refusal = await self._ask_cluster(self.cluster.launch(request))
        if refusal:
            cause = TURNED_AWAY if OVER_QUOTA in refusal else CRASHED
            self._inbox.put_nowait(e.ReplicaGone(request.name, "", cause, refusal))

    async def _stop(self, name: str, grace_seconds: float) -> None:
        await self._ask_cluster(self.cluster.stop(name, grace_seconds))

    async def _ask_cluster(self, call: Coroutine[Any, Any, None]) -> str:
        """Why the cluster refuses; empty when it does not.

        A cluster that does not answer ends this master: the decision is in the journal, and the next master asks again.
        """
        try:
            await call
        except Refused as error:
            self._announce(str(error))
            return str(error)
        return ""

    def _announce(self, text: str) -> None:
        log.info("%s", text)
        self.chronicle.note(self.now(), text)

    def _say_progress(self) -> None:
        now, at = self.now(), self.machine.progress()
        self.chronicle.progress(now, at.records)
        if now - self._said_at >= PROGRESS_SECONDS and at.version:
            self._said_at = now
            log.info(
                "%s: %d of %d records, step %d, loss %s, %.0f records/s",
                phase(self.side), at.records, at.total_records, at.version,
                "unknown" if at.loss is None else f"{at.loss:.4g}", self.chronicle.records_per_second(),
            )  # fmt: skip

    async def _watch(self) -> None:
        """Changes of replicas, as the cluster reports them, become events."""
        async with contextlib.aclosing(self.cluster.events()) as seen:
            async for replica in seen:
                event = _event_of(replica)
                if event is not None:
                    self._inbox.put_nowait(event)

    async def end(self) -> None:
        """Tell all replicas that the job is over, and wait until they have ended."""
        self.streams.say_goodbye(f"job {self.machine.outcome}")
        grace = END_SECONDS if self.machine.outcome != Outcome.FAILED else 2.0
        with contextlib.suppress(TimeoutError, Unreachable):
            await asyncio.wait_for(self._all_gone(), grace)
        if self.side.unlisted():  # no cluster reports their end
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.streams.all_left(), grace)
        for replica in await self.cluster.list():
            if is_replica(replica) and replica.phase is not ReplicaPhase.GONE:
                await self._ask_cluster(self.cluster.stop(replica.name, 2.0))
        with contextlib.suppress(TimeoutError, Unreachable):
            await asyncio.wait_for(self._all_gone(), END_SECONDS)
        self.streams.finish()

    async def _all_gone(self) -> None:
        there = [r for r in await self.cluster.list() if is_replica(r)]
        alive = {r.name for r in there if r.phase is not ReplicaPhase.GONE}
        async with contextlib.aclosing(self.cluster.events()) as seen:
            while alive:
                replica = await anext(seen)
                if replica.phase is ReplicaPhase.GONE:
                    alive.discard(replica.name)


def is_replica(status: ReplicaStatus) -> bool:
    """Neither the master itself nor its keeper."""
    return status.role not in (MASTER, KEEPER)


def _event_of(replica: ReplicaStatus) -> e.Event | None:
    if not is_replica(replica):
        return None
    if replica.phase is ReplicaPhase.RUNNING:
        return e.ReplicaStarted(replica.name, replica.uid)
    if replica.phase is ReplicaPhase.PENDING:
        return e.ReplicaHeldUp(replica.name, replica.uid, replica.held_up, replica.note)
    if replica.phase is ReplicaPhase.GONE and replica.exit is not None:
        end = replica.exit
        return e.ReplicaGone(replica.name, replica.uid, cause_of(end), end.reason, end.last_lines, end.at, end.kind)
    return None
