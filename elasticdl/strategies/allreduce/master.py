"""The master's side of an all-reduce job."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from elasticdl.collective.manifest import changed, read_state_manifest
from elasticdl.core.checkpoints import Checkpoint
from elasticdl.core.commands import Command, PublishCheckpoint
from elasticdl.core.events import Event, ReplicaJoined
from elasticdl.core.plan import BadRecord, Position
from elasticdl.core.replicas import State
from elasticdl.core.steps import StepPlan
from elasticdl.data.dataset import Dataset
from elasticdl.errors import Problem
from elasticdl.files import File
from elasticdl.job.spec import JobSpec
from elasticdl.master import resuming, terms
from elasticdl.master.side import Context, Effect, Side
from elasticdl.master.status import add_training
from elasticdl.strategies.allreduce import messages
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.strategies.allreduce.core.proposals import Phase
from elasticdl.strategies.allreduce.core.terms import AllreduceTerms
from elasticdl.strategies.allreduce.relay import Relay
from elasticdl.strategies.allreduce.request import STRATEGY
from elasticdl.wire import control_pb2 as pb

CHANGES_SHOWN = 10


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
        saved = read_state_manifest(directory)
        step = saved["version"]
        machine.stands_at(step, saved.get("records", 0))
        position = Position(version=step, records=machine.records)
        machine.saves.checkpoints.known = [Checkpoint(str(directory), position, lasting=True)]
        machine.membership.checkpoint = (str(directory), step)
        machine.evaluations = [(version, metrics) for version, metrics in saved["evaluations"]]
        machine.bad_records = [BadRecord(*b) for b in saved.get("bad_records", [])]

    @classmethod
    def checkpoint_files(cls, directory: Path) -> Iterable[File]:
        files: list[File] = read_state_manifest(directory)["part"]["files"]
        return files

    @classmethod
    def checkpoint_problems(cls, directory: Path, spec: JobSpec, training: Dataset) -> list[Problem]:
        saved = read_state_manifest(directory)
        found = [resuming.made_with(spec, name, then) for name, then in changed(saved, spec)]
        return found + resuming.other_data(spec, saved["training_data"], training)

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
        spec, job, ((_, text),) = self.context.spec, self.machine, command.files
        part = json.loads(text)
        manifest = resuming.manifest(command, spec, self.context.training, job.bad_records) | {
            "strategy": "allreduce",
            "part": part,
            "num_workers": spec.num_workers,
            "virtual_workers": spec.virtual_workers or 0,
            "deterministic": spec.deterministic,
            "evaluations": [e for e in job.evaluations if e[0] <= command.position.version],
            "batch_policy": spec.batch_policy,
            "records": command.position.records,
        }
        sizes = {str(f["name"]): int(f["bytes"]) for f in part["files"]}
        return self.context.folder.publish(command, manifest, sizes, job.saves.open_cuts)

    def phase(self) -> str:
        job = self.machine
        if job.saves.stopping:
            return "stopping"
        if not job.step and not job.membership.training:
            return "starting"
        if job.closing.exporter and not job.closing.over:
            return "exporting"
        if job.trained_out:
            return "evaluating"
        return "training" if job.membership.phase is not Phase.NONE else "waiting for workers"

    def describe(self, out: pb.Status) -> None:
        job = self.machine
        add_training(out, job, job.evaluations, job.bad_records)
        out.output, out.audit = job.closing.exported, job.closing.audited
        out.generation = job.membership.generation
        out.world.extend(job.membership.members)
        for change in job.changes.done[-CHANGES_SHOWN:]:
            parts = {name.replace(" ", "_"): seconds for name, seconds in change.parts.items()}
            out.changes.add(
                generation=change.generation, at=change.began, who=change.difference, why="; ".join(change.why),
                total=change.seconds, copied_bytes=change.copied_bytes, **parts,
            )  # fmt: skip
        for r in out.replicas:
            if r.state == State.JOINED:
                r.state = _seat(job, r.name)
        plan = job.terms.plan
        for epoch in range(out.epoch + 1):
            done = min(max(0, job.records - epoch * plan.records), plan.records)
            if done:
                out.epochs_done.add(
                    epoch=epoch, records=done, batches=0 if plan.share else plan.steps_in(epoch, job.step)
                )


def _seat(job: AllreduceMachine, name: str) -> str:
    m = job.membership
    if name not in m.members or m.phase is Phase.NONE:
        return "standby" if job.terms.standby else "ready"
    rank = f"rank {m.members.index(name)} of {len(m.members)}"
    return rank if name in m.formed else f"{rank}, joining"


def terms_of(spec: JobSpec, training_records: int, validation_records: int) -> AllreduceTerms:
    return AllreduceTerms(
        str(spec.job_name), spec.num_workers, StepPlan.of(spec, training_records), spec.min_workers or 1,
        spec.max_workers or 0, spec.num_standby, spec.deterministic, spec.master_grace_seconds, validation_records,
        spec.evaluation_steps, bool(spec.output), spec.audit, terms.budget(spec), terms.schedule(spec),
        STRATEGY.mode(spec), spec.max_bad_records,
    )  # fmt: skip


SIDE = AllreduceSide
