"""`Job`: what the commands that look after jobs need of one, wherever it runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from elasticdl.cli.master_client import MasterClient
    from elasticdl.cluster.kubernetes.troubles import Trouble
    from elasticdl.job.spec import JobSpec

ALL = "all"  # replicas, of a log


@dataclass(frozen=True)
class LogWish:
    """Which lines of a job's logs somebody wants to see."""

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
        """Where it runs, in words that fit into a table."""

    @property
    def state(self) -> str:
        """pending, running, succeeded, stopped, failed, or died: ended without saying how."""

    @property
    def running(self) -> bool:
        """Whether it runs or is about to."""

    @property
    def note(self) -> str:
        """Why it does not run as it should, where that is known without its master."""

    @property
    def troubles(self) -> Sequence[Trouble]:
        """What keeps its replicas from running, as the place where they run tells."""

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
        """Whether something of it that does not run any more is still to be removed."""

    def spec(self) -> JobSpec | None:
        """What was asked for; None where that is not kept any more."""

    def facts(self) -> dict[str, Any]:
        """What programs are told of where it is."""

    def reach(self) -> AbstractAsyncContextManager[MasterClient]:
        """A way to its master; raises `Unreachable` where there is none."""

    async def again(self) -> Job:
        """The same job, looked at now."""

    async def ended(self, deadline_seconds: float | None = None) -> bool:
        """Wait until it is over. False when the deadline came first."""

    async def stop_without_master(self) -> bool:
        """Have it stop although its master does not answer; False where only the master could."""

    async def stop_now(self) -> None:
        """End everything of it, without a checkpoint; returns when all is gone."""

    def log(self, wish: LogWish) -> AsyncGenerator[str, None]:
        """Lines of its logs."""
