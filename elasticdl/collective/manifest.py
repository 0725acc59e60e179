"""The manifest of an all-reduce checkpoint: its files, and its position in the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from elasticdl.files import read_validated
from elasticdl.job.spec import JobSpec


class StateManifest(TypedDict):
    strategy: Literal["allreduce"]
    cut: int
    version: int  # steps in the model
    part: dict[str, Any]  # the worker's description of its files
    training_data: str  # fingerprint
    minibatch_size: int
    num_workers: int
    virtual_workers: int
    max_step: int
    num_minibatches_per_task: int
    seed: int
    shuffle: bool
    deterministic: bool
    evaluations: list[tuple[int, str]]
    batch_policy: NotRequired[Literal["fixed", "per_worker"]]  # absent: fixed
    records: NotRequired[int]  # trained by those steps, in all epochs together
    bad_records: NotRequired[list[tuple[int, str, str]]]  # left out of them: number, name, what is wrong


_MANIFEST = TypeAdapter(StateManifest)
# Which records belong to which step depends on these.
FIXED = ("minibatch_size", "num_workers", "virtual_workers", "num_minibatches_per_task", "max_step", "seed", "shuffle")
# Where the batch follows the workers, the next records depend on these, and on the number of trained records.
FOLLOWING = ("minibatch_size", "num_minibatches_per_task", "seed", "shuffle")


def read_state_manifest(directory: Path) -> StateManifest:
    return read_validated(directory, _MANIFEST)


def changed(manifest: StateManifest, spec: JobSpec) -> list[tuple[str, Any]]:
    """The knobs in which this job differs from the one that wrote the checkpoint, with their values there."""
    then = {"batch_policy": "fixed", **manifest}
    if then["batch_policy"] != spec.batch_policy:
        return [("batch_policy", then["batch_policy"])]
    fixed = FIXED if spec.batch_policy == "fixed" else FOLLOWING
    return [(name, then[name]) for name in fixed if then[name] != getattr(spec, name)]
