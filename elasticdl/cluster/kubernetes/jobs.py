"""The jobs of a cluster, read from its objects: which exist, their state, and what delays them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from elasticdl.cluster.kubernetes.api import SHORT_WATCH_SECONDS, ApiRefused, KubernetesApi, Pauses, labelled, named
from elasticdl.cluster.kubernetes.reading import Object, Pod, exit_of, last_words, phase_of
from elasticdl.cluster.kubernetes.submission import folder
from elasticdl.cluster.kubernetes.troubles import Trouble, by_pod, grouped, trouble_of, trouble_of_lost
from elasticdl.cluster.protocol import NOT_STARTED, OUT_OF_MEMORY, ReplicaPhase
from elasticdl.errors import Refused, Unreachable, WireError
from elasticdl.job import names
from elasticdl.job.outcome import Outcome

State = Literal["pending", "running", "succeeded", "stopped", "failed", "died"]
_REMOVAL_SECONDS = 120.0  # of pods whose kubelets are alive
_WATCH_SECONDS = 30.0  # between two full reads, without a change of the master's pod
_OUTAGE_SECONDS = 120.0  # of the API server, until waiting for a job's end fails
_TIDYING_SECONDS = 10.0  # until a job's objects are gone, once its result is known
_SUBMISSION_SECONDS = 30.0  # from a job's ConfigMap, which is created first, to its pods
_OURS = labelled({names.LABEL_APP: names.APP})


@dataclass(frozen=True)
class ClusterJob:
    """One job of a namespace, as it was when it was read."""

    namespace: str
    name: str
    config: Object | None = None  # its ConfigMap, which is removed when it ends
    pods: tuple[Pod, ...] = ()
    events: Mapping[str, list[Object]] = field(default_factory=dict, repr=False)  # warnings, by a pod's uid

    @property
    def master(self) -> Pod | None:
        return next((pod for pod in self.pods if _role(pod) == names.MASTER), None)

    @property
    def running(self) -> bool:
        return self.state in ("pending", "running")

    @property
    def state(self) -> State:
        """Pending while its master is; then running, until there is a result or no process that could write one."""
        outcome = self.result.get("outcome")
        if outcome:
            return outcome if outcome in ("succeeded", "stopped") else "failed"
        master = self.master
        if master is not None and phase_of(master) is ReplicaPhase.PENDING:
            return "pending"
        if self._kept or (master is not None and phase_of(master) is ReplicaPhase.RUNNING):
            return "running"
        young = self.config is not None and time.time() - (self.started_at or 0.0) < _SUBMISSION_SECONDS
        return "pending" if young else "died"

    @property
    def never_ran(self) -> bool:
        """Whether no master could have started replicas yet."""
        again = self.master is not None and names.ANNOTATION_CRASHES in self.master["metadata"].get("annotations", {})
        only_kept = all(_role(pod) in (names.MASTER, names.KEEPER) for pod in self.pods)
        return self.state == "pending" and only_kept and not again  # the keeper marks each master that it creates

    @property
    def _kept(self) -> bool:
        """Whether a keeper exists that restarts a lost master."""
        keeper = next((pod for pod in self.pods if _role(pod) == names.KEEPER), None)
        return self.config is not None and keeper is not None and phase_of(keeper) is not ReplicaPhase.GONE

    @property
    def result(self) -> dict[str, Any]:
        """How it ended, from its master's annotation or else from its pod; empty while it runs."""
        master = self.master
        if master is None:
            return {} if self.config is not None else {"outcome": Outcome.STOPPED, "reason": "nothing of it is left"}
        written = _json(master["metadata"].get("annotations", {}).get(names.ANNOTATION_RESULT, ""))
        if written:
            return written
        if self.config is not None or phase_of(master) is not ReplicaPhase.GONE:
            return {}
        end = exit_of(master)
        if end.code == 0:
            return {"outcome": Outcome.SUCCEEDED, "reason": ""}
        reason = "\n".join(["its master ended: " + end.reason, *last_words(master)])
        return {"outcome": Outcome.FAILED, "reason": reason}

    @property
    def note(self) -> str:
        """Why it does not run normally, where its master cannot report this."""
        master = self.master
        if self.state == "died":
            return "its master is gone, and its keeper too"
        if master is None:
            return "its master is gone; its keeper restarts it" if self._kept else "it is being submitted"
        if phase_of(master) is ReplicaPhase.GONE:
            return f"its master ended ({exit_of(master).reason}); its keeper restarts it"
        trouble = trouble_of(master, self.name, self._events(master))
        if trouble is not None:
            return f"its master cannot start: {trouble.what}"
        return "its master is starting" if self.state == "pending" else ""

    @property
    def troubles(self) -> list[Trouble]:
        """What is wrong with its pods, the master's first; for a failed job, the cause. The master reports other ends
        of replicas itself."""
        result = self.result
        first = sorted(self.pods, key=lambda pod: _role(pod) != names.MASTER)
        found = [trouble_of(pod, self.name, self._events(pod)) for pod in first if _tells(pod, result)]
        lost = result.get("lost") if self.state == "failed" else None
        found.append(trouble_of_lost(lost, self.name) if isinstance(lost, dict) else None)
        return grouped(trouble for trouble in found if trouble is not None)

    @property
    def job_json(self) -> str | None:
        """The resolved JobSpec; None without the ConfigMap."""
        found: str | None = None if self.config is None else self.config.get("data", {}).get(names.JOB_KEY)
        return found

    @property
    def overlay_file(self) -> str | None:
        """The path of --cluster_spec where the job was submitted; the ConfigMap has the job's copy."""
        noted = {} if self.config is None else self.config["metadata"].get("annotations") or {}
        found: str | None = noted.get(names.ANNOTATION_OVERLAY)
        return found

    @property
    def started_at(self) -> float | None:
        of = self.config or self.master
        return None if of is None else _seconds(of["metadata"].get("creationTimestamp"))

    @property
    def ended_at(self) -> float | None:
        if self.running or self.master is None:
            return None
        for status in self.master.get("status", {}).get("containerStatuses", []):
            ended = (status.get("state", {}).get("terminated") or {}).get("finishedAt")
            if ended:
                return _seconds(ended)
        return None

    def _events(self, pod: Pod) -> list[Object]:
        return self.events.get(pod["metadata"]["uid"], [])


