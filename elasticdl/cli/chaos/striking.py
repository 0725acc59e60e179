"""Delivers a schedule to a running job: waits for each fault's time, chooses the replica to hit, and hits it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable

from elasticdl.cli.chaos import connections, processes
from elasticdl.cli.chaos.report import Delivery, Report
from elasticdl.cli.chaos.schedule import Fault, Kind, Plan
from elasticdl.cli.local_job import LocalJob, look
from elasticdl.cli.master_client import MasterClient
from elasticdl.cli.view import short_name
from elasticdl.cluster.local import LocalCluster
from elasticdl.cluster.protocol import ReplicaPhase
from elasticdl.errors import Unreachable
from elasticdl.wire import control_pb2 as pb

CANDIDATE_SECONDS = 15.0  # how long to wait for a replica that is worth hitting: it may still import its framework
_RETRY_SECONDS = 0.2

Tell = Callable[[Delivery], None]
Show = Callable[[pb.Status, str], None]  # the job's status, and what comes next


class Striker:
    """One job under one schedule. `tell` gets each fault, `show` the job's progress."""

    def __init__(self, job: LocalJob, plan: Plan, tell: Tell, show: Show) -> None:
        self._job, self._plan, self._tell, self._show = job, plan, tell, show
        self.report = Report(job.name, plan.seed)
        self._population = processes.Population(job.paths, job.pid or 0)
        self._cluster = LocalCluster(job.paths.launcher_socket)
        self._status: pb.Status | None = None
        self._news = asyncio.Condition()
        self._next = ""
        self._going: set[int] = set()  # process ids of replicas that got SIGTERM or SIGKILL
        self._paused: dict[int, str] = {}  # process id -> name
        self._resuming: set[asyncio.Task[None]] = set()
        self._no_cuts = ""  # why connections cannot be cut here
        self._planned: list[Fault] = []  # where their number is known from the start

    async def run(self) -> Report:
        """Until the job has ended. No replica stays paused, however this ends."""
        over = asyncio.create_task(self._job.ended())
        hearing = asyncio.create_task(self._hear())
        striking = asyncio.create_task(self._strike_all())
        try:
            await asyncio.wait({over, striking}, return_when=asyncio.FIRST_COMPLETED)
            if striking.done():
                striking.result()
                self._next = "all faults delivered; waiting for the job to end"
            await over
        finally:
            for task in (over, hearing, striking):
                task.cancel()
            await asyncio.wait({over, hearing, striking})
            self._resume_all()
            await self._cluster.close()
        for fault in self._planned[len(self.report.deliveries) :]:
            self._delivered(fault, "", "", "the job had ended")
        self.report.conclude(look(self._job.paths).result)
        self.report.orphans = await self._population.left()
        self.report.ports_open = self._population.ports_left()
        return self.report

    # Time.

    async def _hear(self) -> None:
        while True:
            with contextlib.suppress(Unreachable):  # not started yet
                async with contextlib.aclosing(MasterClient.of(self._job.paths).watch()) as statuses:
                    async for status in statuses:
                        if status is not None:
                            await self._heard(status)
                return
            await asyncio.sleep(_RETRY_SECONDS)  # until there is a master to ask

    async def _heard(self, status: pb.Status) -> None:
        async with self._news:
            self._status = status
            self._news.notify_all()
        self._show(status, self._next)

    async def _until(self, condition: Callable[[pb.Status], bool]) -> pb.Status:
        """The first status, from now on, for which this holds."""
        async with self._news:
            while True:
                await self._news.wait()
                if self._status is not None and condition(self._status):
                    return self._status

    async def _strike_all(self) -> None:
        first = await self._until(lambda s: s.records_total > 0)
        self._population.note()
        if self._plan.timing.by_progress:
            planned = list(self._plan.by_records(first.records_done, first.records_total))
            self._planned = [fault for _, fault in planned]
            for records, fault in planned:
                self._next = f"next: {fault.kind} a {fault.role} at {records:,} records"
                if not fault.aftershock:
                    await self._until(lambda s, at=records: s.records_done >= at)  # type: ignore[misc]
                await self._strike(fault)
        else:
            began = time.monotonic()
            for seconds, fault in self._plan.by_clock():
                self._next = f"next: {fault.kind} a {fault.role} after {seconds:.0f} s"
                await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
                await self._strike(fault)

    # Faults.

    async def _strike(self, fault: Fault) -> None:
        if fault.kind is Kind.CUT and self._no_cuts:
            self._delivered(fault, "", "", self._no_cuts)
            return
        deadline = time.monotonic() + (0.0 if fault.aftershock else CANDIDATE_SECONDS)
        while True:
            waited = time.monotonic() >= deadline
            hit = await self._hit_one(fault, any_replica=waited)
            if hit is not None or waited:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._until(lambda s: True), max(0.0, deadline - time.monotonic()))
        if hit is None:
            self._delivered(fault, "", "", "no replica to hit")
        self._population.note()

    async def _hit_one(self, fault: Fault, any_replica: bool) -> str | None:
        """The name of the replica that was hit; None when there was no replica to hit, or none at work."""
        try:
            listed = await self._cluster.list()
        except Unreachable:  # the launcher is ending
            return None
        running = [r for r in listed if r.phase is ReplicaPhase.RUNNING]
        pids = {r.name: (r.role, r.pid) for r in running if r.pid is not None}
        busy = self._going | self._paused.keys()
        free = [name for name, (role, pid) in sorted(pids.items()) if role == fault.role and pid not in busy]
        candidates = [n for n in free if self._at_work(n, fault.role)] or (free if any_replica else [])
        if not candidates:
            return None
        name = candidates[int(fault.pick * len(candidates))]
        return name if self._hit(fault, name, pids) else None

    def _at_work(self, name: str, role: str) -> bool:
        """Whether hitting it hits training, and not an import."""
        if role == "master":
            return True
        states = {r.name: r for r in self._status.replicas} if self._status is not None else {}
        r = states.get(name)
        return r is not None and (bool(r.leases) if role == "worker" else r.state == "joined")

    def _hit(self, fault: Fault, name: str, pids: dict[str, tuple[str, int]]) -> bool:
        pid, detail, why_not = pids[name][1], "", ""
        if fault.kind is Kind.CUT:
            try:
                line = self._cut(fault, name, pids)
            except connections.NotPermitted as error:
                why_not = self._no_cuts = f"this user may not cut connections of other processes ({error})"
            else:
                if line is None:
                    return False
                detail = str(line)
        elif fault.kind is Kind.PAUSE:
            if not processes.send(pid, name, signal.SIGSTOP):
                return False
            self._paused[pid] = name
            task = asyncio.create_task(self._resume_later(pid, fault.pause_seconds))
            self._resuming.add(task)
            detail = f"for {fault.pause_seconds:g} s"
        else:
            number = signal.SIGKILL if fault.kind is Kind.KILL else signal.SIGTERM
            if not processes.send(pid, name, number):
                return False
            self._going.add(pid)
        self._delivered(fault, name, detail, why_not)
        return True

    def _cut(self, fault: Fault, name: str, pids: dict[str, tuple[str, int]]) -> connections.Line | None:
        """Cut one of its connections; None when it has none at the moment."""
        found = connections.lines(name, pids)
        if not found:
            return None
        line = found[int(fault.pick_connection * len(found))]
        try:
            connections.cut(line.end)
        except PermissionError as error:  # of the process itself: another user's
            raise connections.NotPermitted(str(error.strerror)) from error
        except OSError:  # closed a moment ago
            return None
        return connections.Line(line.end, short_name(line.peer, self._job.name), line.plane)

    def _delivered(self, fault: Fault, name: str, detail: str, why_not: str) -> None:
        done = self._status.records_done if self._status is not None else 0
        delivery = Delivery(
            fault.number, time.time(), done, short_name(name, self._job.name), fault.role, fault.kind, detail, why_not
        )
        self.report.deliveries.append(delivery)
        self._tell(delivery)

    # Pauses.

    async def _resume_later(self, pid: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._resume(pid)

    def _resume(self, pid: int) -> None:
        name = self._paused.pop(pid, None)
        if name is not None:
            processes.send(pid, name, signal.SIGCONT)

    def _resume_all(self) -> None:
        for task in self._resuming:
            task.cancel()
        for pid in list(self._paused):
            self._resume(pid)
