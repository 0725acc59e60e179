"""What manifests of checkpoints have in common, and why a job cannot go on from a checkpoint.

A place in the data means nothing in another order of records, or in other data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elasticdl.core.commands import PublishCheckpoint
from elasticdl.core.plan import BadRecord
from elasticdl.data.dataset import Dataset
from elasticdl.errors import Problem
from elasticdl.job.invalid import shown
from elasticdl.job.spec import JobSpec

KNOBS = ("minibatch_size", "max_step", "num_minibatches_per_task", "seed", "shuffle")  # they fix the order of records


def manifest(
    command: PublishCheckpoint, spec: JobSpec, training: Dataset, bad_records: Iterable[BadRecord]
) -> dict[str, Any]:
    return {
        "cut": command.cut,
        "version": command.position.version,
        "bad_records": [(b.record, b.name, b.error) for b in bad_records],
        "training_data": training.fingerprint(),
        **{name: getattr(spec, name) for name in KNOBS},
    }


def made_with(spec: JobSpec, name: str, then: Any, now: Any = None) -> Problem:
    """A knob that had another value when the checkpoint was made."""
    value = shown(getattr(spec, name) if now is None else now)
    remedy = "Give that, or start without --checkpoint_dir_for_init."
    return Problem(f"--{name}", value, f"the checkpoint was made with {shown(then)}", remedy)


def other_data(spec: JobSpec, fingerprint: str, training: Dataset) -> list[Problem]:
    if training.fingerprint() == fingerprint:
        return []
    what = "not the data that the checkpoint was made with"
    remedy = "Give the same files, or start without --checkpoint_dir_for_init."
    return [Problem("--training_data", str(spec.training_data), what, remedy)]