def read(configs: Iterable[Object], pods: Iterable[Pod], events: Iterable[Object] = ()) -> list[ClusterJob]:
    """The jobs of these objects, the newest first."""
    config_of: dict[tuple[str, str], Object] = {}
    pods_of: dict[tuple[str, str], list[Pod]] = {}
    for config in configs:
        if config["metadata"].get("labels", {}).get(names.LABEL_JOB):
            config_of[_key(config)] = config
    for pod in pods:
        if pod["metadata"].get("labels", {}).get(names.LABEL_JOB):
            pods_of.setdefault(_key(pod), []).append(pod)
    warnings = by_pod(events)
    found = []
    for key in dict.fromkeys([*config_of, *pods_of]):
        mine = tuple(sorted(pods_of.get(key, []), key=lambda pod: str(pod["metadata"]["name"])))
        job = ClusterJob(key[0], key[1], config_of.get(key), mine, warnings)
        if job.config is not None or job.master is not None:  # else leftovers that are being removed
            found.append(job)
    return sorted(found, key=lambda job: job.started_at or 0.0, reverse=True)


async def list_jobs(api: KubernetesApi, namespace: str | None, deadline_seconds: float = 10.0) -> list[ClusterJob]:
    """The jobs of one namespace, or of all."""
    return await _list(api, namespace, _OURS, deadline_seconds)


async def look(api: KubernetesApi, namespace: str, name: str, deadline_seconds: float = 10.0) -> ClusterJob:
    """The current state of a job. A job that does not exist has no ConfigMap and no pods."""
    found = await _list(api, namespace, labelled(names.labels(name)), deadline_seconds)
    return found[0] if found else ClusterJob(namespace, name)


async def _list(
    api: KubernetesApi, namespace: str | None, params: Mapping[str, str], deadline_seconds: float
) -> list[ClusterJob]:
    home = _home(namespace)

    async def items(kind: str, asked: Mapping[str, str]) -> list[Object]:
        answer = await api.call("GET", f"{home}/{kind}", params=asked, deadline_seconds=deadline_seconds)
        found: list[Object] = answer["items"]
        return found

    configs, pods = await asyncio.gather(items("configmaps", params), items("pods", params))
    events: list[Object] = []
    if any(phase_of(pod) is ReplicaPhase.PENDING for pod in pods):
        with contextlib.suppress(Refused):  # without this right, less is reported
            events = await items("events", {"fieldSelector": "involvedObject.kind=Pod,type=Warning"})
    return read(configs, pods, events)


async def ended(api: KubernetesApi, job: ClusterJob, deadline_seconds: float | None = None) -> bool:
    """Wait until the job has ended and, briefly, until its name is free. False if the deadline passes first."""
    try:
        async with asyncio.timeout(deadline_seconds):
            while (job := await look(api, job.namespace, job.name, _OUTAGE_SECONDS)).running:
                await _next_change(api, job)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TIDYING_SECONDS):
                    await _gone(api, job.namespace, "configmaps", names.config_name(job.name))
    except TimeoutError:
        return False
    return True


