"""`Strategy`: checks and defaults of a kind of job, before any process of it runs."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Literal

from elasticdl.errors import Problem
from elasticdl.job import names
from elasticdl.job.knob import Knob
from elasticdl.job.spec import JobSpec, knobs
from elasticdl.job.strategies import FOLDERS

# The knobs that a check looked at, and what it found: nothing is reported when one of them was already refused.
Finding = tuple[tuple[str, ...], Problem]


class Strategy:
    """As it stands: a master and workers that train a model file, and nothing that is special about them."""

    always: tuple[names.Role, ...] = (names.MASTER, names.WORKER)  # roles that each job of this strategy has
    groups: tuple[str, ...] = ()  # titles of knob groups that only this strategy reads
    by_hand = False  # whether users may start its workers themselves
    programs = False  # whether --job_command may replace the model file
    irreplaceable = "its master's pod"  # without it a job starts from the beginning, where nothing is saved

    def roles(self, spec: JobSpec) -> tuple[names.Role, ...]:
        """The roles that this job has replicas of."""
        asked = {
            names.PS: bool(spec.num_ps_pods),
            names.CHIEF: spec.need_tf_config,
            names.EVALUATOR: bool(spec.num_evaluators),
        }
        return tuple(role for role in names.ROLES if role in self.always or asked.get(role))

    def needs_model(self, spec: JobSpec) -> bool:
        """Whether the job has to name a model file and data."""
        return spec.job_command is None

    def check(self, spec: JobSpec) -> Iterable[Finding]:
        if spec.workers_by_hand and not self.by_hand:
            what, remedy = "has no workers that are started by hand", "Leave it out, or use elasticdl train."
            yield about(spec, "distribution_strategy", what=what, remedy=remedy)
        yield from self.findings(spec)

    def findings(self, spec: JobSpec) -> Iterable[Finding]:
        """What does not fit together in a job of this strategy."""
        return ()

    def idle(self, spec: JobSpec, knob: Knob) -> str | None:
        """Why a knob of this strategy's own groups changes nothing in this job."""
        return None

    def fill_in(self, spec: JobSpec, values: dict[str, Any], decisions: list[str], notes: list[str]) -> None:
        """Derive what the user left open."""

    def fill_in_for_a_cluster(
        self, spec: JobSpec, values: dict[str, Any], decisions: list[str], warnings: list[str]
    ) -> None:
        """The same, of a job in pods."""

    def mode(self, spec: JobSpec) -> str:
        """How gradients become versions of the model, in words."""
        return ""


def load(spec: JobSpec, module: Literal["request", "master", "worker"], name: str) -> Any:
    """An object of a module of the folder of this job's strategy."""
    return getattr(importlib.import_module(f"{FOLDERS[spec.distribution_strategy]}.{module}"), name)


def strategy_of(spec: JobSpec) -> Strategy:
    found: Strategy = load(spec, "request", "STRATEGY")
    return found


def about(spec: JobSpec, name: str, *others: str, what: str, remedy: str) -> Finding:
    """A finding about the value of a knob, which depends on the others as well."""
    knob = knobs()[name]
    return (name, *others), Problem(knob.flag, knob.spell(getattr(spec, name)), what, remedy)


def unused(spec: JobSpec, knob: Knob) -> str | None:
    """Why the strategy of this job makes no use of a knob."""
    mine = strategy_of(spec)
    if knob.group in mine.groups:
        return mine.idle(spec, knob)
    for name in FOLDERS:
        if knob.group in strategy_of(spec.model_copy(update={"distribution_strategy": name})).groups:
            return f"only --distribution_strategy={name} uses it"
    return None
