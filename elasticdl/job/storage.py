"""Where a job in a cluster keeps its state: below the first volume, or in a pod's own scratch space."""

from __future__ import annotations

from pathlib import PurePosixPath

from elasticdl.job.resources import VolumeSpec
from elasticdl.job.spec import JobSpec

STATE_FOLDER = ".elasticdl"
SCRATCH = "/var/lib/elasticdl"  # an emptyDir: deleted with its pod


def default_state_dir(spec: JobSpec) -> str:
    """Below the first volume, which every pod of the job has."""
    return str(PurePosixPath(spec.volume[0].mount_path) / STATE_FOLDER) if spec.volume else SCRATCH


def volume_of(spec: JobSpec, path: str) -> VolumeSpec | None:
    """The volume that a path lies on: the one that is mounted deepest."""
    there = [v for v in spec.volume if PurePosixPath(path).is_relative_to(v.mount_path)]
    return max(there, key=lambda v: len(PurePosixPath(v.mount_path).parts), default=None)


def is_scratch(spec: JobSpec) -> bool:
    """Whether each pod has its own state folder, which is deleted with it: nothing is mounted there.

    A job with overlaid pods may mount anything anywhere; then --state_dir is assumed to be mounted.
    """
    overlaid = spec.cluster_spec is not None or spec.cluster_spec_json is not None
    state_dir = spec.state_dir or default_state_dir(spec)
    return volume_of(spec, state_dir) is None and (state_dir == SCRATCH or not overlaid)


def volume_of_choice(spec: JobSpec) -> VolumeSpec | None:
    """The volume of the default state folder, which the pod may not be allowed to write to. The user prepares a folder
    that --state_dir names."""
    state_dir = spec.state_dir or default_state_dir(spec)
    return volume_of(spec, state_dir) if state_dir == default_state_dir(spec) else None
