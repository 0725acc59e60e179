"""What the master asks of the world outside its streams: replica requests, the names of records."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.core.commands import LaunchReplica
from elasticdl.data.dataset import Dataset
from elasticdl.data.ranges import epoch_order
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.master.checkpoint_folder import CheckpointFolder
from elasticdl.master.side import Program
from elasticdl.wire.auth import Keys


@dataclass
class Actions:
    spec: JobSpec
    training: Dataset
    checkpoint_dir: str
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def folder(self) -> CheckpointFolder:
        return CheckpointFolder(self.checkpoint_dir, str(self.spec.job_name))

    def request(self, launch: LaunchReplica, program: Program) -> ReplicaRequest:
        """What to ask of the cluster for a replica that runs this program."""
        spec, role, index = self.spec, launch.role, launch.index
        name = names.replica_name(str(spec.job_name), role, index)
        passed = (names.ENV_JOB_FILE, names.ENV_TOKEN, names.ENV_MASTER_ADDR, names.ENV_TLS_CERT)
        env = {**self._populated, **spec.envs, **{k: self.env[k] for k in passed if k in self.env}}
        env[names.ENV_REPLICA] = name
        keys = Keys.of(self.env)
        if keys is not None:
            env |= keys.env(servers=program.serves)
        limit = spec.limit(role)
        cpu = limit.cpu if limit is not None else None
        memory = limit.memory if limit is not None else None
        if role == names.WORKER:
            env |= {names.ENV_WORKER_ID: str(index), names.ENV_WORKER_NUM: str(spec.num_workers)}
        if self._in_pods:  # which see all cores of their node; the ConfigMap holds the job's files
            env = {**dict.fromkeys(names.ENV_THREADS, str(math.ceil(cpu or 1))), **env}
            env[names.ENV_JOB_FILE] = f"{names.CONFIG_DIR}/{names.JOB_KEY}"
        elif cpu is None:
            share = max(1, (os.cpu_count() or 1) // spec.num_workers) if program.computes else 1
            env = {**{k: str(share) for k in names.ENV_THREADS if k not in self.env}, **env}
        if program.computes and program.own and (self._in_pods or names.ENV_HEAP not in self.env):
            env = {names.ENV_HEAP: names.HUGE_PAGES, **env}
        python = "python" if self._in_pods else sys.executable  # of its own image
        command = (python, *program.words) if program.own else program.words
        return ReplicaRequest(
            name, role, index, command, env, cpu,
            math.ceil(memory * launch.memory_factor) if memory is not None else None, launch.number,
        )  # fmt: skip

    @property
    def _in_pods(self) -> bool:
        return self.spec.runtime == "kubernetes"

    @property
    def _populated(self) -> dict[str, str]:
        """What the master passes on of its own environment, without secrets; processes inherit it anyway."""
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
