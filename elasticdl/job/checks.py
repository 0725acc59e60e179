"""Checks that look at several knobs of a job together."""

from __future__ import annotations

from collections.abc import Iterator

from elasticdl.errors import Problem
from elasticdl.job import names
from elasticdl.job.resources import ResourceSpec
from elasticdl.job.spec import JobSpec, knobs
from elasticdl.job.strategy import Finding, about, strategy_of

RESERVED_ENVS = (names.ENV_MASTER_ADDR, names.ENV_WORKER_ID, names.ENV_WORKER_NUM, names.ENV_POD_IP)


def findings(spec: JobSpec) -> Iterator[Finding]:
    """Everything about this job that does not fit together."""
    for check in (_model_and_data, strategy_of(spec).check, _servers, _workers, _own_program, _cluster, _resources):
        yield from check(spec)


def _model_and_data(spec: JobSpec) -> Iterator[Finding]:
    asks = spec.master_addr is not None and not spec.workers_by_hand  # a worker started by hand asks its master
    if strategy_of(spec).needs_model(spec) and not asks:
        if spec.model_def is None and spec.model_file is None:
            what, remedy = "needed: it names the model", "Give folder.file.symbol below --model_zoo."
            yield about(spec, "model_def", "model_file", "job_command", what=what, remedy=remedy)
        data = {"train": "training_data", "evaluate": "validation_data", "predict": "prediction_data"}[spec.command]
        if getattr(spec, data) is None:
            what, remedy = f"needed to {spec.command}", "Give the folder with the records."
            yield about(spec, data, "job_command", what=what, remedy=remedy)
    if spec.command != "train" and spec.checkpoint_dir_for_init is None:
        what = f"needed to {spec.command}: it holds the trained model"
        yield about(spec, "checkpoint_dir_for_init", what=what, remedy="Give the folder of a checkpoint.")
    if spec.model_def is not None and spec.model_file is not None:
        what = "names a model, as does --model_def"
        yield about(spec, "model_file", "model_def", what=what, remedy="Keep one of the two.")
    if spec.records_per_task is not None and spec.num_minibatches_per_task != 8:
        what = "gives the size of a shard, as does --num_minibatches_per_task"
        yield about(spec, "records_per_task", "num_minibatches_per_task", what=what, remedy="Keep one of the two.")
    if spec.evaluation_steps and spec.validation_data is None and spec.job_command is None:
        what, remedy = "asks for evaluation, but there is no data for it", "Give --validation_data as well."
        yield about(spec, "evaluation_steps", "validation_data", what=what, remedy=remedy)


def _servers(spec: JobSpec) -> Iterator[Finding]:
    synchronous = [n for n in ("grads_to_wait", "sync_version_tolerance") if getattr(spec, n) != knobs()[n].default]
    for name in synchronous if spec.use_async else ():
        what = "for synchronous training, but --use_async is true"
        yield about(spec, name, "use_async", what=what, remedy="Keep one of the two.")
    for name in () if spec.asynchronous else ("lr_staleness_modulation", "get_model_steps"):
        if getattr(spec, name) != knobs()[name].default:
            what = "for asynchronous training, but this job is synchronous"
            remedy = "Leave it out, or leave out what makes the job synchronous."
            yield about(spec, name, "use_async", *synchronous, what=what, remedy=remedy)


def _workers(spec: JobSpec) -> Iterator[Finding]:
    low, high, parts, count = spec.min_workers, spec.max_workers, spec.virtual_workers, spec.num_workers
    if low is not None and low > count:
        what, remedy = f"above --num_workers={count}", f"Give at most {count}."
        yield about(spec, "min_workers", "num_workers", what=what, remedy=remedy)
    if high is not None and high < count:
        what, remedy = f"below --num_workers={count}", f"Give at least {count}."
        yield about(spec, "max_workers", "num_workers", what=what, remedy=remedy)
    most = max(count, high or 0)
    if parts is not None and parts < most and spec.batch_policy == "fixed":
        what, remedy = f"below the {most} workers that the job may have", f"Give {most} or more."
        yield about(spec, "virtual_workers", "num_workers", "max_workers", what=what, remedy=remedy)
    if parts is not None and parts & (parts - 1):
        near = 1 << parts.bit_length()
        yield about(spec, "virtual_workers", what="not a power of two", remedy=f"Give {near // 2} or {near}.")
    for name, value in spec.envs.items():
        if name in RESERVED_ENVS or name.startswith("ELASTICDL_"):
            yield ("envs",), Problem("--envs", f"{name}={value}", "set by ElasticDL itself", f"Remove {name}.")


def _own_program(spec: JobSpec) -> Iterator[Finding]:
    if spec.job_command is not None and spec.model_def is not None:
        what = "not used when --job_command runs its own program"
        yield about(spec, "model_def", "job_command", what=what, remedy="Keep one of the two.")
    for count, data in (("training_records", "training_data"), ("validation_records", "validation_data")):
        if not getattr(spec, count):
            continue
        if spec.job_command is None:
            what = "for a program of your own, which reads the records itself"
            yield about(spec, count, "job_command", what=what, remedy=f"Give --job_command, or --{data} instead.")
        elif getattr(spec, data) is not None:
            what = f"says how many records there are, as does --{data}"
            yield about(spec, count, data, what=what, remedy="Keep one of the two.")
    if spec.need_tf_config and spec.job_command is None:
        what, remedy = "for a program of your own", "Give --job_command as well, or leave it out."
        yield about(spec, "need_tf_config", "job_command", what=what, remedy=remedy)


def _cluster(spec: JobSpec) -> Iterator[Finding]:
    on_kubernetes = spec.runtime == "kubernetes" or (spec.runtime is None and (spec.worker_image or spec.ps_image))
    if on_kubernetes and spec.image_name is None:
        what, remedy = "needed on Kubernetes: the master runs in it", "Give an image's name."
        yield about(spec, "image_name", "worker_image", "ps_image", "runtime", what=what, remedy=remedy)
    if spec.yaml is not None and (spec.runtime == "local" or not (on_kubernetes or spec.image_name)):
        what = "writes a job's Kubernetes objects, but this one runs as processes on this machine"
        remedy = "Give --image_name without --runtime=local, or use --dry_run to see the resolved job."
        yield about(spec, "yaml", "image_name", "runtime", what=what, remedy=remedy)
    if spec.cluster_spec is not None and spec.cluster_spec_json is not None:
        what = "adjusts pods, as does --cluster_spec"
        yield about(spec, "cluster_spec_json", "cluster_spec", what=what, remedy="Keep one of the two.")


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
                yield about(spec, limit, request, what=what, remedy="Raise the limit or lower the request.")
