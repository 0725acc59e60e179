"""The command line that describes a job, to be pasted."""

from __future__ import annotations

import shlex
from pathlib import Path

from elasticdl.errors import UsageError
from elasticdl.job.resolve import resolve
from elasticdl.job.spec import JobSpec, knobs


def command_line(spec: JobSpec, context: str | None = None) -> str:
    """The shortest `elasticdl` command that resolves to this job, whatever namespace is the usual one. `context`: of
    the kubeconfig, where its cluster is not the usual one."""
    given = spec.given()
    for name in [name for name in given if name != "namespace"]:
        fewer = {k: v for k, v in given.items() if k != name}
        try:
            resolved = resolve(JobSpec.model_validate({**fewer, "command": spec.command}))
        except UsageError:
            continue
        if resolved.spec == spec:
            given = fewer
    flags = [f"{knobs()[name].flag}={knobs()[name].spell(value)}" for name, value in given.items()]
    where = [f"--context={context}"] if context is not None and spec.runtime == "kubernetes" else []
    return shlex.join(["elasticdl", spec.command, *where, *flags])


def resume_command(spec: JobSpec, checkpoint: Path, context: str | None = None) -> str:
    """The command that resumes a stopped job."""
    return command_line(spec.with_values(checkpoint_dir_for_init=str(checkpoint)), context)