async def delete(api: KubernetesApi, job: ClusterJob) -> None:
    """Remove the job at once, with everything that its ConfigMap owns."""
    await api.remove(f"{folder('ConfigMap', job.namespace)}/{names.config_name(job.name)}")
    # Objects that `kubectl apply` created from `--yaml` have no owner. Without the right to delete, there are none.
    named = {"Secret": names.config_name, "Service": names.service_name, "NetworkPolicy": names.config_name}
    for kind, name in named.items():
        with contextlib.suppress(Refused):
            await api.remove(f"{folder(kind, job.namespace)}/{name(job.name)}")
    # The garbage collector would give pods their whole grace period. Delete first what would recreate other pods.
    order = {names.KEEPER: 0, names.MASTER: 1}
    for pod in sorted(job.pods, key=lambda pod: order.get(_role(pod), 2)):
        await api.remove(f"{folder('Pod', job.namespace)}/{pod['metadata']['name']}", grace_seconds=1)
    try:
        async with asyncio.timeout(_REMOVAL_SECONDS):
            for pod in job.pods:
                await _gone(api, job.namespace, "pods", pod["metadata"]["name"])
    except TimeoutError as error:
        what = f"pods of {job.name} still exist after {_REMOVAL_SECONDS:g} s; a node may be lost"
        raise Unreachable(f"{what}. kubectl delete pod --force --grace-period=0 removes them.") from error


async def secret(api: KubernetesApi, job: ClusterJob) -> dict[str, str]:
    """The job's token and keys, by the names of `names.ENV_*`."""
    path = f"{_home(job.namespace)}/secrets/{names.config_name(job.name)}"
    try:
        found = (await api.call("GET", path, deadline_seconds=10.0)).get("data") or {}
    except ApiRefused as refusal:
        if refusal.code == 404:
            raise Unreachable(f"the Secret of {job.name} does not exist") from refusal
        raise
    return {key: base64.b64decode(value).decode() for key, value in found.items()}


async def _next_change(api: KubernetesApi, job: ClusterJob) -> None:
    """Wait for a change of the master's pod, or for a while."""
    params = named(names.replica_name(job.name, names.MASTER))
    known = "" if job.master is None else str(job.master["metadata"]["resourceVersion"])
    loop = asyncio.get_running_loop()
    began = loop.time()
    with contextlib.suppress(WireError):
        watch = api.watch(f"{_home(job.namespace)}/pods", params, seconds=_WATCH_SECONDS)
        async with contextlib.aclosing(watch) as changes:
            async for kind, seen in changes:  # begins with the current pod
                if kind != "BOOKMARK" and str(seen["metadata"]["resourceVersion"]) != known:
                    return
        if loop.time() - began >= SHORT_WATCH_SECONDS:
            return
    await asyncio.sleep(1.0)  # between two attempts to watch


async def _gone(api: KubernetesApi, namespace: str, kind: str, name: str) -> None:
    """Wait until there is no such object."""
    path, only, pauses = f"{_home(namespace)}/{kind}", named(name), Pauses()
    while True:
        answer = await api.call("GET", path, params=only)
        if not answer["items"]:
            return
        params = {**only, "resourceVersion": answer["metadata"]["resourceVersion"]}
        with contextlib.suppress(WireError):
            async with contextlib.aclosing(api.watch(path, params, seconds=_WATCH_SECONDS)) as changes:
                async for change, _ in changes:
                    if change == "DELETED":
                        return
        await asyncio.sleep(pauses.next())


def _home(namespace: str | None) -> str:
    return "/api/v1" if namespace is None else f"/api/v1/namespaces/{namespace}"


def _key(item: Object) -> tuple[str, str]:
    return str(item["metadata"]["namespace"]), str(item["metadata"]["labels"][names.LABEL_JOB])


def _role(pod: Pod) -> str:
    return str(pod["metadata"].get("labels", {}).get(names.LABEL_TYPE, ""))


def _tells(pod: Pod, result: Mapping[str, Any]) -> bool:
    """Whether a pod tells more than its job does."""
    end = exit_of(pod) if phase_of(pod) is ReplicaPhase.GONE else None
    if _role(pod) == names.MASTER:  # no trouble if it wrote a result and ended accordingly
        return end is None or end.oom or end.code is None or end.code != result.get("exit_code")
    if result:  # it is removed with its job
        return False
    return end is None or end.kind in (OUT_OF_MEMORY, NOT_STARTED)


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:  # written by another version, or by hand
        return {}
    return found if isinstance(found, dict) else {}


def _seconds(text: str | None) -> float | None:
    return datetime.datetime.fromisoformat(text).timestamp() if text else None
