"""Checks that look at several knobs of a job together."""

from __future__ import annotations

from collections.abc import Iterator

from elasticdl.errors import Problem
from elasticdl.job import names
from elasticdl.job.resources import ResourceSpec
from elasticdl.job.spec import JobSpec, knobs

RESERVED_ENVS = (names.ENV_MASTER_ADDR, names.ENV_WORKER_ID, names.ENV_WORKER_NUM, names.ENV_POD_IP)

# The knobs that a check looked at, and what it found: nothing is reported when one of them was already refused.
Finding = tuple[tuple[str, ...], Problem]


def findings(spec: JobSpec) -> Iterator[Finding]:
    """Everything about this job that does not fit together."""
    for check in (_model_and_data, _strategy, _servers, _workers, _own_program, _cluster, _resources):
        yield from check(spec)


def roles(spec: JobSpec) -> tuple[names.Role, ...]:
    """The roles that this job has replicas of."""
    found: list[names.Role] = [names.MASTER, names.WORKER]
    if spec.distribution_strategy in ("ParameterServerStrategy", "Local") or spec.num_ps_pods:
        found.append(names.PS)
    if spec.need_tf_config:
        found.append(names.CHIEF)
    if spec.num_evaluators:
        found.append(names.EVALUATOR)
    return tuple(found)


def _about(spec: JobSpec, name: str, *others: str, what: str, remedy: str) -> Finding:
    knob = knobs()[name]
    return (name, *others), Problem(knob.flag, knob.spell(getattr(spec, name)), what, remedy)


def _model_and_data(spec: JobSpec) -> Iterator[Finding]:
    own_program = spec.job_command is not None or spec.distribution_strategy == "CustomStrategy"
    if not own_program:
        if spec.model_def is None and spec.model_file is None:
            what, remedy = "needed: it names the model", "Give folder.file.symbol below --model_zoo."
            yield _about(spec, "model_def", "model_file", "job_command", what=what, remedy=remedy)
        data = {"train": "training_data", "evaluate": "validation_data", "predict": "prediction_data"}[spec.command]
        if getattr(spec, data) is None and spec.master_addr is None:  # a worker by hand hears of its data
            what, remedy = f"needed to {spec.command}", "Give the folder with the records."
            yield _about(spec, data, "job_command", what=what, remedy=remedy)
    if spec.command != "train" and spec.checkpoint_dir_for_init is None:
        what = f"needed to {spec.command}: it holds the trained model"
        yield _about(spec, "checkpoint_dir_for_init", what=what, remedy="Give the folder of a checkpoint.")
    if spec.model_def is not None and spec.model_file is not None:
        what = "names a model, as does --model_def"
        yield _about(spec, "model_file", "model_def", what=what, remedy="Keep one of the two.")
    if spec.records_per_task is not None and spec.num_minibatches_per_task != 8:
        what = "gives the size of a shard, as does --num_minibatches_per_task"
        yield _about(spec, "records_per_task", "num_minibatches_per_task", what=what, remedy="Keep one of the two.")
    if spec.evaluation_steps and spec.validation_data is None and spec.job_command is None:
        what, remedy = "asks for evaluation, but there is no data for it", "Give --validation_data as well."
        yield _about(spec, "evaluation_steps", "validation_data", what=what, remedy=remedy)


def _strategy(spec: JobSpec) -> Iterator[Finding]:
    if spec.distribution_strategy == "AllreduceStrategy" and spec.num_ps_pods:
        what = "asks for parameter servers, which all-reduce does not have"
        remedy = "Leave it out, or use --distribution_strategy=ParameterServerStrategy."
        yield _about(spec, "num_ps_pods", "distribution_strategy", what=what, remedy=remedy)
    if spec.distribution_strategy == "CustomStrategy" and spec.job_command is None:
        what, remedy = "needs a program of your own", 'Give --job_command="python -m my.program".'
        yield _about(spec, "distribution_strategy", "job_command", what=what, remedy=remedy)


def _servers(spec: JobSpec) -> Iterator[Finding]:
    synchronous = [n for n in ("grads_to_wait", "sync_version_tolerance") if getattr(spec, n) != knobs()[n].default]
    for name in synchronous if spec.use_async else ():
        what = "for synchronous training, but --use_async is true"
        yield _about(spec, name, "use_async", what=what, remedy="Keep one of the two.")
    for name in () if spec.asynchronous else ("lr_staleness_modulation", "get_model_steps"):
        if getattr(spec, name) != knobs()[name].default:
            what = "for asynchronous training, but this job is synchronous"
            remedy = "Leave it out, or leave out what makes the job synchronous."
            yield _about(spec, name, "use_async", *synchronous, what=what, remedy=remedy)


