"""The master as the client of ElasticDL 1.0 starts it: in a pod of its own making, with the whole job as flags.

It makes the objects that this version's client makes before a master starts, has the pod be one of them, and becomes
the master.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from elasticdl.cli import by_hand, flags
from elasticdl.cli.submit import secrets_of
from elasticdl.cluster.kubernetes import credentials
from elasticdl.cluster.kubernetes.api import ApiRefused, KubernetesApi
from elasticdl.cluster.kubernetes.preflight import rbac_command
from elasticdl.cluster.kubernetes.submission import find, submit
from elasticdl.errors import JobFailed, Problem, UsageError
from elasticdl.job import names
from elasticdl.job.resolve import Resolved
from elasticdl.job.spec import JobSpec, knobs, spellings

EMPTY = ("", "None")  # as that client writes what nobody gave
# What it also writes when nobody gave it, and what would mean something here.
DEFAULTS = {"use_async": "False", "sync_version_tolerance": "0"}


def master(words: list[str]) -> int:
    """Submit the job that this pod is the master of, and go on as `python -m elasticdl.master`."""
    resolved = job_of(words)
    spec = resolved.require()
    for line in (*resolved.decisions, *resolved.notes):
        print(line, flush=True)
    files, environment = asyncio.run(_adopted(spec))
    folder = Path(tempfile.mkdtemp(prefix="elasticdl-master-"))  # for the life of the pod
    for name, text in files.items():  # as they are mounted elsewhere
        (folder / name).write_text(text)
    os.environ |= {**spec.envs, **environment, names.ENV_JOB_FILE: str(folder / names.JOB_KEY)}
    os.execv(sys.executable, [sys.executable, "-m", "elasticdl.master"])


def job_of(words: Sequence[str]) -> Resolved:
    """The job that the flags describe. What was left open there is left open here."""
    given = _given(words)
    if given.get("worker_image") == given.get("image_name"):  # which that client always says
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


async def _adopted(spec: JobSpec) -> tuple[dict[str, str], dict[str, str]]:
    """Make the job's objects, with this pod as its master; the files and the environment that such a master has."""
    job, namespace = str(spec.job_name), str(spec.namespace)
    name = names.config_name(job)
    api = KubernetesApi(credentials.find())
    try:
        await submit(api, spec, secrets_of(spec), master_exists=True, tell=lambda line: print(line, flush=True))
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
    return config["data"], environment


if __name__ == "__main__":
    sys.exit(by_hand.run("master", master))
