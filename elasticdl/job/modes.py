"""How gradients become versions of the model, in words: for the start of a job and for its status."""

from __future__ import annotations

from elasticdl.job.spec import JobSpec


def default_virtual_workers(num_workers: int, max_workers: int | None) -> int:
    """The power of two that is not below what the job may grow to, nor below twice what it starts with."""
    wanted = max(max_workers or 0, 2 * num_workers)
    return 1 << (wanted - 1).bit_length()


def described(spec: JobSpec) -> str:
    """As asked for: `synchronous (a step averages 4 batches), since --grads_to_wait=4 is above 1`."""
    return f"{mode(spec)}, {_why(spec)}"


def mode(spec: JobSpec) -> str:
    if spec.distribution_strategy == "AllreduceStrategy":
        order = "added in one fixed order" if spec.deterministic else "added in any order"
        batch = spec.minibatch_size * spec.num_workers
        if spec.batch_policy == "per_worker":
            rate = {"none": "stays", "linear": "follows", "sqrt": "follows by its square root"}[spec.lr_scaling]
            return f"all-reduce (a step is {spec.minibatch_size} records a worker, the learning rate {rate}, {order})"
        return f"all-reduce (a step is {batch} records in {spec.virtual_workers} parts, {order})"
    if not spec.asynchronous:
        batches = f"averages {spec.grads_to_wait} batches" if spec.grads_to_wait > 1 else "is one batch"
        late = spec.sync_version_tolerance
        allowed = f", computed at most {late} version{'s' if late > 1 else ''} before it" if late else ""
        return f"synchronous (a step {batches}{allowed})"
    more = []
    if spec.get_model_steps > 1:
        more.append(f"dense values are pulled every {spec.get_model_steps} steps")
    if spec.lr_staleness_modulation:
        more.append("the learning rate is divided by a gradient's age")
    return "asynchronous" + (f" ({'; '.join(more)})" if more else "")


def _why(spec: JobSpec) -> str:
    if spec.use_async is not None:
        return f"as --use_async={'true' if spec.use_async else 'false'} says"
    if spec.grads_to_wait > 1:
        return f"since --grads_to_wait={spec.grads_to_wait} is above 1"
    if spec.sync_version_tolerance is not None:
        return "since --sync_version_tolerance is given"
    return "since nothing asks for synchronous training"
