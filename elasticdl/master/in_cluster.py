"""The master in a pod: acquires the job's Lease, checks model and data, runs the job, writes the result on its pod."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elasticdl.cluster.checking import check
from elasticdl.cluster.kubernetes import credentials, objects
from elasticdl.cluster.kubernetes.api import ApiRefused, KubernetesApi, Pauses, named
from elasticdl.cluster.kubernetes.cluster import KubernetesCluster
from elasticdl.cluster.kubernetes.lease import Lease
from elasticdl.cluster.kubernetes.pods import folder_pod
from elasticdl.cluster.kubernetes.reading import Object, Pod, exit_of, last_words, phase_of
from elasticdl.cluster.kubernetes.submission import conclude
from elasticdl.cluster.protocol import Cluster, ReplicaPhase, ReplicaRequest
from elasticdl.errors import (
    JobFailed,
    Problem,
    Refused,
    SentAway,
    Unreachable,
    UsageError,
    VolumeAway,
    WireError,
)
from elasticdl.files import write_durably
from elasticdl.job import names, storage
from elasticdl.job.outcome import Outcome
from elasticdl.job.spec import JobSpec
from elasticdl.master import preflight, running
from elasticdl.master.master import Master, is_replica
from elasticdl.master.running import Result

log = logging.getLogger(__name__)

LISTENING = f"0.0.0.0:{names.MASTER_PORT}"
ENDED_BY_SIGTERM = 128 + signal.SIGTERM
STAY_SECONDS = (3.0, 12.0)  # at least and then at most after SIGTERM: the keeper stays longer
KEEPER_SECONDS = 60.0  # before a refused keeper is requested again
SOON_SECONDS = (1.0, 60.0)  # first and longest pause before a keeper is made again, if the last one ended soon
CLAIM_SECONDS = 60.0  # for the previous master to unlock the checkpoints
CLEAR_SECONDS = 120.0  # for replicas of an earlier life of the job to end
FOLDER_SECONDS = 120.0  # for the pod that makes the job's folder, on this master's node
TELL_SECONDS = 300.0  # how long to try to write the result to the API server
RESULT_BYTES = 64 << 10  # of an annotation; all of a pod's annotations may have 256 KiB


@dataclass(frozen=True)
class Place:
    """Where this master is: its job's namespace, ConfigMap and state, and its own pod."""

    spec: JobSpec
    api: KubernetesApi
    owner: Object
    pod: Pod

    @property
    def home(self) -> str:
        return f"/api/v1/namespaces/{self.spec.namespace}"

    @property
    def paths(self) -> names.JobPaths:
        return paths_of(self.spec, self.owner["uid"])


def paths_of(spec: JobSpec, uid: str) -> names.JobPaths:
    """A folder for each submission, by its ConfigMap: a later job of this name must not find this job's journal."""
    return names.JobPaths(Path(str(spec.state_dir)), f"{spec.namespace}-{uid}")


