"""Checks and defaults of a job that runs a program of the user's own."""

from __future__ import annotations

from collections.abc import Iterable

from elasticdl.job.spec import JobSpec
from elasticdl.job.strategy import Finding, Strategy, about


class OwnPrograms(Strategy):
    def needs_model(self, spec: JobSpec) -> bool:
        return False

    def findings(self, spec: JobSpec) -> Iterable[Finding]:
        if spec.job_command is None:
            what, remedy = "needs a program of your own", 'Give --job_command="python -m my.program".'
            yield about(spec, "distribution_strategy", "job_command", what=what, remedy=remedy)


STRATEGY = OwnPrograms()
