"""Checks and defaults of a job that trains by elastic all-reduce."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elasticdl.core.steps import default_virtual_workers
from elasticdl.job.knob import Knob
from elasticdl.job.knobs.allreduce import AllreduceKnobs
from elasticdl.job.spec import JobSpec
from elasticdl.job.strategy import Finding, Strategy, about


class Allreduce(Strategy):
    groups = (AllreduceKnobs.title,)
    programs = True
    irreplaceable = "its master's pod or all workers' pods"

    def findings(self, spec: JobSpec) -> Iterable[Finding]:
        if spec.num_ps_pods:
            what = "asks for parameter servers, which all-reduce does not have"
            remedy = "Leave it out, or use --distribution_strategy=ParameterServerStrategy."
            yield about(spec, "num_ps_pods", "distribution_strategy", what=what, remedy=remedy)
        if spec.job_command is not None and not spec.training_records and spec.training_data is None:
            what = "needs to know how many records there are"
            remedy = "Give --training_records=60000, or --training_data."
            yield about(spec, "job_command", "training_records", "training_data", what=what, remedy=remedy)

    def idle(self, spec: JobSpec, knob: Knob) -> str | None:
        if knob.name == "lr_scaling" and spec.batch_policy == "fixed":
            return "the batch does not follow the number of workers (--batch_policy=fixed)"
        if knob.name == "virtual_workers" and spec.batch_policy == "per_worker":
            return "each worker computes its records of a step in one part (--batch_policy=per_worker)"
        return None

    def fill_in(self, spec: JobSpec, values: dict[str, Any], decisions: list[str], notes: list[str]) -> None:
        if spec.batch_policy == "fixed" and spec.virtual_workers is None:
            values["virtual_workers"] = default_virtual_workers(spec.num_workers, spec.max_workers)
        if spec.command == "train":
            decisions.append(f"Training is {self.mode(spec.with_values(**values))}.")

    def fill_in_for_a_cluster(
        self, spec: JobSpec, values: dict[str, Any], decisions: list[str], warnings: list[str]
    ) -> None:
        decisions.append(
            "All traffic with the master is encrypted. Gradients between workers are not encrypted: a NetworkPolicy "
            "keeps other pods away from them, where the cluster enforces it."
        )

    def mode(self, spec: JobSpec) -> str:
        """For example `all-reduce (a step is 256 records in 8 parts, added in one fixed order)`."""
        order = "added in one fixed order" if spec.deterministic else "added in any order"
        batch = spec.minibatch_size * spec.num_workers
        if spec.batch_policy == "per_worker":
            rate = {"none": "stays", "linear": "follows", "sqrt": "follows by its square root"}[spec.lr_scaling]
            return f"all-reduce (a step is {spec.minibatch_size} records per worker, the learning rate {rate}, {order})"
        return f"all-reduce (a step is {batch} records in {spec.virtual_workers} parts, {order})"


STRATEGY = Allreduce()