async def run(spec: JobSpec, replica: str) -> int:
    """The whole life of the pod; its exit code: 0 succeeded or stopped, 1 failed, 2 could not start, 143 SIGTERM."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    api = KubernetesApi(credentials.find())
    try:
        return await _lead(await _find(api, spec, replica))
    except (asyncio.CancelledError, SentAway):
        log.info("Received SIGTERM; the next master continues the job")
        return ENDED_BY_SIGTERM
    except (Unreachable, VolumeAway) as error:  # the cluster's trouble, not this master's: it counts as no crash
        log.error("%s; the next master continues the job", error)
        return ENDED_BY_SIGTERM
    finally:
        await api.close()


async def _find(api: KubernetesApi, spec: JobSpec, replica: str) -> Place:
    home = f"/api/v1/namespaces/{spec.namespace}"
    config = names.config_name(str(spec.job_name))
    try:
        uid = (await api.call("GET", f"{home}/configmaps/{config}"))["metadata"]["uid"]
        pod = await api.call("GET", f"{home}/pods/{replica}")
    except ApiRefused as refusal:
        if refusal.code != 404:
            raise
        raise JobFailed(f"the job was deleted: {refusal}") from refusal
    return Place(spec, api, objects.owner(str(spec.job_name), uid), pod)


async def _lead(place: Place) -> int:
    """With the Lease in hand; ends as soon as it is lost."""
    spec, paths = place.spec, place.paths
    holder = place.pod["metadata"]["uid"]
    lease = Lease(place.api, str(spec.namespace), str(spec.job_name), holder, place.owner)
    await lease.acquire()
    keeping = asyncio.create_task(lease.keep())
    leading = asyncio.create_task(_to_the_end(place))
    try:
        await asyncio.wait({keeping, leading}, return_when=asyncio.FIRST_COMPLETED)
        if not leading.done():
            keeping.result()  # it raises
        result = leading.result()
        if paths.root.is_dir():
            running.conclude(paths, result)
        code = int(result.get("exit_code", 1)) if result["outcome"] == Outcome.FAILED else 0
        if not await _tell(place, {**result, "exit_code": code}):
            return code
        if result["outcome"] == Outcome.SUCCEEDED and not any(paths.checkpoint.glob("version-*")):
            shutil.rmtree(paths.root, ignore_errors=True)  # a volume must not fill up with jobs that are done
        keeping.cancel()  # or it would make the lease again, which is deleted now
        await _clear_away(place)
        return code
    finally:
        for task in (leading, keeping):
            task.cancel()
        await asyncio.wait({leading, keeping})
        await lease.release()


async def _to_the_end(place: Place) -> Result:
    paths = place.paths
    try:
        await _make_home(place)
        if paths.result.exists():  # the previous master could not report it
            found: Result = json.loads(paths.result.read_bytes())
            return found
        with contextlib.ExitStack() as held:
            spec = await _ready(place.spec, paths, held)
            maker = objects.pod_maker(spec, place.owner["uid"])
            api = KubernetesApi(place.api.credentials)  # one that it may close
            make = _making(maker, place.owner)
            cluster = KubernetesCluster(api, str(spec.namespace), str(spec.job_name), make)
            reviving = asyncio.create_task(_keep_keeper(cluster, str(spec.job_name)))
            try:
                if not paths.journal.exists():
                    await _clear(cluster)
                return await running.run(spec, paths, cluster, LISTENING, _sent_away)
            finally:
                reviving.cancel()
                await asyncio.wait({reviving})
    except UsageError as error:
        for problem in error.problems:
            log.error("%s", problem)
        return {"outcome": Outcome.FAILED, "reason": str(error), "status": {}, "exit_code": error.exit_code}


async def _sent_away(master: Master, stay_seconds: tuple[float, float] = STAY_SECONDS) -> None:
    """Ends when this master has to leave.

    Replicas may have received SIGTERM as well, as when a node is drained. Those that hold the model need a master to
    save it; it launches no replicas meanwhile.
    """
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()
    log.info("Received SIGTERM; saving replicas that are also terminating first")
    master.going = True
    least, most = stay_seconds
    await asyncio.sleep(least)  # kubelets do not send all signals at the same moment
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(master.until(lambda job: not job.parting), most)


async def _clear(cluster: KubernetesCluster) -> None:
    """End the replicas of a master whose journal is lost with its pod: the job starts again without them."""
    alive = {s.name for s in await cluster.list() if is_replica(s) and s.phase is not ReplicaPhase.GONE}
    if not alive:
        return
    log.warning("The journal and the trained state are lost; restarting the job without %s", ", ".join(sorted(alive)))
    for name in alive:
        await cluster.kill(name)
    try:
        async with asyncio.timeout(CLEAR_SECONDS), contextlib.aclosing(cluster.events()) as seen:
            async for status in seen:
                if status.phase is ReplicaPhase.GONE:
                    alive.discard(status.name)
                if not alive:
                    return
    except TimeoutError as error:
        raise Unreachable(f"{', '.join(sorted(alive))} still running after {CLEAR_SECONDS:g} s") from error


async def _make_home(place: Place) -> None:
    """Make the job's folder. On a claim that stays root's, as NFS does, a pod that is root for a moment makes it."""
    try:
        make_home(place.spec, place.paths)
    except UsageError as error:
        (problem,), denied = error.problems, isinstance(error.__cause__, PermissionError)
        chosen = storage.volume_of_choice(place.spec)
        if denied and chosen is not None and chosen.claim_name is not None:
            log.info("%s; starting a root pod to create it", problem.what)
            said = await _folder_by_root(place)
            with contextlib.suppress(UsageError):
                return make_home(place.spec, place.paths)
            problem = replace(problem, what=f"{problem.what}. A root pod could not create it either: {said}")
        elif not denied and names.ANNOTATION_CRASHES in place.pod["metadata"].get("annotations", {}):
            raise VolumeAway(problem.what) from error  # the keeper made this master: the folder was there
        raise UsageError([problem]) from error


async def _folder_by_root(place: Place) -> str:
    """What came of it."""
    pod = folder_pod(place.pod, place.owner, str(place.spec.state_dir))
    path, name = f"{place.home}/pods", pod["metadata"]["name"]
    try:
        try:
            await place.api.call("POST", path, body=pod)
        except ApiRefused as refusal:
            if refusal.reason != "AlreadyExists":  # of the master before this one
                raise
        async with contextlib.aclosing(place.api.watch(path, named(name), seconds=FOLDER_SECONDS)) as changes:
            async for kind, seen in changes:
                if kind != "BOOKMARK" and (kind == "DELETED" or phase_of(seen) is ReplicaPhase.GONE):
                    return " ".join([exit_of(seen).reason, *last_words(seen)])
        return f"{name} did not end within {FOLDER_SECONDS:g} s"
    except ApiRefused as refusal:
        return str(refusal)
    finally:
        with contextlib.suppress(ApiRefused, Unreachable):  # it goes with the job, then
            await place.api.call("DELETE", f"{path}/{name}")


def make_home(spec: JobSpec, paths: names.JobPaths) -> None:
    """Make the job's folder, to which a file can be written; raises UsageError where that cannot be done."""
    try:
        paths.root.mkdir(parents=True, exist_ok=True)
        write_durably(paths.root / ".writable", b"")
    except OSError as error:
        what = f"cannot write the job's state to {paths.root}: {error.strerror or error}"
        user = f"user {os.getuid()}"
        remedy = f"Mount a volume that {user} may write to, or choose a path on one with --state_dir."
        raise UsageError([Problem("--state_dir", str(spec.state_dir), what, remedy)]) from error


