"""`Side`: the master's part of a strategy. It builds the job's machine, and stands between the machine and the wire."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from elasticdl.core.commands import Command, PublishCheckpoint
from elasticdl.core.events import Event
from elasticdl.core.machine import Machine
from elasticdl.data.dataset import Dataset
from elasticdl.errors import Problem, Refused
from elasticdl.files import File
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.job.strategy import load
from elasticdl.master.checkpoint_folder import CheckpointFolder
from elasticdl.wire import control_pb2 as pb

AnyMachine = TypeVar("AnyMachine", bound=Machine)


@dataclass(frozen=True)
class Send:
    """A message for one replica, to go out on its stream if it has one."""

    replica: str
    message: pb.ToReplica


Effect = Send | Command


@dataclass(frozen=True)
class Program:
    """What the replicas of a role run."""

    words: tuple[str, ...]  # after `python`, unless they are the user's own command
    own: bool = True  # whether it is ElasticDL's
    computes: bool = True  # whether it takes its share of the machine's cores
    serves: bool = False  # whether workers send it what only it may read


@dataclass(frozen=True)
class Context:
    """What the master lends to its side."""

    spec: JobSpec
    training: Dataset
    folder: CheckpointFolder
    send: Callable[[str, pb.ToReplica], None]  # at once, on the replica's stream
    put: Callable[[Event], None]  # for the machine to decide about
    datasets: str = ""  # what the data consists of, as JSON
    started_at: float = field(default=0.0)


class Side(ABC, Generic[AnyMachine]):
    """Belongs to the master's loop. Methods without a body are for strategies that need them."""

    def __init__(self, machine: AnyMachine, context: Context) -> None:
        self.machine, self.context = machine, context

    # Before the job runs.

    @classmethod
    @abstractmethod
    def begin(cls, spec: JobSpec, training: Dataset, validation_records: int) -> AnyMachine:
        """The machine of a job that starts."""

    @classmethod
    def resume(cls, machine: AnyMachine, directory: Path) -> None:
        """Have it go on from a checkpoint in which `checkpoint_problems` found none."""
        raise NotImplementedError

    @classmethod
    def checkpoint_files(cls, directory: Path) -> Iterable[File]:
        """The files that a checkpoint consists of; raises DataError when it is none of this strategy's."""
        raise NotImplementedError

    @classmethod
    def checkpoint_problems(cls, directory: Path, spec: JobSpec, training: Dataset) -> list[Problem]:
        """Why this job cannot go on from a checkpoint: its place in the data has no meaning here."""
        raise NotImplementedError

    # Between the machine and the wire.

    @abstractmethod
    def hear(self, replica: str, message: pb.FromReplica, now: float) -> Iterable[Event]:
        """What a message means; no events when it is dealt with at once, which may be hundreds of times a second."""

    @abstractmethod
    def effects(self, command: Command) -> Iterable[Effect]:
        """A decision as messages to send, or as it is when only the master can carry it out."""

    def decide(self, event: Event, now: float) -> list[Effect]:
        return [effect for command in self.machine.handle(event, now) for effect in self.effects(command)]

    def decided(self, event: Event, now: float) -> None:
        """The event is in the journal, and what follows from it is sent."""

    def deadline(self) -> float | None:
        """When `overdue` should be asked, besides the deadline of the machine."""
        return None

    def overdue(self, now: float) -> list[Event]:
        """What has not happened in time."""
        return []

    # Replicas.

    def program(self, role: str) -> Program:
        if role == names.WORKER and self.context.spec.job_command is not None:
            return Program(tuple(self.context.spec.command_words), own=False)
        return Program(("-m", f"elasticdl.{role}"))

    def unlisted(self) -> tuple[tuple[str, str], ...]:
        """Name and uid of replicas that run, as far as the journal knows, and that the cluster did not start."""
        return ()

    async def join(self, index: int) -> pb.JoinReply:
        """Take a worker that a user started; raises Refused where it has no part in the job."""
        raise Refused("this job starts its workers itself")

    def cut_off(self, name: str, reason: str) -> None:
        """A replica was told to stop, and its stream is closed by now."""

    # Checkpoints, and what people see.

    def publish(self, command: PublishCheckpoint) -> str:
        """Make a checkpoint of what replicas wrote; its folder."""
        raise NotImplementedError

    @abstractmethod
    def phase(self) -> str:
        """What a job that is not over does now, in a word or two."""

    def describe(self, out: pb.Status) -> None:
        """Add to the status what only this strategy knows."""


def side_of(spec: JobSpec) -> type[Side[Machine]]:
    found: type[Side[Machine]] = load(spec, "master", "SIDE")
    return found
