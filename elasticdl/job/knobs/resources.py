"""Knobs of the resources and priorities of each role."""

from __future__ import annotations

from typing import Any, ClassVar

from elasticdl.job.knob import KnobGroup, knob
from elasticdl.job.resources import OptionalResources, Resources, ResourceSpec, WorkerPriority
from elasticdl.job.values import DnsLabel

USUAL = ResourceSpec.parse("cpu=1,memory=4096Mi")
SMALL = ResourceSpec.parse("cpu=0.1,memory=1024Mi")
MASTER_LIMIT = ResourceSpec.parse("cpu=1,memory=2048Mi")  # it loads the model once, before it starts replicas
NO_SCHEDULER = "processes on this machine have no priority class"


def _request(role: str, default: ResourceSpec, limit_flag: str, common: bool = False) -> Any:
    return knob(
        default,
        f"The resources that {role} requests from Kubernetes.",
        common=common,
        local=f"it is a request to Kubernetes; {limit_flag} limits processes on this machine, too",
    )


def _limit(role: str, otherwise: str = "", common: bool = False) -> Any:
    what = f"The most that {role} may use; on Kubernetes the request by default{otherwise}."
    return knob(None, what, common=common)


def _priority(role: str) -> Any:
    return knob(None, f"The PriorityClass of {role}.", metavar="CLASS", local=NO_SCHEDULER)


class ResourcesKnobs(KnobGroup):
    title: ClassVar[str] = "Resources and priorities"

    master_resource_request: Resources = _request("the master", SMALL, "--master_resource_limit")
    master_resource_limit: OptionalResources = _limit("the master", f", or {MASTER_LIMIT} when neither is given")
    worker_resource_request: Resources = _request("a worker", USUAL, "--worker_resource_limit", common=True)
    worker_resource_limit: OptionalResources = _limit("a worker", common=True)
    ps_resource_request: Resources = _request("a parameter server", USUAL, "--ps_resource_limit")
    ps_resource_limit: OptionalResources = _limit("a parameter server")
    chief_resource_request: Resources = _request("an Estimator's chief", USUAL, "--chief_resource_limit")
    chief_resource_limit: OptionalResources = _limit("an Estimator's chief")
    evaluator_resource_request: Resources = _request("an evaluator", USUAL, "--evaluator_resource_limit")
    evaluator_resource_limit: OptionalResources = _limit("an evaluator")
    master_pod_priority: DnsLabel = _priority("the master")
    worker_pod_priority: WorkerPriority = knob(
        None,
        "The PriorityClass of the workers, or a share: 0.5 or high=0.5 makes half of them high and the rest low.",
        metavar="CLASS|SHARE",
        local=NO_SCHEDULER,
    )
    ps_pod_priority: DnsLabel = _priority("the parameter servers")
    chief_pod_priority: DnsLabel = _priority("an Estimator's chief")
    evaluator_pod_priority: DnsLabel = _priority("the evaluators")
