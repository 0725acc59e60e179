"""The `Cluster` protocol: starts and stops replicas and reports their status, wherever they run."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

# The exit code of a replica that ran out of memory. Not 137: a shell returns that for any
# SIGKILL of its child, and a preempted replica must not look like one that needs more memory.
EXIT_OUT_OF_MEMORY = 86

# Kinds of loss, which are counted.
PREEMPTED, EVICTED, DELETED, NODE_LOST, TURNED_AWAY = "preempted", "evicted", "deleted", "node lost", "turned away"
OUT_OF_MEMORY, KILLED, CRASHED, NOT_STARTED = "out of memory", "killed", "crashed", "not started"
# Kinds of trouble that delay a launched replica.
UNSCHEDULABLE, IMAGE_TROUBLE, CONTAINER_TROUBLE = "unschedulable", "image trouble", "container trouble"

_OUTSIDE_SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM}

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class ReplicaRequest:
    """A replica to run: its name in the job, its command and its limits."""

    name: str  # unique in the job, and the name of its log file
    role: str
    index: int
    command: tuple[str, ...]
    env: Mapping[str, str]  # added to the environment that every replica gets
    cpu_limit: float | None = None
    memory_limit_bytes: int | None = None
    number: int = 0  # its slot among those of its role; unlike an index, it is used again

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"replica name {self.name!r}: letters, digits, '.', '_' and '-' only, up to 253 of them")
        if not self.command:
            raise ValueError(f"replica {self.name}: its command is empty")
        if any("\0" in text for text in (*self.command, *self.env, *self.env.values())):
            raise ValueError(f"replica {self.name}: a NUL character in its command or environment")
        if any(not key or "=" in key for key in self.env):
            raise ValueError(f"replica {self.name}: an environment variable without a name, or with '=' in its name")
        if self.cpu_limit is not None and not (math.isfinite(self.cpu_limit) and self.cpu_limit > 0):
            raise ValueError(f"replica {self.name}: cpu limit {self.cpu_limit} is not above 0")
        if self.memory_limit_bytes is not None and self.memory_limit_bytes <= 0:
            raise ValueError(f"replica {self.name}: memory limit {self.memory_limit_bytes} is not above 0")


class ReplicaPhase(StrEnum):
    """The stages of a replica's life."""

    PENDING = "pending"
    RUNNING = "running"
    GONE = "gone"


@dataclass(frozen=True)
class Exit:
    """How a replica ended. `code` and `signal` are both None when it never started."""

    code: int | None
    signal: int | None
    oom: bool
    reason: str  # in words: "exit code 1", "killed by SIGKILL", "out of memory: …"
    last_lines: tuple[str, ...] = ()  # the end of its log
    at: float = field(default=0.0, compare=False)  # seconds since 1970; 0: not known
    taken: str = ""  # why the cluster took the replica away: preempted, evicted, deleted, node lost …
    overstepped: bool = False  # the cluster killed it for exceeding a limit, such as that of its disk

    @property
    def from_outside(self) -> bool:
        """Whether the cause lies outside the process: a signal it did not cause, or 128 + that signal as exit code."""
        number = self.signal if self.signal is not None else (self.code or 0) - 128
        return not self.oom and not self.overstepped and (bool(self.taken) or number in _OUTSIDE_SIGNALS)

    @property
    def kind(self) -> str:
        """The kind of loss, in a word or two; empty when the replica succeeded."""
        if self.oom:
            return OUT_OF_MEMORY
        if self.overstepped:
            return CRASHED
        if self.taken:
            return self.taken
        if self.from_outside:
            return KILLED
        if self.code is None and self.signal is None:
            return NOT_STARTED
        return "" if self.code == 0 else CRASHED


@dataclass(frozen=True)
class ReplicaStatus:
    """The state of one replica. Each process started under a name has its own uid."""

    name: str
    role: str
    index: int
    uid: str
    phase: ReplicaPhase
    pid: int | None = None
    exit: Exit | None = None
    note: str = ""  # what delays a pending one, or is wrong with a running one, in words
    held_up: str = ""  # the kind of trouble that delays a pending one


class Cluster(Protocol):
    """Runs the replicas of one job. All commands are idempotent by name, so a caller can repeat them after a crash.

    A call that gets no answer raises `Unreachable`; one that the cluster will never carry out raises `Refused`.
    """

    async def launch(self, request: ReplicaRequest) -> None:
        """Start a replica unless one with this name is pending or running.

        A command that cannot be started is not an error here: the replica ends soon, with the reason in its exit.
        """

    async def stop(self, name: str, grace_seconds: float) -> None:
        """Send SIGTERM to the replica, and kill its process group after the grace period; returns at once."""

    async def kill(self, name: str) -> None:
        """Kill the replica and its process group now."""

    async def list(self) -> list[ReplicaStatus]:
        """Every replica of the job, in the order of their first launch; gone ones too, with their last exit."""

    def events(self) -> AsyncGenerator[ReplicaStatus, None]:
        """The current status of every replica, then each change of phase or note, until the cluster is closed.

        Close it (`contextlib.aclosing`) if you leave it early.
        """

    async def close(self) -> None:
        """Disconnect from the cluster. A client's replicas continue to run."""