async def _ready(
    spec: JobSpec, paths: names.JobPaths, held: contextlib.ExitStack, claim_seconds: float = CLAIM_SECONDS
) -> JobSpec:
    """Check model, data and places once in the job's life; the job as it then runs."""
    if paths.datasets.exists():
        spec = JobSpec.from_json(paths.job_file.read_bytes())
        await _claim_again(_with_checkpoints(spec, paths), held, claim_seconds)
        return spec
    problems, notes = preflight.check_output(spec)
    problems += preflight.check_checkpoint_dir(spec)
    checkpoint, wrong, damaged = preflight.find_checkpoint(spec)
    problems, notes = [*problems, *wrong], [*notes, *damaged]
    log.info("Checking model and data")
    checked = await check(spec, lambda line: log.info("%s", line), lambda text: log.debug("%s", text))
    problems, notes = [*problems, *checked.problems], [*notes, *checked.notes]
    if checkpoint is not None and "training" in checked.datasets:
        problems += preflight.check_data_of_checkpoint(spec, checkpoint, checked.datasets)
    if not problems:
        problems += preflight.claim_checkpoint_dir(_with_checkpoints(spec, paths), held)
    if problems:
        raise UsageError(problems)
    if checkpoint is not None:
        spec = spec.with_values(checkpoint_dir_for_init=str(checkpoint))
        notes.append(f"Starting from the checkpoint in {checkpoint}.")
    for note in notes:
        log.info("%s", note)
    write_durably(paths.job_file, spec.to_json().encode())
    write_durably(paths.datasets, json.dumps(checked.datasets).encode())
    return spec


async def _claim_again(spec: JobSpec, held: contextlib.ExitStack, claim_seconds: float) -> None:
    """Lock the checkpoint folder again. The previous master may hold the lock for a while."""
    loop, pauses = asyncio.get_running_loop(), Pauses()
    deadline = loop.time() + claim_seconds
    while problems := preflight.claim_checkpoint_dir(spec, held):
        if loop.time() >= deadline:  # a file server may still hold what a lost node had locked
            raise VolumeAway(f"{problems[0].value}: {problems[0].what}")
        await asyncio.sleep(pauses.next())


