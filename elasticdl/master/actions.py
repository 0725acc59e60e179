"""What the master does to the world outside its streams: replica requests, checkpoints, the names of records."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.collective.manifest import StateManifest
from elasticdl.core.commands import PublishCheckpoint
from elasticdl.core.plan import BadRecord
from elasticdl.data.dataset import Dataset
from elasticdl.data.ranges import epoch_order
from elasticdl.files import MANIFEST, fsync_directory, write_durably
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.master.brain import partial_directory
from elasticdl.ps.snapshot import Manifest
from elasticdl.wire.auth import Keys


@dataclass
class Actions:
    spec: JobSpec
    training: Dataset
    checkpoint_dir: str
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def request(self, role: str, index: int, memory_factor: float, number: int = 0) -> ReplicaRequest:
        """What to ask of the cluster for a replica of this role."""
        spec = self.spec
        name = names.replica_name(str(spec.job_name), role, index)
        passed = (names.ENV_JOB_FILE, names.ENV_TOKEN, names.ENV_MASTER_ADDR, names.ENV_TLS_CERT)
        env = {**self._populated, **spec.envs, **{k: self.env[k] for k in passed if k in self.env}}
        env[names.ENV_REPLICA] = name
        keys = Keys.of(self.env)
        if keys is not None:
            env |= keys.env(servers=role == "ps")
        limit = spec.limit("ps" if role == "ps" else "worker")
        cpu = limit.cpu if limit is not None else None
        memory = limit.memory if limit is not None else None
        if role == "worker":
            env |= {names.ENV_WORKER_ID: str(index), names.ENV_WORKER_NUM: str(spec.num_workers)}
        if self._in_pods:  # which see all cores of their node, and have the job's files where its ConfigMap is mounted
            env = {**dict.fromkeys(names.ENV_THREADS, str(math.ceil(cpu or 1))), **env}
            env[names.ENV_JOB_FILE] = f"{names.CONFIG_DIR}/{names.JOB_KEY}"
        elif cpu is None:
            share = max(1, (os.cpu_count() or 1) // spec.num_workers) if role == "worker" else 1
            env = {**{k: str(share) for k in names.ENV_THREADS if k not in self.env}, **env}
        if role == "worker" and spec.job_command is None and (self._in_pods or names.ENV_HEAP not in self.env):
            env = {names.ENV_HEAP: names.HUGE_PAGES, **env}
        python = "python" if self._in_pods else sys.executable  # of its own image
        command: tuple[str, ...] = (python, "-m", f"elasticdl.{role}")
        if role == "worker" and spec.job_command is not None:
            command = tuple(spec.command_words)
        return ReplicaRequest(
            name, role, index, command, env, cpu,
            math.ceil(memory * memory_factor) if memory is not None else None, number,
        )  # fmt: skip

    @property
    def _in_pods(self) -> bool:
        return self.spec.runtime == "kubernetes"

    @property
    def _populated(self) -> dict[str, str]:
        """What the master hands on of its own environment, but no secrets; processes inherit it anyway."""
        wanted = self.spec.populate_env_names if self._in_pods else None
        given = {k: v for k, v in self.env.items() if not k.startswith(names.OWN_ENV) and k != names.ENV_POD_IP}
        return {k: v for k, v in given.items() if wanted is not None and re.fullmatch(wanted, k)}

    def identify(self, epoch: int, position: int) -> tuple[int, str]:
        """Which record stands at a position of an epoch: its number and its name."""
        spec = self.spec
        order = epoch_order(
            self.training, epoch, seed=spec.seed, shard_records=spec.shard_records, shuffle=spec.shuffle
        )
        number = int(order.records(position, position + 1)[0])
        file, start, _ = order.runs(position, position + 1)[0]
        return number, f"record {start} of {self.training.files[file].name}"

    def publish(self, command: PublishCheckpoint, bad_records: list[BadRecord]) -> str:
        """Make a checkpoint of a cut whose parts are all on disk: write the manifest and give the folder its name."""
        at = command.position
        manifest: Manifest = {
            "cut": command.cut,
            "version": at.version,
            "files": {server: json.loads(part) for server, part in command.files},
            "open": at.open,
            "next": at.next,
            "done": {str(epoch): (d.batches, d.records) for epoch, d in at.done.items()},
            "bad_records": [(b.record, b.name, b.error) for b in bad_records],
            "training_data": self.training.fingerprint(),
            "minibatch_size": self.spec.minibatch_size,
            "max_step": self.spec.max_step,
            "num_minibatches_per_task": self.spec.num_minibatches_per_task,
            "round_batches": self.spec.round_batches,
            "seed": self.spec.seed,
            "shuffle": self.spec.shuffle,
        }
        return self._rename(command, dict(manifest))

    def publish_state(
        self,
        command: PublishCheckpoint,
        evaluations: list[tuple[int, str]],
        bad_records: list[BadRecord],
        open_cuts: Collection[int] = (),
    ) -> str:
        """The same of an all-reduce job, whose state one worker wrote, while others may be written."""
        spec, ((_, part),) = self.spec, command.files
        manifest: StateManifest = {
            "strategy": "allreduce",
            "cut": command.cut,
            "version": command.position.version,
            "part": json.loads(part),
            "training_data": self.training.fingerprint(),
            "minibatch_size": spec.minibatch_size,
            "num_workers": spec.num_workers,
            "virtual_workers": spec.virtual_workers or 0,
            "max_step": spec.max_step,
            "num_minibatches_per_task": spec.num_minibatches_per_task,
            "seed": spec.seed,
            "shuffle": spec.shuffle,
            "deterministic": spec.deterministic,
            "evaluations": [e for e in evaluations if e[0] <= command.position.version],
            "batch_policy": spec.batch_policy,
            "records": command.position.records,
            "bad_records": [(b.record, b.name, b.error) for b in bad_records],
        }
        files = {str(f["name"]): int(f["bytes"]) for f in manifest["part"]["files"]}
        return self._rename(command, dict(manifest), files, open_cuts)

    def _rename(
        self,
        command: PublishCheckpoint,
        manifest: dict[str, Any],
        files: Mapping[str, int] = MappingProxyType({}),  # that must be there, with their sizes
        open_cuts: Collection[int] = (),  # what is written of them stays
    ) -> str:
        home, job = Path(self.checkpoint_dir), str(self.spec.job_name)
        final = home / f"version-{command.position.version}"
        partial = Path(partial_directory(self.checkpoint_dir, job, command.cut))
        if not partial.exists() and _cut_of(final) == command.cut:
            return str(final)  # the master before this one came so far
        for name, size in files.items():
            if (partial / name).stat().st_size != size:
                raise OSError(errno.EIO, f"it does not have the {size} bytes that were written", str(partial / name))
        write_durably(partial / MANIFEST, json.dumps(manifest, indent=1).encode())
        old = _set_aside(final) if final.exists() else None  # of an older timeline, or a stop without a step
        partial.rename(final)
        fsync_directory(home)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        for left in home.glob(f"{job}.cut-*.partial"):  # of cuts that were given up
            if _number_of(left) < command.cut and _number_of(left) not in open_cuts:
                shutil.rmtree(left, ignore_errors=True)
        return str(final)

    def sweep(self) -> None:
        """The job is over: what was written of checkpoints that never came to be is of no use to anybody."""
        for left in Path(self.checkpoint_dir).glob(f"{self.spec.job_name}.cut-*.partial"):
            shutil.rmtree(left, ignore_errors=True)

    def delete(self, directories: tuple[str, ...]) -> None:
        """Remove checkpoints that nobody goes back to any more; what cannot be removed stays."""
        for directory in directories:
            with contextlib.suppress(OSError):
                shutil.rmtree(_set_aside(Path(directory)), ignore_errors=True)


def _set_aside(directory: Path) -> Path:
    """From one moment to the next it is no checkpoint any more; its files have yet to go."""
    gone = directory.with_name(directory.name + ".gone")
    shutil.rmtree(gone, ignore_errors=True)
    return directory.rename(gone)


def _number_of(partial: Path) -> int:
    return int(partial.name.removesuffix(".partial").rsplit("-", 1)[1])


def _cut_of(directory: Path) -> int | None:
    """Which cut a checkpoint was made of, if there is one."""
    try:
        return int(json.loads((directory / MANIFEST).read_bytes())["cut"])
    except (OSError, ValueError, KeyError):
        return None