def _workers(spec: JobSpec) -> Iterator[Finding]:
    low, high, parts, count = spec.min_workers, spec.max_workers, spec.virtual_workers, spec.num_workers
    if low is not None and low > count:
        what, remedy = f"above --num_workers={count}", f"Give at most {count}."
        yield _about(spec, "min_workers", "num_workers", what=what, remedy=remedy)
    if high is not None and high < count:
        what, remedy = f"below --num_workers={count}", f"Give at least {count}."
        yield _about(spec, "max_workers", "num_workers", what=what, remedy=remedy)
    most = max(count, high or 0)
    if parts is not None and parts < most and spec.batch_policy == "fixed":
        what, remedy = f"below the {most} workers that the job may have", f"Give {most} or more."
        yield _about(spec, "virtual_workers", "num_workers", "max_workers", what=what, remedy=remedy)
    if parts is not None and parts & (parts - 1):
        near = 1 << parts.bit_length()
        yield _about(spec, "virtual_workers", what="not a power of two", remedy=f"Give {near // 2} or {near}.")
    for name, value in spec.envs.items():
        if name in RESERVED_ENVS or name.startswith("ELASTICDL_"):
            yield ("envs",), Problem("--envs", f"{name}={value}", "set by ElasticDL itself", f"Remove {name}.")


def _own_program(spec: JobSpec) -> Iterator[Finding]:
    if spec.job_command is not None and spec.model_def is not None:
        what = "not used when --job_command runs its own program"
        yield _about(spec, "model_def", "job_command", what=what, remedy="Keep one of the two.")
    for count, data in (("training_records", "training_data"), ("validation_records", "validation_data")):
        if not getattr(spec, count):
            continue
        if spec.job_command is None:
            what = "for a program of your own, which reads the records itself"
            yield _about(spec, count, "job_command", what=what, remedy=f"Give --job_command, or --{data} instead.")
        elif getattr(spec, data) is not None:
            what = f"says how many records there are, as does --{data}"
            yield _about(spec, count, data, what=what, remedy="Keep one of the two.")
    by_allreduce = spec.job_command is not None and spec.distribution_strategy == "AllreduceStrategy"
    if by_allreduce and not spec.training_records and spec.training_data is None:
        what = "needs to know how many records there are"
        remedy = "Give --training_records=60000, or --training_data."
        yield _about(spec, "job_command", "training_records", "training_data", what=what, remedy=remedy)
    if spec.need_tf_config and spec.job_command is None:
        what, remedy = "for a program of your own", "Give --job_command as well, or leave it out."
        yield _about(spec, "need_tf_config", "job_command", what=what, remedy=remedy)


def _cluster(spec: JobSpec) -> Iterator[Finding]:
    on_kubernetes = spec.runtime == "kubernetes" or (spec.runtime is None and (spec.worker_image or spec.ps_image))
    if on_kubernetes and spec.image_name is None:
        what, remedy = "needed on Kubernetes: the master runs in it", "Give an image's name."
        yield _about(spec, "image_name", "worker_image", "ps_image", "runtime", what=what, remedy=remedy)
    if spec.yaml is not None and (spec.runtime == "local" or not (on_kubernetes or spec.image_name)):
        what = "writes a job's Kubernetes objects, but this one runs as processes on this machine"
        remedy = "Give --image_name without --runtime=local, or use --dry_run to see the resolved job."
        yield _about(spec, "yaml", "image_name", "runtime", what=what, remedy=remedy)
    if spec.cluster_spec is not None and spec.cluster_spec_json is not None:
        what = "adjusts pods, as does --cluster_spec"
        yield _about(spec, "cluster_spec_json", "cluster_spec", what=what, remedy="Keep one of the two.")


def _resources(spec: JobSpec) -> Iterator[Finding]:
    for role in names.ROLES:
        request, limit = f"{role}_resource_request", f"{role}_resource_limit"
        low, high = spec.request(role), spec.limit(role)
        if high is None or low == knobs()[request].default:  # a default request gives way to the limit
            continue
        for name, amount in low.amounts().items():
            if amount > high.amounts().get(name, amount):
                allowed, asked = (ResourceSpec.parse({name: a}) for a in (high.amounts()[name], amount))
                what = f"allows {allowed}, less than the {asked} of --{request}"
                yield _about(spec, limit, request, what=what, remedy="Raise the limit or lower the request.")
