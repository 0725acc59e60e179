"""The jobs of a cluster as its objects tell of them: which there are, how they stand, and what holds them up."""

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
from elasticdl.cluster.kubernetes.troubles import Trouble, by_pod, grouped, trouble_in, trouble_of
from elasticdl.cluster.protocol import NOT_STARTED, OUT_OF_MEMORY, ReplicaPhase
from elasticdl.errors import Refused, Unreachable, WireError
from elasticdl.job import names

State = Literal["pending", "running", "succeeded", "stopped", "failed", "died"]
_REMOVAL_SECONDS = 120.0  # for pods whose kubelets are there
_WATCH_SECONDS = 30.0  # between two looks at everything, if nothing of the master's pod is heard meanwhile
_OUTAGE_SECONDS = 120.0  # of the API server, before whoever waits for a job's end gives up
_TIDYING_SECONDS = 10.0  # for a job's objects to go, once it says how it ended
_SUBMISSION_SECONDS = 30.0  # from a job's ConfigMap, which comes first, to its pods
_OURS = labelled({names.LABEL_APP: names.APP})


@dataclass(frozen=True)
class ClusterJob:
    """One job of a namespace, as it was when it was looked at."""

    namespace: str
    name: str
    config: Object | None = None  # its ConfigMap, which goes with its end
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
        """Pending while its master is; else running, until there is a result or nobody who could write one."""
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
        """Whether there never was a master that could have started replicas."""
        again = self.master is not None and names.ANNOTATION_CRASHES in self.master["metadata"].get("annotations", {})
        only_kept = all(_role(pod) in (names.MASTER, names.KEEPER) for pod in self.pods)
        return self.state == "pending" and only_kept and not again  # the keeper marks each master that it makes

    @property
    def _kept(self) -> bool:
        """Whether somebody is there who makes a lost master again."""
        keeper = next((pod for pod in self.pods if _role(pod) == names.KEEPER), None)
        return self.config is not None and keeper is not None and phase_of(keeper) is not ReplicaPhase.GONE

    @property
    def result(self) -> dict[str, Any]:
        """How it ended, as its master wrote it down, or else as its pod tells; empty while it runs."""
        master = self.master
        if master is None:
            return {} if self.config is not None else {"outcome": "stopped", "reason": "nothing of it is left"}
        written = _json(master["metadata"].get("annotations", {}).get(names.ANNOTATION_RESULT, ""))
        if written:
            return written
        if self.config is not None or phase_of(master) is not ReplicaPhase.GONE:
            return {}
        end = exit_of(master)
        if end.code == 0:
            return {"outcome": "succeeded", "reason": ""}
        return {"outcome": "failed", "reason": "\n".join(["its master ended: " + end.reason, *last_words(master)])}

    @property
    def note(self) -> str:
        """Why it does not run as it should, where its master cannot say so itself."""
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
        """What is wrong with its pods, its master's first; of a job that is over, what it failed of. What else ended
        replicas is the master's to tell about."""
        result = self.result
        first = sorted(self.pods, key=lambda pod: _role(pod) != names.MASTER)
        found = [trouble_of(pod, self.name, self._events(pod)) for pod in first if _tells(pod, result)]
        found.append(trouble_in(str(result.get("reason", "")), self.name) if self.state == "failed" else None)
        return grouped(trouble for trouble in found if trouble is not None)

    @property
    def job_json(self) -> str | None:
        """The resolved JobSpec; gone with the ConfigMap."""
        found: str | None = None if self.config is None else self.config.get("data", {}).get(names.JOB_KEY)
        return found

    @property
    def overlay_file(self) -> str | None:
        """The file of --cluster_spec where it was submitted; the job's own is in the ConfigMap."""
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
    """The jobs that these objects belong to, the newest first."""
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
        if job.config is not None or job.master is not None:  # else what is left of one, and about to go
            found.append(job)
    return sorted(found, key=lambda job: job.started_at or 0.0, reverse=True)


async def list_jobs(api: KubernetesApi, namespace: str | None, deadline_seconds: float = 10.0) -> list[ClusterJob]:
    """The jobs of a namespace, or of all."""
    return await _list(api, namespace, _OURS, deadline_seconds)


async def look(api: KubernetesApi, namespace: str, name: str, deadline_seconds: float = 10.0) -> ClusterJob:
    """The job as it is now. One that is not there has no ConfigMap and no pods."""
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
        with contextlib.suppress(Refused):  # who may not read events hears less
            events = await items("events", {"fieldSelector": "involvedObject.kind=Pod,type=Warning"})
    return read(configs, pods, events)


async def ended(api: KubernetesApi, job: ClusterJob, deadline_seconds: float | None = None) -> bool:
    """Wait until the job is over and, for a moment, until its name is free. False when the deadline came first."""
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
    """Remove the job and everything of it, at once: what the ConfigMap owns goes with it."""
    await api.remove(f"{folder('ConfigMap', job.namespace)}/{names.config_name(job.name)}")
    # What `kubectl apply` made of `--yaml` belongs to nobody. Who may not remove it could not have made it.
    named = {"Secret": names.config_name, "Service": names.service_name, "NetworkPolicy": names.config_name}
    for kind, name in named.items():
        with contextlib.suppress(Refused):
            await api.remove(f"{folder(kind, job.namespace)}/{name(job.name)}")
    # The garbage collector gives pods their whole grace; and who would make others again goes first.
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
    """What the job's processes know and nobody else: the token and keys, by the names of `names.ENV_*`."""
    path = f"{_home(job.namespace)}/secrets/{names.config_name(job.name)}"
    try:
        found = (await api.call("GET", path, deadline_seconds=10.0)).get("data") or {}
    except ApiRefused as refusal:
        if refusal.code == 404:
            raise Unreachable(f"the Secret of {job.name} does not exist") from refusal
        raise
    return {key: base64.b64decode(value).decode() for key, value in found.items()}


async def _next_change(api: KubernetesApi, job: ClusterJob) -> None:
    """Until something happens to the master's pod, or for a while."""
    params = named(names.replica_name(job.name, names.MASTER))
    known = "" if job.master is None else str(job.master["metadata"]["resourceVersion"])
    loop = asyncio.get_running_loop()
    began = loop.time()
    with contextlib.suppress(WireError):
        watch = api.watch(f"{_home(job.namespace)}/pods", params, seconds=_WATCH_SECONDS)
        async with contextlib.aclosing(watch) as changes:
            async for kind, seen in changes:  # begins with the pod as it is
                if kind != "BOOKMARK" and str(seen["metadata"]["resourceVersion"]) != known:
                    return
        if loop.time() - began >= SHORT_WATCH_SECONDS:
            return
    await asyncio.sleep(1.0)  # between two attempts to watch


async def _gone(api: KubernetesApi, namespace: str, kind: str, name: str) -> None:
    """Until there is no such object."""
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
    """Whether there is more to a pod than its job says itself."""
    end = exit_of(pod) if phase_of(pod) is ReplicaPhase.GONE else None
    if _role(pod) == names.MASTER:  # one that wrote a result, and ended as it says, did what it had to
        return end is None or end.oom or end.code is None or end.code != result.get("exit_code")
    if result:  # it goes with its job
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
