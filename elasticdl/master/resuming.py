"""Why a job cannot go on from a checkpoint: a place in the data means nothing in another order, or in other data."""

from __future__ import annotations

from typing import Any

from elasticdl.data.dataset import Dataset
from elasticdl.errors import Problem
from elasticdl.job.invalid import shown
from elasticdl.job.spec import JobSpec


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
