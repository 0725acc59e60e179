"""`elasticdl train` for a cluster: checks the job against the API server, submits it, and prints what to type next."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from elasticdl.cli.job_dir import write_private
from elasticdl.cluster.kubernetes import credentials
from elasticdl.cluster.kubernetes.api import KubernetesApi
from elasticdl.cluster.kubernetes.objects import job_objects
from elasticdl.cluster.kubernetes.preflight import preflight, rbac_command
from elasticdl.cluster.kubernetes.submission import submit
from elasticdl.errors import Problem, UsageError, WireError
from elasticdl.job import names
from elasticdl.job.resolve import Resolved
from elasticdl.job.spec import JobSpec
from elasticdl.wire import tls
from elasticdl.wire.auth import Keys

ANSWER_SECONDS = 15.0  # the user waits at a terminal
ASK_SECONDS = 5.0  # in a dry run, which needs no cluster


def run(resolved: Resolved, context: str | None = None) -> int:
    """Submit a resolved job and return, or write its objects to the file of --yaml. `context`: of the kubeconfig."""
    spec = resolved.require()
    if spec.yaml is not None:
        _write_yaml(resolved, spec.yaml)
        return 0
    for line in _lines(resolved):
        print(line)
    sys.stdout.flush()
    print(asyncio.run(_submit(spec, context)))
    return 0


def secrets_of(spec: JobSpec) -> dict[str, str]:
    """New secrets for a job: its token, its master's certificate, and the keys of its data plane where that has any."""
    certificate, key = tls.make(names.service_name(str(spec.job_name)))
    found = {names.ENV_TOKEN: secrets.token_hex(32), names.ENV_TLS_CERT: certificate, names.ENV_TLS_KEY: key}
    return found | (Keys.new().env(servers=True) if spec.encrypt_data_plane else {})


async def _submit(spec: JobSpec, context: str | None) -> str:
    given = secrets_of(spec)
    async with _api(spec, context, ANSWER_SECONDS) as api:
        problems = await preflight(api, spec, given)
        if problems:
            raise UsageError(problems)
        await submit(api, spec, given, tell=lambda line: print(line, flush=True))
        return _what_next(spec, context, api)


async def ask(spec: JobSpec, context: str | None = None) -> list[str]:
    """Whether the cluster would accept this job, in lines."""
    try:
        async with _api(spec, context, ASK_SECONDS) as api:
            problems = await preflight(api, spec, secrets_of(spec))
            where = f"{_shown(api)}, namespace {spec.namespace}"
    except (WireError, UsageError) as error:
        return [f"Not asked: {error}"]
    if not problems:
        return [f"Accepts this job: {where}"]
    return [f"Rejects this job: {where}", *map(str, problems)]


@contextlib.asynccontextmanager
async def _api(spec: JobSpec, context: str | None, deadline_seconds: float) -> AsyncIterator[KubernetesApi]:
    found = credentials.find(context, prefer_file=spec.force_use_kube_config_file)
    api = KubernetesApi(found, deadline_seconds=deadline_seconds)
    try:
        yield api
    finally:
        await api.close()


def _lines(resolved: Resolved) -> list[str]:
    return [*resolved.decisions, *resolved.notes, *(f"Warning: {text}" for text in resolved.warnings)]


def _shown(api: KubernetesApi) -> str:
    found = api.credentials
    return f"{found.context} ({found.server})" if found.context else found.server


def _what_next(spec: JobSpec, context: str | None, api: KubernetesApi) -> str:
    job, namespace = str(spec.job_name), str(spec.namespace)
    ours = "" if namespace == api.credentials.namespace else f" --namespace={namespace}"
    theirs = "" if namespace == api.credentials.namespace else f" -n {namespace}"
    if context is not None:
        ours, theirs = f"{ours} --context={context}", f"{theirs} --context={context}"
    commands = {
        f"elasticdl status {job}{ours}": "its progress, replicas and decisions",
        f"elasticdl logs {job}{ours} -f": "its master's log; name a replica for another log",
        f"elasticdl stop {job}{ours}": "stop it, with a checkpoint",
        f"kubectl get pods{theirs} -l {names.LABEL_JOB}={job}": "its pods",
        f"kubectl logs{theirs} -f {names.replica_name(job, names.MASTER)}": "its master's log",
    }
    width = max(map(len, commands))
    lines = [f"  {command:<{width}}  # {text}" for command, text in commands.items()]
    return "\n".join([f"Submitted {job} to {_shown(api)}, namespace {namespace}.", *lines])


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are, line by line: a certificate, the job's JSON."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _text)


def _write_yaml(resolved: Resolved, where: str) -> None:
    spec = resolved.spec.with_values(yaml=None)
    job, namespace = str(spec.job_name), str(spec.namespace)
    objects = job_objects(spec, secrets_of(spec))
    head = [
        f"# The job {job}, made by elasticdl {spec.command}. It contains the job's secrets; do not share it.",
        f"#   {rbac_command(namespace)}",
        "#   kubectl apply -f THIS_FILE    submits it",
        "#   kubectl delete -f THIS_FILE   removes the job, before or after its end",
    ]
    text = "\n".join([*head, yaml.dump_all(objects.all(), Dumper=_Dumper, sort_keys=False, width=120)])
    if where == "-":
        print(text, end="")
        return
    path = names.expanded(where)
    try:
        write_private(Path(path), text)
    except OSError as error:
        raise UsageError(
            [Problem("--yaml", where, f"cannot be written: {error.strerror}", "Name another file.")]
        ) from error
    for line in _lines(resolved):
        print(line)
    print(f"Wrote the job's objects and secrets to {path}, which only you can read. Submit the job with")
    print(f"  kubectl apply -f {path}")
