"""The master's side of an all-reduce job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from elasticdl.collective.manifest import read_state_manifest
from elasticdl.core.commands import Command, PublishCheckpoint
from elasticdl.core.events import Event, ReplicaJoined
from elasticdl.core.steps import StepPlan
from elasticdl.data.dataset import Dataset
from elasticdl.errors import Problem
from elasticdl.files import File
from elasticdl.job.spec import JobSpec
from elasticdl.master import terms
from elasticdl.master.side import Context, Effect, Side
from elasticdl.strategies.allreduce import checkpoint, messages, status
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.strategies.allreduce.core.terms import AllreduceTerms
from elasticdl.strategies.allreduce.relay import Relay
from elasticdl.strategies.allreduce.request import STRATEGY
from elasticdl.wire import control_pb2 as pb


class AllreduceSide(Side[AllreduceMachine]):
    def __init__(self, machine: AllreduceMachine, context: Context) -> None:
        super().__init__(machine, context)
        output, run = str(context.spec.output or ""), int(context.started_at * 1e6)
        self._commands = messages.Commands(machine, context.folder, output, run)
        self.relay = Relay(machine, context.send)

    @classmethod
    def begin(cls, spec: JobSpec, training: Dataset, validation_records: int) -> AllreduceMachine:
        return AllreduceMachine.new(terms_of(spec, training.records, validation_records))

    @classmethod
    def resume(cls, machine: AllreduceMachine, directory: Path) -> None:
        checkpoint.resume(machine, directory)

    @classmethod
    def checkpoint_files(cls, directory: Path) -> Iterable[File]:
        files: list[File] = read_state_manifest(directory)["part"]["files"]
        return files

    @classmethod
    def checkpoint_problems(cls, directory: Path, spec: JobSpec, training: Dataset) -> list[Problem]:
        return checkpoint.problems(directory, spec, training)

    def hear(self, replica: str, message: pb.FromReplica, now: float) -> Iterable[Event]:
        match message.WhichOneof("body"):
            case "stored":
                self.relay.stored(replica, message.stored)
                return []
            case "pulse":
                event = self.relay.pulse(replica, message.pulse, now)
                return [] if event is None else [event]
            case _:
                return messages.events_of(replica, message)

    def effects(self, command: Command) -> Iterable[Effect]:
        return self._commands.effects(command)

    def decided(self, event: Event, now: float) -> None:
        if isinstance(event, ReplicaJoined):
            self.relay.again(event.name, now, event.generation)

    def deadline(self) -> float | None:
        return self.relay.hangs.deadline()

    def overdue(self, now: float) -> list[Event]:
        return self.relay.hangs.hung(now)

    def publish(self, command: PublishCheckpoint) -> str:
        manifest = checkpoint.manifest(command, self.context.spec, self.context.training, self.machine)
        sizes = {str(f["name"]): int(f["bytes"]) for f in manifest["part"]["files"]}
        return self.context.folder.publish(command, manifest, sizes, self.machine.saves.open_cuts)

    def phase(self) -> str:
        return status.phase(self.machine)

    def describe(self, out: pb.Status) -> None:
        status.describe(self.machine, out)


def terms_of(spec: JobSpec, training_records: int, validation_records: int) -> AllreduceTerms:
    return AllreduceTerms(
        str(spec.job_name), spec.num_workers, StepPlan.of(spec, training_records), spec.min_workers or 1,
        spec.max_workers or 0, spec.num_standby, spec.deterministic, spec.master_grace_seconds, validation_records,
        spec.evaluation_steps, bool(spec.output), spec.audit, terms.budget(spec), terms.schedule(spec),
        STRATEGY.mode(spec), spec.max_bad_records,
    )  # fmt: skip


SIDE = AllreduceSide
