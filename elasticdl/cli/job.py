"""`Job`: what the commands need of a job, wherever it runs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from elasticdl.errors import Problem, Unreachable, UsageError
from elasticdl.job.invalid import nearest

if TYPE_CHECKING:
    from elasticdl.cli.master_client import MasterClient
    from elasticdl.cluster.kubernetes.troubles import Trouble
    from elasticdl.job.spec import JobSpec
    from elasticdl.wire import control_pb2 as pb

ALL = "all"  # replicas, of a log


@dataclass(frozen=True)
class LogWish:
    """Which lines of a job's logs to show."""

    replica: str
    tail: int | None = None  # only the last so many
    follow: bool = False
    previous: bool = False  # of the process before the present one


class Job(Protocol):
    """A job as it was when it was looked at."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> str:
        """Where it runs, for a table."""

    @property
    def state(self) -> str:
        """pending, running, succeeded, stopped, failed, or died: ended without a result."""

    @property
    def running(self) -> bool:
        """Whether it runs or is about to."""

    @property
    def note(self) -> str:
        """Why it does not run as it should, if that is known without its master."""

    @property
    def troubles(self) -> Sequence[Trouble]:
        """What keeps its replicas from running, as the cluster reports it."""

    @property
    def result(self) -> Mapping[str, Any]:
        """How it ended; empty while it runs."""

    @property
    def started_at(self) -> float | None:
        """Seconds since 1970."""

    @property
    def ended_at(self) -> float | None: ...

    @property
    def logs_at(self) -> str:
        """Where its logs are, for people."""

    @property
    def answer_seconds(self) -> float:
        """How long its master may take to answer."""

    @property
    def left_over(self) -> bool:
        """Whether a job that has ended still has objects to remove."""

    def spec(self) -> JobSpec | None:
        """What was asked for; None where that is not kept any more."""

    def facts(self) -> dict[str, Any]:
        """Where it is, for --json."""

    def reach(self) -> AbstractAsyncContextManager[MasterClient]:
        """A connection to its master; raises `Unreachable` without one."""

    async def again(self) -> Job:
        """The same job, looked at now."""

    async def ended(self, deadline_seconds: float | None = None) -> bool:
        """Wait until it is over. False when the deadline came first."""

    async def stop_without_master(self) -> bool:
        """Stop it although its master does not answer; False if only the master can stop it."""

    async def stop_now(self) -> None:
        """End all of its processes, without a checkpoint; returns when they are gone."""

    def log(self, wish: LogWish) -> AsyncGenerator[str, None]:
        """Lines of its logs."""


async def last_status(job: Job, deadline_seconds: float) -> pb.Status | None:
    """Its master's status, or its last one; None where that was not kept. Raises `Unreachable`, `Refused`."""
    if not job.running:
        if not job.result.get("status"):
            return None
        from elasticdl.cli.summary import status_of

        return status_of(job.result)
    if job.state == "pending":
        raise Unreachable(job.note or "its master has not started yet")
    async with job.reach() as master:
        return await master.status(deadline_seconds)


def lasted(job: Job) -> float | None:
    """Seconds from its start to its end, or to now."""
    if job.started_at is None or job.state == "died":
        return None
    return (job.ended_at or time.time()) - job.started_at


def as_json(job: Job, status: pb.Status | None) -> dict[str, Any]:
    """All that is known of a job, for programs."""
    from elasticdl.cli.summary import status_json

    return {
        "name": job.name,
        "where": job.place,
        "state": job.state,
        "reason": job.result.get("reason", "") or job.note,
        "started_at": job.started_at,
        "duration_seconds": lasted(job),
        **job.facts(),
        "troubles": [{"replicas": list(t.replicas), "what": t.what, "remedy": t.remedy} for t in job.troubles],
        "status": None if status is None else status_json(status),
    }


def no_such_replica(job: Job, asked: str, short: str, there: Collection[str], known: str) -> UsageError:
    meant = nearest(short, there)
    remedy = f"Did you mean {meant}? {known}" if meant else known
    return UsageError([Problem(asked, "", f"job {job.name} has no such replica", remedy)])


def not_running(job: Job, remedy: str = "") -> Problem:
    """The problem of a command that needs a running job."""
    return Problem(job.name, "", f"not running: it {job.state}", remedy or f"`elasticdl status {job.name}` shows more.")
