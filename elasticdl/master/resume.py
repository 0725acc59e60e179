"""Where a job that starts from a checkpoint takes up its data."""

from __future__ import annotations

from bisect import insort
from pathlib import Path

from elasticdl.core.job import Job
from elasticdl.core.plan import BadRecord, EpochDone, Shard
from elasticdl.data.dataset import Dataset
from elasticdl.errors import JobFailed
from elasticdl.job.spec import JobSpec
from elasticdl.ps.snapshot import read_manifest


def restored(job: Job, directory: Path, spec: JobSpec, training: Dataset) -> Job:
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
    if changed:
        raise JobFailed(
            f"{directory}: the checkpoint's place in the data has no meaning with another {', '.join(changed)}"
        )
    shards = job.shards
    shards.epoch, shards.index = manifest["next"]
    shards.done = {int(epoch): EpochDone(b, r) for epoch, (b, r) in manifest["done"].items()}
    shards.version = sum(d.batches for d in shards.done.values())
    shards.bad_records = [BadRecord(*b) for b in manifest["bad_records"]]
    for shard_id, (next_batch, _) in manifest["open"].items():
        _, epoch, index = shard_id.split("/")
        shard = shards.plan.shard(int(epoch), int(index))
        if shard is None:
            raise JobFailed(f"{directory}: the checkpoint holds shard {shard_id}, which this job does not have")
        committed = manifest["committed"][shard_id]
        shard.next_batch = committed
        shards._advance(shard, next_batch)
        _open(shards.waiting, shard)
    return job


def _open(waiting: list[Shard], shard: Shard) -> None:
    if shard.next_batch < shard.batches:
        shard.attempt = 1  # servers know it: its counter is in their part of the checkpoint
        insort(waiting, shard, key=lambda s: s.order)
