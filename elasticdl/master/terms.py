"""Terms of the machines that strategies share, from a job's description."""

from __future__ import annotations

from pathlib import Path

from elasticdl.core.checkpoints import Schedule
from elasticdl.core.replicas import Budget
from elasticdl.job import names, storage
from elasticdl.job.spec import JobSpec


def budget(spec: JobSpec) -> Budget:
    limit = spec.limit("worker")
    return Budget(
        crashes=spec.relaunch_on_worker_failure,
        server_crashes=spec.ps_relaunch_max_num,
        start_seconds=spec.start_seconds,
        reconnect_seconds=spec.reconnect_seconds,
        hang_seconds=spec.hang_seconds,
        raise_memory=spec.enable_automate_memory and limit is not None and limit.memory is not None,
    )


def schedule(spec: JobSpec) -> Schedule:
    home = names.JobPaths(Path(str(spec.state_dir)), str(spec.job_name))
    own = spec.checkpoint_dir is None or Path(spec.checkpoint_dir) == home.checkpoint
    return Schedule(
        spec.checkpoint_steps, spec.checkpoint_seconds, spec.keep_checkpoint_max, keep_transient=not own,
        nowhere=_goes_with_its_pod(spec),
    )  # fmt: skip


def _goes_with_its_pod(spec: JobSpec) -> bool:
    """Whether no other pod would see the checkpoints."""
    if spec.runtime != "kubernetes":
        return False
    if spec.checkpoint_dir is None:
        return storage.is_scratch(spec)
    overlaid = spec.cluster_spec is not None or spec.cluster_spec_json is not None
    return not overlaid and storage.volume_of(spec, spec.checkpoint_dir) is None
