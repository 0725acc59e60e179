"""The master as the client of ElasticDL 1.0 starts it: in a pod that the client made, with the whole job as flags.

It makes the objects that this version's client makes before a master starts, has the pod be one of them, and becomes
the master. Where such a pod lacks what this version's pods have, its keeper replaces it by one that can.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from elasticdl.cli import by_hand, flags
from elasticdl.cli.submit import secrets_of
from elasticdl.cluster.kubernetes import credentials
from elasticdl.cluster.kubernetes.api import ApiRefused, KubernetesApi
from elasticdl.cluster.kubernetes.objects import owned, owner
from elasticdl.cluster.kubernetes.preflight import rbac_command
from elasticdl.cluster.kubernetes.reading import Pod
from elasticdl.cluster.kubernetes.submission import find, folder, submit
from elasticdl.errors import JobFailed, Problem, Unreachable, UsageError
from elasticdl.job import names
from elasticdl.job.resolve import Resolved
from elasticdl.job.spec import JobSpec, knobs, spellings
from elasticdl.master import in_cluster

EMPTY = ("", "None")  # as that client writes flags that were not given
KEEPER_SECONDS = 10.0  # between two looks for the keeper
REPLACED_SECONDS = 600.0  # for the keeper to start, on a node that may have to fetch the image
# What it also writes for flags that were not given, and what would mean something here.
DEFAULTS = {"use_async": "False", "sync_version_tolerance": "0"}


def master(words: list[str]) -> int:
    """Submit the job of this master, and become `python -m elasticdl.master`."""
    resolved = job_of(words)
    spec = resolved.require()
    for line in (*resolved.decisions, *resolved.notes):
        print(line, flush=True)
    uid, files, environment = asyncio.run(_adopted(spec))
    why = unfit(spec, uid, json.loads(files[names.MASTER_KEY]))
    if why:
        return asyncio.run(
            _hand_over(spec, why, owned(json.loads(files[names.KEEPER_KEY]), owner(str(spec.job_name), uid)))
        )
    place = Path(tempfile.mkdtemp(prefix="elasticdl-master-"))  # for the life of the pod
    for name, text in files.items():  # as they are mounted elsewhere
        (place / name).write_text(text)
    os.environ |= {**spec.envs, **environment, names.ENV_JOB_FILE: str(place / names.JOB_KEY)}
    return os.execv(sys.executable, [sys.executable, "-m", "elasticdl.master"])


def job_of(words: Sequence[str]) -> Resolved:
    """The job that the flags describe, without those that were not given."""
    given = _given(words)
    if given.get("worker_image") == given.get("image_name"):  # which that client always writes
        given.pop("worker_image", None)
    given["runtime"] = "kubernetes"
    return flags.read_request([f"--{name}={value}" for name, value in given.items()]).resolved


def _given(words: Sequence[str]) -> dict[str, str]:
    """That client writes every flag, one even twice, with a space before its value, whether it was given or not."""
    rest, found = list(words), dict[str, str]()
    while rest:
        word = rest.pop(0)
        name = word.removeprefix("--").partition("=")[0]
        value = word.partition("=")[2] if "=" in word else rest.pop(0) if rest and not rest[0].startswith("--") else ""
        knob = knobs().get(spellings().get(name, ""))
        gone = knob is not None and knob.gone is not None and (knob.default is None or str(knob.default) == value)
        if name != "yaml" and value not in EMPTY and not gone and DEFAULTS.get(name) != value:
            found[name] = value
    return found


async def _adopted(spec: JobSpec) -> tuple[str, dict[str, str], dict[str, str]]:
    """Make the job's objects, with this pod as its master; their owner's uid, and the files and the environment that
    such a master has."""
    job, namespace = str(spec.job_name), str(spec.namespace)
    name = names.config_name(job)
    api = KubernetesApi(credentials.find())
    try:
        uid = await submit(api, spec, secrets_of(spec), master_exists=True, tell=lambda line: print(line, flush=True))
        # Read back: after a restart of the container they were there already.
        config, secret = await find(api, "ConfigMap", namespace, name), await find(api, "Secret", namespace, name)
    except ApiRefused as refusal:
        if refusal.code != 403:
            raise
        remedy = f"An administrator allows it once: {rbac_command(namespace, from_inside=True)}"
        raise UsageError([Problem("--namespace", namespace, str(refusal), remedy)]) from refusal
    finally:
        await api.close()
    if config is None or secret is None:
        raise JobFailed(f"the job {job} was removed while its master started")
    environment = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()} | {
        names.ENV_REPLICA: names.replica_name(job, names.MASTER),
        names.ENV_MASTER_ADDR: names.master_address(job, namespace),
    }
    return uid, config["data"], environment


def unfit(spec: JobSpec, uid: str, template: Pod) -> str:
    """Why this process cannot run the job in the pod that the client made; empty when it can.

    `template`: the pod that this version makes for the job's master. It may have what that client does not know:
    a user that the job's other pods share, a group that owns a claim, a folder that root makes on a node.
    """
    user = (template["spec"].get("securityContext") or {}).get("runAsUser", os.getuid())
    if user != os.getuid():
        return f"it runs as user {os.getuid()}, and the job's other pods, which share its files, as user {user}"
    try:
        in_cluster.make_home(spec, in_cluster.paths_of(spec, uid))
    except UsageError as error:
        return error.problems[0].what
    return ""


async def _hand_over(spec: JobSpec, why: str, keeper: Pod) -> int:
    """Have the keeper make the job's own master in this pod's place, and wait for that."""
    name = names.replica_name(str(spec.job_name), names.MASTER)
    print(f"This pod, as the client made it, cannot run the job: {why}.", flush=True)
    print(f"The keeper replaces it: kubectl logs -f -n {spec.namespace} {name} follows it.", flush=True)
    path, api = f"{folder('Pod', str(spec.namespace))}/{name}", KubernetesApi(credentials.find())
    try:
        note = {"metadata": {"annotations": {names.ANNOTATION_UNFIT: why}}}
        await api.patch(path, body=note)
        # Ending now, this container would be started again where that is asked for.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_keep(api, spec, keeper), REPLACED_SECONDS)
    finally:
        await api.close()
    describe = f"kubectl describe pod {names.keeper_name(str(spec.job_name))}"
    print(f"The keeper did not replace it within {REPLACED_SECONDS:g} s: {describe}.")
    return in_cluster.ENDED_BY_SIGTERM  # which costs no attempt, once there is a keeper


async def _keep(api: KubernetesApi, spec: JobSpec, keeper: Pod) -> None:
    """Create the keeper again whenever it is lost, without end: no other process would."""
    namespace = str(spec.namespace)
    while True:
        with contextlib.suppress(ApiRefused, Unreachable):
            if await find(api, "Pod", namespace, keeper["metadata"]["name"]) is None:
                await api.call("POST", folder("Pod", namespace), body=keeper)
        await asyncio.sleep(KEEPER_SECONDS)


if __name__ == "__main__":
    sys.exit(by_hand.run("master", master))
