"""A checkpoint of a parameter-server job: its manifest, and how a job goes on from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from elasticdl.core.checkpoints import Checkpoint
from elasticdl.core.commands import PublishCheckpoint
from elasticdl.core.plan import BadRecord, EpochDone, Position
from elasticdl.data.dataset import Dataset
from elasticdl.errors import JobFailed, Problem
from elasticdl.job.spec import JobSpec
from elasticdl.master.resuming import made_with, other_data
from elasticdl.ps.snapshot import Manifest, read_manifest
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine

KNOBS = ("minibatch_size", "max_step", "num_minibatches_per_task", "seed", "shuffle")  # they fix the order of records


def manifest(
    command: PublishCheckpoint, spec: JobSpec, training: Dataset, bad_records: Sequence[BadRecord]
) -> Manifest:
    at = command.position
    return {
        "cut": command.cut,
        "version": at.version,
        "files": {server: json.loads(part) for server, part in command.files},
        "open": at.open,
        "next": at.next,
        "done": {str(epoch): (d.batches, d.records) for epoch, d in at.done.items()},
        "bad_records": [(b.record, b.name, b.error) for b in bad_records],
        "training_data": training.fingerprint(),
        "minibatch_size": spec.minibatch_size,
        "max_step": spec.max_step,
        "num_minibatches_per_task": spec.num_minibatches_per_task,
        "round_batches": spec.round_batches,
        "seed": spec.seed,
        "shuffle": spec.shuffle,
    }


def problems(directory: Path, spec: JobSpec, training: Dataset) -> list[Problem]:
    saved = read_manifest(directory)
    then = dict(saved)
    found = [made_with(spec, name, then[name]) for name in KNOBS if then[name] != getattr(spec, name)]
    if (batches := saved.get("round_batches", 0)) != spec.round_batches:
        mode = f"synchronous training with --grads_to_wait={batches}" if batches else "asynchronous training"
        found.append(made_with(spec, "use_async", mode, spec.asynchronous))
    return found + other_data(spec, saved["training_data"], training)


def resume(machine: ParameterServerMachine, directory: Path) -> None:
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
