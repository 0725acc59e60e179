"""A checkpoint of an all-reduce job: its manifest, and how a job goes on from it."""

from __future__ import annotations

import json
from pathlib import Path

from elasticdl.collective.manifest import StateManifest, changed, read_state_manifest
from elasticdl.core.checkpoints import Checkpoint
from elasticdl.core.commands import PublishCheckpoint
from elasticdl.core.plan import BadRecord, Position
from elasticdl.data.dataset import Dataset
from elasticdl.errors import Problem
from elasticdl.job.spec import JobSpec
from elasticdl.master.resuming import made_with, other_data
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine


def manifest(command: PublishCheckpoint, spec: JobSpec, training: Dataset, machine: AllreduceMachine) -> StateManifest:
    ((_, part),) = command.files
    return {
        "strategy": "allreduce",
        "cut": command.cut,
        "version": command.position.version,
        "part": json.loads(part),
        "training_data": training.fingerprint(),
        "minibatch_size": spec.minibatch_size,
        "num_workers": spec.num_workers,
        "virtual_workers": spec.virtual_workers or 0,
        "max_step": spec.max_step,
        "num_minibatches_per_task": spec.num_minibatches_per_task,
        "seed": spec.seed,
        "shuffle": spec.shuffle,
        "deterministic": spec.deterministic,
        "evaluations": [e for e in machine.evaluations if e[0] <= command.position.version],
        "batch_policy": spec.batch_policy,
        "records": command.position.records,
        "bad_records": [(b.record, b.name, b.error) for b in machine.bad_records],
    }


def problems(directory: Path, spec: JobSpec, training: Dataset) -> list[Problem]:
    saved = read_state_manifest(directory)
    found = [made_with(spec, name, then) for name, then in changed(saved, spec)]
    return found + other_data(spec, saved["training_data"], training)


def resume(machine: AllreduceMachine, directory: Path) -> None:
    saved = read_state_manifest(directory)
    step = saved["version"]
    machine.stands_at(step, saved.get("records", 0))
    position = Position(version=step, records=machine.records)
    machine.saves.checkpoints.known = [Checkpoint(str(directory), position, lasting=True)]
    machine.membership.checkpoint = (str(directory), step)
    machine.evaluations = [(version, metrics) for version, metrics in saved["evaluations"]]
    machine.bad_records = [BadRecord(*b) for b in saved.get("bad_records", [])]
