"""`Machine`: what the shell needs of a job's machine, whatever its strategy; and the values that all machines share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from elasticdl.core.commands import Command, FinishJob
from elasticdl.core.events import Event
from elasticdl.core.replicas import Replicas
from elasticdl.job.outcome import Outcome

NOWHERE = "nothing is saved: there is no storage that outlives its replicas"


@dataclass(frozen=True)
class Progress:
    """How far a job is, in the words of any strategy."""

    records: int
    total_records: int
    version: int
    total_versions: int
    epoch: int
    epochs: int
    loss: float | None


@dataclass
class Recovery:
    """A loss and how long it took until the lost shard moved again; of a server, until any did."""

    replica: str
    at: float
    shards: list[str]
    seconds: float | None = None
    server: bool = False


class Machine(Protocol):
    """A job's state and its one mutator. A dataclass, so that the journal can write it as JSON and read it back."""

    replicas: Replicas
    outcome: Outcome | None  # None while the job runs
    reason: str

    @property
    def terms(self) -> Any:
        """What the job is about, fixed at submission: a dataclass of plain values."""

    @property
    def parting(self) -> bool:
        """Whether replicas that are leaving still wait for what they hold to be saved."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """The one mutator: an event in, commands out."""

    def deadline(self) -> float | None:
        """When `TimePassed` should come next."""

    def progress(self) -> Progress: ...

    def refused(self, role: str, count: int) -> str:
        """Why there cannot be so many replicas of a role; empty when there can."""


def ended(machine: Machine, commands: list[Command]) -> list[Command]:
    """These commands, up to one that ends the job: what was decided after the end means nothing."""
    for place, command in enumerate(commands):
        if isinstance(command, FinishJob):
            machine.outcome, machine.reason = command.outcome, command.reason
            machine.replicas.finished = True
            return commands[: place + 1]
    return commands
