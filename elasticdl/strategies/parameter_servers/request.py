"""Checks and defaults of a job that trains on parameter servers."""

from __future__ import annotations

from typing import Any

from elasticdl.job import names
from elasticdl.job.spec import JobSpec, knobs
from elasticdl.job.strategy import Strategy


class ParameterServers(Strategy):
    always = (names.MASTER, names.WORKER, names.PS)
    by_hand = True
    irreplaceable = "its master's pod or a server's pod"

    def fill_in(self, spec: JobSpec, values: dict[str, Any], decisions: list[str], notes: list[str]) -> None:
        if spec.distribution_strategy == "Local":
            for name, what in (("num_workers", "worker"), ("num_ps_pods", "parameter server")):
                asked = getattr(spec, name)
                if asked not in (1, knobs()[name].default):
                    notes.append(f"--{name}={asked}: the Local strategy has one {what}")
                values[name] = 1
            decisions.append("One worker and one parameter server, as --distribution_strategy=Local says.")
        elif spec.num_ps_pods == 0:
            values["num_ps_pods"] = 1
            decisions.append("One parameter server, since --num_ps_pods is not given.")
        if spec.command == "train" and spec.job_command is None:
            values["use_async"] = spec.asynchronous
            decisions.append(f"Training is {self.mode(spec)}, {_why(spec)}.")

    def fill_in_for_a_cluster(
        self, spec: JobSpec, values: dict[str, Any], decisions: list[str], warnings: list[str]
    ) -> None:
        if spec.encrypt_data_plane is False:
            warnings.append(
                "--encrypt_data_plane=false: anyone on the network between workers and servers can read gradients."
            )
            return
        values["encrypt_data_plane"] = True
        decisions.append(
            "All traffic between workers, servers and the master is encrypted, with keys made for the job."
        )

    def mode(self, spec: JobSpec) -> str:
        """For example `synchronous (a step averages 4 batches)`."""
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


STRATEGY = ParameterServers()