def _with_checkpoints(spec: JobSpec, paths: names.JobPaths) -> JobSpec:
    return spec.with_values(checkpoint_dir=spec.checkpoint_dir or str(paths.checkpoint))


# The keeper, which restarts this master: each of the two restarts the other.


def _making(maker: Callable[[ReplicaRequest], Pod], owner: Object) -> Callable[[ReplicaRequest], Pod]:
    """Pods of replicas as the job describes them, the keeper's as it was submitted."""

    def make(request: ReplicaRequest) -> Pod:
        if request.role != names.KEEPER:
            return maker(request)
        return objects.owned(json.loads(_keeper_file().read_bytes()), owner)

    return make


def _keeper_file() -> Path:
    return Path(os.environ[names.ENV_JOB_FILE]).with_name(names.KEEPER_KEY)


async def _keep_keeper(cluster: KubernetesCluster, job_name: str) -> None:
    """See that there is a keeper while the job runs. Without one the job runs until its master is lost."""
    pauses = Pauses()
    while _keeper_file().exists():
        try:
            await _replace_keepers(cluster, names.keeper_name(job_name))
            return
        except Refused as refusal:
            log.warning("Cannot create the keeper; a lost master will not be restarted: %s", refusal)
            await asyncio.sleep(KEEPER_SECONDS)  # for example a quota, which may have room later
        except Unreachable:
            await asyncio.sleep(pauses.next())


async def _replace_keepers(cluster: Cluster, name: str) -> None:
    request, loop, pauses = ReplicaRequest(name, names.KEEPER, 0, ("python",), {}), asyncio.get_running_loop(), None
    if not any(status.role == names.KEEPER for status in await cluster.list()):
        await cluster.launch(request)
    made = loop.time()
    async with contextlib.aclosing(cluster.events()) as seen:
        async for status in seen:
            if status.role == names.KEEPER and status.phase is ReplicaPhase.GONE:
                why = status.exit.reason if status.exit is not None else "gone"
                log.info("Restarting the keeper (%s)", why)
                if pauses is None or loop.time() - made > SOON_SECONDS[1]:
                    pauses = Pauses(*SOON_SECONDS)
                else:  # for example, a node rejects it
                    await asyncio.sleep(pauses.next())
                await cluster.launch(request)
                made = loop.time()


# How the job ended.


async def _tell(place: Place, result: Result) -> bool:
    """Write it on the pod, where the keeper and people find it, also when the rest of the job is deleted.

    False when the pod is gone or another has its name: the next master finds the result in the job's state.
    """
    meta, note = place.pod["metadata"], {names.ANNOTATION_RESULT: json.dumps(_short(result))}
    body = {"metadata": {"uid": meta["uid"], "annotations": note}}
    path = f"{place.home}/pods/{meta['name']}"
    try:
        await place.api.patch(path, body=body, deadline_seconds=TELL_SECONDS)
    except ApiRefused as refusal:
        if not refusal.missed:
            raise
        log.warning("This master's pod is gone; the next one reports how the job ended")
        return False
    return True


async def _clear_away(place: Place) -> None:
    """Remove the job's objects. The keeper does it if this master cannot; but the keeper may be lost."""
    namespace, job = str(place.spec.namespace), str(place.spec.job_name)
    try:
        await conclude(place.api, namespace, job, place.pod, place.owner["uid"])
    except WireError as error:
        log.warning("Leaving the rest of the job for the keeper to remove: %s", error)


def _short(result: Result) -> Result:
    """Without what does not fit into an annotation: the oldest decisions, then all that is listed."""
    status: dict[str, Any] = dict(result.get("status", {}))
    for name, kept in (("decisions", 20), ("changes", 0), ("decisions", 0), ("replicas", 0), ("evaluations", 0)):
        if len(json.dumps({**result, "status": status})) <= RESULT_BYTES:
            break
        status[name] = status.get(name, [])[-kept:] if kept else []
    return {**result, "status": status, "reason": str(result["reason"])[-RESULT_BYTES:]}
