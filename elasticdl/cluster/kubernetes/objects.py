"""The objects of a job in a cluster, built from its description. Pure functions.

The ConfigMap owns all of them: deleting it removes the job. Its uid is known only after its creation, so objects built
here name no owner; `owned` adds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from elasticdl.cluster.kubernetes import overlay
from elasticdl.cluster.kubernetes.pods import PodMaker
from elasticdl.cluster.kubernetes.reading import Object, Pod
from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.job import names
from elasticdl.job.spec import JobSpec

USER = 1000  # of the processes in pods, where possible
JOB_FILE = str(PurePosixPath(names.CONFIG_DIR) / names.JOB_KEY)
OVERLAY_FILE = str(PurePosixPath(names.CONFIG_DIR) / names.OVERLAY_KEY)


@dataclass(frozen=True)
class JobObjects:
    """The objects that the submission creates; the master creates the rest."""

    config_map: Object
    secret: Object
    service: Object
    network_policy: Object
    master: Pod
    keeper: Pod

    def all(self) -> list[Object]:
        """In the order of creation: the owner of the others first, the pods last."""
        return [self.config_map, self.secret, self.service, self.network_policy, self.master, self.keeper]


def job_objects(spec: JobSpec, secrets: Mapping[str, str]) -> JobObjects:
    """The objects of a resolved job. `secrets`: values of `pods.SECRET_ENV`."""
    maker, job, files = pod_maker(spec), str(spec.job_name), {}
    master, keeper = maker(_master(spec, secrets)), _elsewhere(maker(_keeper(spec)), job)
    if spec.cluster_spec is not None:  # the user's file becomes part of the job
        files[names.OVERLAY_KEY] = Path(spec.cluster_spec).read_text(encoding="utf-8")
    inside = spec.with_values(cluster_spec=OVERLAY_FILE) if files else spec
    files[names.JOB_KEY] = inside.to_json()
    files[names.MASTER_KEY], files[names.KEEPER_KEY] = (json.dumps(pod, indent=1) for pod in (master, keeper))
    port = {"name": "control", "port": names.MASTER_PORT, "targetPort": names.MASTER_PORT}
    service = {
        "selector": names.labels(job, names.MASTER),
        "ports": [port],
        "publishNotReadyAddresses": True,  # the master has no probe: clients retry until it answers
    }
    ours = {"podSelector": {"matchLabels": names.labels(job)}}
    policy = {**ours, "policyTypes": ["Ingress"], "ingress": [{"from": [ours]}]}
    config = _object(spec, "v1", "ConfigMap", names.config_name(job), data=files)
    if spec.cluster_spec is not None:  # for submitting the job again
        config["metadata"]["annotations"] = {names.ANNOTATION_OVERLAY: str(Path(spec.cluster_spec).absolute())}
    return JobObjects(
        config,
        _object(spec, "v1", "Secret", names.config_name(job), type="Opaque", stringData=dict(secrets)),
        _object(spec, "v1", "Service", names.service_name(job), spec=service),
        _object(spec, "networking.k8s.io/v1", "NetworkPolicy", names.config_name(job), spec=policy),
        master,
        keeper,
    )


def pod_maker(spec: JobSpec, uid: str | None = None) -> PodMaker:
    """Builds the pods of a resolved job, the master's and the replicas'; `uid`: of its ConfigMap, if it exists."""
    name = names.config_name(str(spec.job_name))
    # A kubelet does not change the owner of a directory of its node; with one, the image's own user applies.
    on_node = any(volume.host_path is not None for volume in spec.volume)
    return PodMaker(
        spec,
        owner=None if uid is None else owner(str(spec.job_name), uid),
        secret=name,
        config=name,
        service_account=names.SERVICE_ACCOUNT,
        run_as=None if on_node else USER,
        overlay=None if spec.cluster_spec is None else overlay.load(Path(spec.cluster_spec)),
    )


def owner(job_name: str, uid: str) -> Object:
    """The owner reference of the job's objects. `kubectl drain` evicts a pod with a controller without --force."""
    name = names.config_name(job_name)
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "controller": True}


def owned(thing: Object, by: Mapping[str, str]) -> Object:
    """The object with this owner."""
    return {**thing, "metadata": {**thing["metadata"], "ownerReferences": [dict(by)]}}


def _object(job: JobSpec, version: str, kind: str, name: str, **content: Any) -> Object:
    meta = {"name": name, "namespace": job.namespace, "labels": names.labels(str(job.job_name))}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **content}


def _master(spec: JobSpec, secrets: Mapping[str, str]) -> ReplicaRequest:
    name = names.replica_name(str(spec.job_name), names.MASTER)
    env = {
        **spec.envs,
        names.ENV_JOB_FILE: JOB_FILE,
        names.ENV_REPLICA: name,
        names.ENV_MASTER_ADDR: names.master_address(str(spec.job_name), str(spec.namespace)),
        **secrets,
    }
    return ReplicaRequest(name, names.MASTER, 0, ("python", "-m", "elasticdl.master"), env)


def _elsewhere(keeper: Pod, job: str) -> Pod:
    """Prefer another node than the master's: a lost node then takes only one of the two."""
    term = {"labelSelector": {"matchLabels": names.labels(job, names.MASTER)}, "topologyKey": "kubernetes.io/hostname"}
    wish = {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]
        }
    }
    return keeper if "affinity" in keeper["spec"] else {**keeper, "spec": {**keeper["spec"], "affinity": wish}}


def _keeper(spec: JobSpec) -> ReplicaRequest:
    name = names.keeper_name(str(spec.job_name))
    command = ("python", "-m", "elasticdl.cluster.kubernetes.keeper", str(spec.job_name), str(spec.namespace))
    return ReplicaRequest(name, names.KEEPER, 0, command, {**spec.envs, names.ENV_REPLICA: name})
