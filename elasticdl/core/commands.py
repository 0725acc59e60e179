"""What to do: the only output of the machines. Each carries the reason it was decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import dataclass_transform

from elasticdl.core.plan import Position
from elasticdl.job.outcome import Outcome


@dataclass_transform(frozen_default=True)
class Command:
    """Something the shell must do; every subclass is a frozen dataclass. Doing it twice is harmless."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class LaunchReplica(Command):
    role: str
    index: int
    reason: str
    memory_factor: float = 1.0
    number: int = 0  # among those of its role: a replacement takes over the number, under another index


class StopReplica(Command):
    name: str
    reason: str
    grace_seconds: float


class GrantLease(Command):
    worker: str
    shard: str
    attempt: int
    reason: str


class RevokeLease(Command):
    worker: str
    shard: str
    attempt: int
    reason: str


class CloseLease(Command):
    """The worker may forget this lease: it is finished, or no longer its own."""

    worker: str
    shard: str
    attempt: int


class CloseShard(Command):
    """Every batch of the shard is committed: servers refuse it from now on."""

    shard: str


class CloseEpoch(Command):
    epoch: int


class TellMembers(Command):
    """Send one replica (or all, when empty) the addresses of the servers."""

    name: str = ""


class IdentifyRecord(Command):
    shard: str
    epoch: int
    position: int


class HoldServers(Command):
    """Hold pushes once `at` batches are applied (at once, where that is past)."""

    cut: int
    at: int
    server: str = ""  # empty: all of them


class AdvanceServers(Command):
    """Let pushes through until each shard stands at its number, then hold again."""

    cut: int
    counters: tuple[tuple[str, int], ...]
    server: str = ""


class CutServers(Command):
    """Freeze the state of all servers as this cut."""

    cut: int
    purpose: str  # "view" or "save"
    server: str = ""


class ReleaseServers(Command):
    """Let pushes through again."""

    cut: int
    server: str = ""


class DropView(Command):
    cut: int


class PublishCheckpoint(Command):
    """Write the manifest of a saved cut: from now on it exists."""

    cut: int
    position: Position
    files: tuple[tuple[str, str], ...]  # server -> its part, as JSON
    lasting: bool


class SettleSave(Command):
    """What a server wrote of a cut is part of a checkpoint, or never will be."""

    cut: int
    directory: str  # of the checkpoint; empty: there is none
    server: str = ""  # empty: all of them


class DeleteCheckpoints(Command):
    directories: tuple[str, ...]


class RestoreServer(Command):
    """Forget everything and begin this timeline at a checkpoint; without a directory, with nothing."""

    server: str
    timeline: int
    directory: str
    position: Position
    servers: int  # how many there are from now on


class ProposeWorld(Command):
    """Send workers the next world: its members confirm it, others leave the present one."""

    generation: int
    members: tuple[str, ...]  # by rank
    to: tuple[str, ...]
    urgent: bool  # leave an exchange at once, or all at the end of the same step
    reason: str


class StartWorld(Command):
    """Every member has confirmed: build the group, and begin at this state."""

    generation: int
    members: tuple[str, ...]
    to: tuple[str, ...]
    state: tuple[int, int]  # the generation that committed it, and its step
    copies: dict[str, str]  # member -> member it copies the state from
    directory: str  # the checkpoint that the first member reads first


class SaveState(Command):
    """Have a worker write the state: at this step, or at the next one where that is past."""

    worker: str
    cut: int
    at: int


class AskForStack(Command):
    """Have a hung worker send its stack traces before it is stopped."""

    worker: str
    reason: str


class ExportModel(Command):
    """Have a worker write the model, and report what the audit found."""

    worker: str
    number: int = 0  # of the request: it replaces earlier ones


class ReportMetrics(Command):
    version: int
    metrics: str  # JSON


class Announce(Command):
    """A decision to show to people, in these words."""

    text: str


class FinishJob(Command):
    outcome: Outcome
    reason: str
