"""The master's side of a parameter-server job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from elasticdl.core.commands import Command, PublishCheckpoint
from elasticdl.core.events import Event
from elasticdl.core.plan import Plan
from elasticdl.data.dataset import Dataset
from elasticdl.errors import Problem
from elasticdl.files import File
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.master import terms
from elasticdl.master.side import Context, Effect, Program, Side
from elasticdl.ps.snapshot import read_manifest
from elasticdl.strategies.parameter_servers import checkpoint, messages, status
from elasticdl.strategies.parameter_servers.by_hand import Hands
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
from elasticdl.strategies.parameter_servers.core.terms import ParameterServerTerms
from elasticdl.strategies.parameter_servers.request import STRATEGY
from elasticdl.wire import control_pb2 as pb


class ParameterServerSide(Side[ParameterServerMachine]):
    def __init__(self, machine: ParameterServerMachine, context: Context) -> None:
        super().__init__(machine, context)
        self._commands = messages.Commands(machine, context.folder)
        self._hands = Hands(machine, context.put, context.spec.to_json(), context.datasets)

    @classmethod
    def begin(cls, spec: JobSpec, training: Dataset, validation_records: int) -> ParameterServerMachine:
        return ParameterServerMachine.new(terms_of(spec, training.records, validation_records))

    @classmethod
    def resume(cls, machine: ParameterServerMachine, directory: Path) -> None:
        checkpoint.resume(machine, directory)

    @classmethod
    def checkpoint_files(cls, directory: Path) -> Iterable[File]:
        return [file for part in read_manifest(directory)["files"].values() for file in part]

    @classmethod
    def checkpoint_problems(cls, directory: Path, spec: JobSpec, training: Dataset) -> list[Problem]:
        return checkpoint.problems(directory, spec, training)

    def hear(self, replica: str, message: pb.FromReplica, now: float) -> Iterable[Event]:
        return [messages.event_of(replica, message)]

    def effects(self, command: Command) -> Iterable[Effect]:
        return self._commands.effects(command)

    def program(self, role: str) -> Program:
        if role == names.PS:
            return Program(("-m", "elasticdl.ps"), computes=False, serves=True)
        return super().program(role)

    # Workers that users start.

    def decided(self, event: Event, now: float) -> None:
        self._hands.decided(event)

    def unlisted(self) -> tuple[tuple[str, str], ...]:
        return self._hands.running()

    async def join(self, index: int) -> pb.JoinReply:
        return await self._hands.come(index)

    def cut_off(self, name: str, reason: str) -> None:
        self._hands.sent_away(name, reason)

    # Checkpoints, and what people see.

    def publish(self, command: PublishCheckpoint) -> str:
        bad = self.machine.shards.searches.bad_records
        return self.context.folder.publish(
            command, checkpoint.manifest(command, self.context.spec, self.context.training, bad)
        )

    def phase(self) -> str:
        return status.phase(self.machine)

    def describe(self, out: pb.Status) -> None:
        status.describe(self.machine, out)


def terms_of(spec: JobSpec, training_records: int, validation_records: int) -> ParameterServerTerms:
    return ParameterServerTerms(
        str(spec.job_name), spec.num_workers, spec.num_ps_pods, Plan.of(spec, training_records), validation_records,
        spec.evaluation_steps, spec.max_bad_records, bool(spec.output), terms.budget(spec), spec.audit,
        terms.schedule(spec), STRATEGY.mode(spec), spec.workers_by_hand,
    )  # fmt: skip


SIDE = ParameterServerSide
