"""What a test lends to a side that has no master."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elasticdl.master.checkpoint_folder import CheckpointFolder
from elasticdl.master.side import Context
from tests.master.replicas import DATA, job_spec


def context(home: Path = Path("/nowhere"), started_at: float = 0.0, **knobs: Any) -> Context:
    spec = job_spec(home, **knobs)
    folder = CheckpointFolder(str(spec.checkpoint_dir), str(spec.job_name))
    return Context(spec, DATA, folder, lambda replica, message: None, lambda event: None, started_at=started_at)
