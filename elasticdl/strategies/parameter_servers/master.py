"""The master's side of a parameter-server job."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from elasticdl.core.checkpoints import Checkpoint
from elasticdl.core.commands import Command, PublishCheckpoint
from elasticdl.core.events import Event
from elasticdl.core.plan import BadRecord, EpochDone, Plan, Position
from elasticdl.core.replicas import State
from elasticdl.data.dataset import Dataset
from elasticdl.errors import JobFailed, Problem
from elasticdl.files import File
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.master import resuming, terms
from elasticdl.master.side import Context, Effect, Program, Side
from elasticdl.master.status import add_training
from elasticdl.ps.snapshot import read_manifest
from elasticdl.strategies.parameter_servers import messages
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
        saved = read_manifest(directory)
        done = {int(epoch): EpochDone(b, r) for epoch, (b, r) in saved["done"].items()}
        position = Position(saved["version"], saved["next"], saved["open"], done)
        try:
            machine.shards.go_back(position)
        except ValueError as error:
            raise JobFailed(f"{directory}: {error}") from error
        machine.shards.searches.bad_records = [BadRecord(*b) for b in saved["bad_records"]]
        machine.evaluation.go_back(position.version)
        machine.servers.checkpoints.known = [Checkpoint(str(directory), position, lasting=True)]

    @classmethod
    def checkpoint_files(cls, directory: Path) -> Iterable[File]:
        return [file for part in read_manifest(directory)["files"].values() for file in part]

    @classmethod
    def checkpoint_problems(cls, directory: Path, spec: JobSpec, training: Dataset) -> list[Problem]:
        saved = read_manifest(directory)
        then = dict(saved)
        changed = [name for name in resuming.KNOBS if then[name] != getattr(spec, name)]
        found = [resuming.made_with(spec, name, then[name]) for name in changed]
        if (batches := saved.get("round_batches", 0)) != spec.round_batches:
            mode = f"synchronous training with --grads_to_wait={batches}" if batches else "asynchronous training"
            found.append(resuming.made_with(spec, "use_async", mode, spec.asynchronous))
        return found + resuming.other_data(spec, saved["training_data"], training)

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
        spec, at, bad = self.context.spec, command.position, self.machine.shards.searches.bad_records
        manifest = resuming.manifest(command, spec, self.context.training, bad) | {
            "files": {server: json.loads(part) for server, part in command.files},
            "open": at.open,
            "next": at.next,
            "done": {str(epoch): (d.batches, d.records) for epoch, d in at.done.items()},
            "round_batches": spec.round_batches,
        }
        return self.context.folder.publish(command, manifest)

    def phase(self) -> str:
        job = self.machine
        if job.servers.stopping:
            return "stopping"
        if job.shards.paused and job.servers.checkpoints.timeline > 1:
            return "going back"
        if job.shards.paused or (not job.shards.version and not job.shards.leased):
            return "starting"
        if job.closing.auditing and not job.closing.audited:
            return "auditing"
        if job.closing.exporting:
            return "exporting"
        if job.shards.trained_out:
            return "evaluating"
        return "training"

    def describe(self, out: pb.Status) -> None:
        job = self.machine
        add_training(out, job, job.evaluation.done, job.shards.searches.bad_records)
        out.timeline, out.rollbacks = job.servers.checkpoints.timeline, job.rollbacks
        out.servers, out.servers_wanted = len(job.servers.names), job.servers.wanted
        out.output, out.audit = job.closing.exported, job.closing.audited
        out.skipped_batches = job.shards.skipped
        leases: dict[str, list[str]] = {}
        for s in sorted(job.shards.leased.values(), key=lambda s: s.turn):
            leases.setdefault(s.worker, []).append(f"{s.id} {s.next_batch}/{s.batches}")
        for r in out.replicas:
            r.leases.extend(leases.get(r.name, []))
            if r.state == State.JOINED and r.role == "worker" and not r.leases:
                r.state = "waiting for work"
        for epoch, done in sorted(job.shards.done.items()):
            out.epochs_done.add(epoch=epoch, records=done.records, batches=done.batches)


def terms_of(spec: JobSpec, training_records: int, validation_records: int) -> ParameterServerTerms:
    return ParameterServerTerms(
        str(spec.job_name), spec.num_workers, spec.num_ps_pods, Plan.of(spec, training_records), validation_records,
        spec.evaluation_steps, spec.max_bad_records, bool(spec.output), terms.budget(spec), spec.audit,
        terms.schedule(spec), STRATEGY.mode(spec), spec.workers_by_hand,
    )  # fmt: skip


SIDE = ParameterServerSide
