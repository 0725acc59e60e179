"""`JobSpec`: the one description of a job: flags, YAML keys, help, reference page and JSON all come from it."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from elasticdl.errors import Problem, UsageError
from elasticdl.job.invalid import from_validation
from elasticdl.job.knob import Command, Knob, KnobGroup, read_knob
from elasticdl.job.knobs.allreduce import AllreduceKnobs
from elasticdl.job.knobs.cluster import ClusterKnobs
from elasticdl.job.knobs.data import DataKnobs
from elasticdl.job.knobs.logs import LogsKnobs
from elasticdl.job.knobs.model import ModelKnobs
from elasticdl.job.knobs.resources import ResourcesKnobs
from elasticdl.job.knobs.saving import EvaluationKnobs, SavingKnobs
from elasticdl.job.knobs.servers import ServersKnobs
from elasticdl.job.knobs.training import OwnProgramKnobs, TrainingKnobs
from elasticdl.job.knobs.workers import ByHandKnobs, WorkersKnobs
from elasticdl.job.names import Role
from elasticdl.job.resources import ResourceSpec


# pydantic collects fields from the last base to the first: the order of the help, reversed.
class JobSpec(
    ByHandKnobs,
    OwnProgramKnobs,
    LogsKnobs,
    ResourcesKnobs,
    ClusterKnobs,
    SavingKnobs,
    EvaluationKnobs,
    AllreduceKnobs,
    ServersKnobs,
    WorkersKnobs,
    TrainingKnobs,
    DataKnobs,
    ModelKnobs,
):
    """A job. Every knob is a field, a flag and a YAML key of one name."""

    command: Command = Field("train", description="The command that made the job; not a flag.")

    def to_json(self) -> str:
        """The text every process of the job receives."""
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> JobSpec:
        """Read what `to_json` wrote."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise UsageError([problem for _, problem in from_validation(error)]) from None

    @property
    def asynchronous(self) -> bool:
        """Whether servers apply each gradient as it comes."""
        if self.use_async is not None:
            return self.use_async
        return self.grads_to_wait == 1 and self.sync_version_tolerance is None

    @property
    def round_batches(self) -> int:
        """How many batches make a version in synchronous training; 0: each one does, as it comes."""
        return 0 if self.asynchronous else self.grads_to_wait

    @property
    def shard_records(self) -> int:
        """How many records a shard has, the last one of an epoch excepted."""
        return self.minibatch_size * self.num_minibatches_per_task

    @property
    def command_words(self) -> list[str]:
        """The user's own program, split as a shell would."""
        return shlex.split(self.job_command or "")

    def limit(self, role: str) -> ResourceSpec | None:
        """The most that a replica of this role may use, if given."""
        found: ResourceSpec | None = getattr(self, f"{role}_resource_limit")
        return found

    def request(self, role: Role) -> ResourceSpec:
        """What a replica of this role requests."""
        found: ResourceSpec = getattr(self, f"{role}_resource_request")
        return found

    def given(self) -> dict[str, Any]:
        """The knobs that differ from their defaults, in the order of the help."""
        return {k.name: v for k in knobs().values() if (v := getattr(self, k.name)) != k.default}

    def with_values(self, **values: Any) -> JobSpec:
        """A validated copy with some knobs changed."""
        return JobSpec.model_validate({**self.given(), "command": self.command, **values})


# The groups in the order of the help.
GROUPS = tuple(group for group in reversed(JobSpec.__bases__) if issubclass(group, KnobGroup))


@functools.cache
def knobs() -> Mapping[str, Knob]:
    """Every knob by name, in the order of the help."""
    return {
        name: read_knob(name, part.title, JobSpec.model_fields[name])
        for part in GROUPS
        for name in part.__annotations__
        if name in JobSpec.model_fields
    }


@functools.cache
def spellings() -> Mapping[str, str]:
    """Every name a user may write, old ones included, with the knob it means."""
    return {spelling: knob.name for knob in knobs().values() for spelling in (knob.name, *knob.aliases)}


def read_values(
    values: Mapping[str, Any], command: Command = "train", where: Mapping[str, str] | None = None
) -> tuple[JobSpec, list[Problem], set[str]]:
    """A JobSpec from values as users write them, with every problem found and the names of the knobs that have one.

    Knobs with a problem have their default in the JobSpec, so that the rest can still be checked.
    """
    try:
        return JobSpec.model_validate({**values, "command": command}), [], set()
    except ValidationError as error:
        found = from_validation(error, dict(where or {}))
    bad = {name for name, _ in found}
    kept = {name: value for name, value in values.items() if name not in bad}
    return JobSpec.model_validate({**kept, "command": command}), [problem for _, problem in found], bad
