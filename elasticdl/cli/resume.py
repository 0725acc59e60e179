"""The command line that describes a job, for people to paste."""

from __future__ import annotations

import shlex
from pathlib import Path

from elasticdl.errors import UsageError
from elasticdl.job.resolve import resolve
from elasticdl.job.spec import JobSpec, knobs


def command_line(spec: JobSpec) -> str:
    """The shortest `elasticdl` command that resolves to this job."""
    given = spec.given()
    for name in list(given):
        fewer = {k: v for k, v in given.items() if k != name}
        try:
            resolved = resolve(JobSpec.model_validate({**fewer, "command": spec.command}))
        except UsageError:
            continue
        if resolved.spec == spec:
            given = fewer
    flags = [f"{knobs()[name].flag}={knobs()[name].spell(value)}" for name, value in given.items()]
    return shlex.join(["elasticdl", spec.command, *flags])


def resume_command(spec: JobSpec, checkpoint: Path) -> str:
    """The command that goes on where a stopped job left off."""
    return command_line(spec.with_values(checkpoint_dir_for_init=str(checkpoint)))
