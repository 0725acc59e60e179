"""Where a job that starts from a checkpoint takes up its data."""

from __future__ import annotations

from pathlib import Path

from elasticdl.collective.manifest import changed as changed_knobs
from elasticdl.collective.manifest import read_state_manifest
from elasticdl.core.checkpoints import Checkpoint
from elasticdl.core.plan import BadRecord, EpochDone, Position
from elasticdl.data.dataset import Dataset
from elasticdl.errors import JobFailed
from elasticdl.job.spec import JobSpec
from elasticdl.ps.snapshot import read_manifest
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine


def restored(job: ParameterServerMachine, directory: Path, spec: JobSpec, training: Dataset) -> ParameterServerMachine:
    """The job with the data position of a checkpoint. The order of records must be the one it was made with."""
    manifest = read_manifest(directory)
    now = {
        "--minibatch_size": spec.minibatch_size,
        "--max_step": spec.max_step,
        "--num_minibatches_per_task": spec.num_minibatches_per_task,
        "--seed": spec.seed,
        "--shuffle": spec.shuffle,
        "--training_data": training.fingerprint(),
    }
    then = {flag: dict(manifest)[flag.removeprefix("--")] for flag in now}
    changed = [f"{flag} (was {then[flag]})" for flag in now if now[flag] != then[flag]]
    if (batches := manifest.get("round_batches", 0)) != spec.round_batches:
        changed.append(f"--grads_to_wait (was {batches})" if batches else "--use_async (was true)")
    if changed:
        raise JobFailed(
            f"{directory}: the checkpoint's place in the data has no meaning with another {', '.join(changed)}"
        )
    done = {int(epoch): EpochDone(b, r) for epoch, (b, r) in manifest["done"].items()}
    position = Position(manifest["version"], manifest["next"], manifest["open"], done)
    try:
        job.shards.go_back(position)
    except ValueError as error:
        raise JobFailed(f"{directory}: {error}") from error
    job.shards.searches.bad_records = [BadRecord(*b) for b in manifest["bad_records"]]
    job.evaluation.go_back(position.version)
    job.servers.checkpoints.known = [Checkpoint(str(directory), position, lasting=True)]
    return job


def state_restored(job: AllreduceMachine, directory: Path, spec: JobSpec, training: Dataset) -> AllreduceMachine:
    """An all-reduce job that goes on from a checkpoint."""
    manifest = read_state_manifest(directory)
    differ = [f"--{name} (was {then})" for name, then in changed_knobs(manifest, spec)]
    if manifest["training_data"] != training.fingerprint():
        differ.append("--training_data")
    if differ:
        raise JobFailed(
            f"{directory}: the checkpoint's place in the data has no meaning with another {', '.join(differ)}"
        )
    step = manifest["version"]
    job.stands_at(step, manifest.get("records", 0))
    position = Position(version=step, records=job.records)
    job.saves.checkpoints.known = [Checkpoint(str(directory), position, lasting=True)]
    job.membership.checkpoint = (str(directory), step)
    job.evaluations = [(version, metrics) for version, metrics in manifest["evaluations"]]
    job.bad_records = [BadRecord(*b) for b in manifest.get("bad_records", [])]
    return job
