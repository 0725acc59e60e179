"""From what a user asked for to the job that runs: derived values, the reasons for them, and what stands in the way."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath
from typing import Any

from elasticdl.errors import Problem, UsageError
from elasticdl.job import names, storage
from elasticdl.job.checks import findings
from elasticdl.job.knobs.resources import MASTER_LIMIT
from elasticdl.job.resources import ResourceSpec
from elasticdl.job.spec import JobSpec, knobs
from elasticdl.job.strategy import strategy_of, unused

PLACES = (
    "model_zoo", "training_data", "validation_data", "prediction_data",
    "output", "checkpoint_dir", "checkpoint_dir_for_init",
)  # fmt: skip
CLUSTER_GRACE_SECONDS = 300.0  # for a master whose pod may have to wait for room
NAMESPACE = "default"  # of Kubernetes, where none is named
NOT_BUILT = {"evaluate": "evaluating a saved model", "predict": "prediction"}


@dataclass(frozen=True)
class Resolved:
    """A job ready to run, or the reasons why it cannot."""

    spec: JobSpec
    decisions: tuple[str, ...]  # what was derived, each with its reason: printed when the job starts
    notes: tuple[str, ...]  # about flags that change nothing here, each by name
    problems: tuple[Problem, ...]  # what is wrong with the request
    later: tuple[Problem, ...]  # what is right, but not part of this release yet
    warnings: tuple[str, ...] = ()  # what may be lost, and with what

    def require(self) -> JobSpec:
        """The job to run; raises UsageError with everything that stands in the way."""
        if self.problems or self.later:
            raise UsageError([*self.problems, *self.later])
        return self.spec


def resolve(
    spec: JobSpec,
    problems: Sequence[Problem] = (),
    refused: Collection[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    unique: str | None = None,
    namespace: Callable[[], str] = lambda: NAMESPACE,
) -> Resolved:
    """Fill in what the user left open.

    `problems` were found while reading; knobs in `refused` have one and hold their default, so that checks that look at
    them are left out. `unique` ends a made-up job name. `namespace` is where a job on Kubernetes goes that names none.
    Resolving a resolved job changes nothing.
    """
    found = [*problems, *(problem for seen, problem in findings(spec) if not set(seen) & set(refused))]
    values: dict[str, Any] = {}
    decisions: list[str] = []
    notes: list[str] = []
    warnings: list[str] = []
    runtime = _runtime(spec, decisions)
    values["runtime"] = runtime
    _older_spellings(spec, values, notes)
    strategy_of(spec).fill_in(spec, values, decisions, notes)
    if runtime == "local":
        _homes(spec, values)
        state_dir = names.expanded(spec.state_dir).absolute() if spec.state_dir else names.default_state_dir(env)
        values["state_dir"] = str(state_dir)
    else:
        values |= _requests_and_limits(spec)
        if spec.namespace is None:
            values["namespace"] = namespace()
            if values["namespace"] != NAMESPACE:
                decisions.append(f"The job goes to namespace {values['namespace']}, which kubectl uses as well.")
        found += _in_a_cluster(spec, values, decisions, warnings)
    if spec.job_name is None:
        model = values.get("model_def", spec.model_def) or "job"
        values["job_name"] = names.made_up_job_name(model, unique or secrets.token_hex(3))
        decisions.append(f"The job is called {values['job_name']}, since --job_name is not given.")
    if runtime == "local" and spec.checkpoint_dir is None:
        paths = names.JobPaths(state_dir, values.get("job_name", spec.job_name) or "")
        values["checkpoint_dir"] = str(paths.checkpoint)
    notes += _notes(spec, runtime)
    return Resolved(
        spec.with_values(**values), tuple(decisions), tuple(notes), tuple(found), tuple(_later(spec)), tuple(warnings)
    )


def _runtime(spec: JobSpec, decisions: list[str]) -> str:
    where = {"local": "as processes on this machine", "kubernetes": "as pods on Kubernetes"}
    image = next((n for n in ("image_name", "worker_image", "ps_image") if getattr(spec, n) is not None), None)
    runtime = spec.runtime or ("kubernetes" if image else "local")
    if spec.runtime is not None:
        why = f"as --runtime={spec.runtime} says"
    else:
        why = f"since --{image} is given" if image else "since no --image_name is given"
    decisions.append(f"The job runs {where[runtime]}, {why}.")
    return runtime


def _older_spellings(spec: JobSpec, values: dict[str, Any], notes: list[str]) -> None:
    if spec.model_file is not None and spec.model_def is None:
        path = PurePath(spec.model_file)
        values |= {"model_zoo": str(path.parent), "model_def": f"{path.stem}.custom_model", "model_file": None}
        notes.append(
            f"--model_file={spec.model_file} is read as --model_zoo={path.parent} --model_def={values['model_def']}"
        )
    if spec.records_per_task is not None and spec.num_minibatches_per_task == 8:
        per_task = math.ceil(spec.records_per_task / spec.minibatch_size)
        values |= {"num_minibatches_per_task": per_task, "records_per_task": None}
        notes.append(
            f"--records_per_task={spec.records_per_task} is read as --num_minibatches_per_task={per_task}, "
            f"{per_task * spec.minibatch_size} records"
        )
    if spec.aux_params.get("disable_relaunch", "").lower() in ("true", "1", "yes"):
        values["relaunch_on_worker_failure"] = 0
        notes.append("--aux_params: disable_relaunch is read as --relaunch_on_worker_failure=0")


def _homes(spec: JobSpec, values: dict[str, Any]) -> None:
    """A shell leaves the `~` of --output=~/model to us."""
    for name in PLACES:
        given = values.get(name, getattr(spec, name))
        if given and given.startswith("~"):
            values[name] = str(names.expanded(given))


def _requests_and_limits(spec: JobSpec) -> dict[str, ResourceSpec]:
    """On Kubernetes a limit not given is the request, and a request not given stays within the limit."""
    values = {}
    for role in names.ROLES:
        request, limit = spec.request(role), spec.limit(role)
        by_default = request == knobs()[f"{role}_resource_request"].default
        if limit is None:
            values[f"{role}_resource_limit"] = MASTER_LIMIT if role == names.MASTER and by_default else request
        elif by_default:
            values[f"{role}_resource_request"] = request.at_most(limit)
    return values


def _in_a_cluster(spec: JobSpec, values: dict[str, Any], decisions: list[str], warnings: list[str]) -> list[Problem]:
    """Where pods store what must outlive them, and what is lost without such a place."""
    state_dir = str(PurePosixPath("/", spec.state_dir or storage.default_state_dir(spec)))
    values["state_dir"] = state_dir
    strategy = strategy_of(spec)
    problems, scratch = [], storage.is_scratch(spec.with_values(state_dir=state_dir))
    if spec.state_dir is None and spec.volume:
        decisions.append(f"Journal and checkpoints are stored below {state_dir}, on the first --volume.")
    if scratch:
        warnings.append(
            f"Nothing is stored outside the pods, since {state_dir} is on no --volume: the job writes no checkpoints, "
            f"and starts again if it loses {strategy.irreplaceable}. "
            "Mount a claim: --volume=claim_name=NAME,mount_path=/job."
        )
        values["checkpoint_seconds"] = 0.0
        if spec.checkpoint_steps:
            what = "checkpoints need a place that every pod sees"
            remedy = "Give --volume=claim_name=NAME,mount_path=/job, or leave it out."
            problems.append(Problem("--checkpoint_steps", str(spec.checkpoint_steps), what, remedy))
    if "master_grace_seconds" not in spec.model_fields_set:
        values["master_grace_seconds"] = CLUSTER_GRACE_SECONDS
    overlaid = spec.cluster_spec is not None or spec.cluster_spec_json is not None
    for name in ("output", "checkpoint_dir"):
        path = getattr(spec, name)
        if path and not overlaid and storage.volume_of(spec, path) is None:
            warnings.append(f"--{name}={path} is on no --volume: files written there are lost with the pod.")
    if any(volume.host_path is not None for volume in spec.volume):
        warnings.append(
            "A host_path is a directory of whichever node a pod runs on. On a cluster of several nodes use a "
            "claim_name, so that all pods see the same files."
        )
    strategy.fill_in_for_a_cluster(spec, values, decisions, warnings)
    return problems


def _notes(spec: JobSpec, runtime: str) -> list[str]:
    """A line for every flag that was given and changes nothing."""
    notes = []
    present = strategy_of(spec).roles(spec)
    for name, value in spec.given().items():
        knob = knobs()[name]
        role = next((r for r in names.ROLES if name.startswith(f"{r}_") and name.endswith(_PER_ROLE)), None)
        if knob.gone is not None:
            notes.append(f"{knob.flag}={knob.spell(value)} is no longer used: {knob.gone}")
        elif role is not None and role not in present:
            notes.append(f"{knob.flag}={knob.spell(value)} changes nothing: this job has no {role}")
        elif (why := unused(spec, knob)) is not None:
            notes.append(f"{knob.flag}={knob.spell(value)} changes nothing: {why}")
        elif knob.local is not None and runtime == "local":
            notes.append(f"{knob.flag}={knob.spell(value)} changes nothing: {knob.local}")
        elif runtime == "local" and isinstance(value, ResourceSpec) and value.extended:
            others = ", ".join(name for name, _ in value.extended)
            notes.append(f"{knob.flag}: {others} changes nothing: on this machine only cpu and memory are limited")
    if runtime == "kubernetes" and spec.master_port:
        notes.append(f"--master_port={spec.master_port} changes nothing: in its pod the master listens at 50001")
    for volume in spec.volume if runtime == "kubernetes" else ():
        if volume.host_path is not None and not volume.host_path.startswith("/"):
            notes.append(f"--volume={volume}: host_path is not absolute, which Kubernetes will refuse")
    return notes


_PER_ROLE = ("_resource_request", "_resource_limit", "_pod_priority")


def _later(spec: JobSpec) -> list[Problem]:
    """What was asked for and is not part of this release yet."""
    found = []
    if spec.command in NOT_BUILT:
        found.append(_not_yet(f"elasticdl {spec.command}", "", NOT_BUILT[spec.command], "Use elasticdl train."))
    for name, value in spec.given().items():
        knob = knobs()[name]
        feature = knob.feature_missing(value)
        if name == "job_command" and strategy_of(spec).programs:
            continue
        if feature is not None:
            found.append(_not_yet(knob.flag, knob.spell(value), feature, knob.remedy or "Leave it out."))
    return found


def _not_yet(where: str, value: str, feature: str, remedy: str) -> Problem:
    return Problem(where, value, f"{feature} is not part of this release yet", remedy)
