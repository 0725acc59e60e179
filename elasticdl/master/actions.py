"""What the master does to the world outside its streams: replica requests, checkpoints, the names of records."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.core.job import Job
from elasticdl.data.dataset import Dataset
from elasticdl.data.ranges import epoch_order
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.ps.snapshot import MANIFEST, Manifest, write_durably

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class Actions:
    spec: JobSpec
    training: Dataset
    checkpoint_dir: str
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def request(self, role: str, index: int, memory_factor: float) -> ReplicaRequest:
        """What to ask of the cluster for a replica of this role."""
        spec = self.spec
        name = names.replica_name(str(spec.job_name), role, index)
        passed = (names.ENV_JOB_FILE, names.ENV_TOKEN, names.ENV_MASTER_ADDR)
        env = {**spec.envs, **{k: self.env[k] for k in passed}, names.ENV_REPLICA: name}
        limit = spec.limit("ps" if role == "ps" else "worker")
        cpu = limit.cpu if limit is not None else None
        memory = limit.memory if limit is not None else None
        if role == "worker":
            env |= {names.ENV_WORKER_ID: str(index), names.ENV_WORKER_NUM: str(spec.num_workers)}
        if cpu is None:
            share = max(1, (os.cpu_count() or 1) // spec.num_workers) if role == "worker" else 1
            env = {**{k: str(share) for k in THREADS if k not in self.env}, **env}
        return ReplicaRequest(
            name, role, index, (sys.executable, "-m", f"elasticdl.{role}"), env, cpu,
            math.ceil(memory * memory_factor) if memory is not None else None,
        )  # fmt: skip

    def identify(self, epoch: int, position: int) -> tuple[int, str]:
        """Which record stands at a position of an epoch: its number and its name."""
        spec = self.spec
        order = epoch_order(
            self.training, epoch, seed=spec.seed, shard_records=spec.shard_records, shuffle=spec.shuffle
        )
        number = int(order.records(position, position + 1)[0])
        file, start, _ = order.runs(position, position + 1)[0]
        return number, f"record {start} of {self.training.files[file].name}"

    def publish(
        self, job: Job, version: int, counters: tuple[tuple[str, int], ...], files: tuple[tuple[str, str], ...]
    ) -> str:
        """Write the manifest of a checkpoint whose parts are all on disk: from now on it exists."""
        directory = Path(self.checkpoint_dir) / f"version-{version}"
        shards = job.shards
        at = dict(counters)
        batches = {s.id: s.batches for s in shards.open_training()}
        manifest: Manifest = {
            "version": version,
            "files": dict(files),
            "open": {s: (at.get(s, 0), n) for s, n in batches.items()},
            "next": (shards.epoch, shards.index),
            "done": {str(epoch): (d.batches, d.records) for epoch, d in shards.done.items()},
            "committed": {s.id: s.next_batch for s in shards.open_training()},
            "bad_records": [(b.record, b.name, b.error) for b in shards.bad_records],
            "training_data": self.training.fingerprint(),
            "minibatch_size": self.spec.minibatch_size,
            "max_step": self.spec.max_step,
            "num_minibatches_per_task": self.spec.num_minibatches_per_task,
            "seed": self.spec.seed,
            "shuffle": self.spec.shuffle,
        }
        write_durably(directory / MANIFEST, json.dumps(manifest, indent=1).encode())
        return str(directory)
