"""Where jobs are looked for: the folder of this machine's jobs, and a namespace of a Kubernetes cluster."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.cli.job import Job
from elasticdl.cli.local_job import LocalJob, all_jobs
from elasticdl.errors import Problem, UsageError, WireError
from elasticdl.job import names
from elasticdl.job.invalid import nearest

if TYPE_CHECKING:
    from elasticdl.cluster.kubernetes.api import KubernetesApi

_ASK_SECONDS = 2.0  # a cluster, for its jobs


def add_job(parser: argparse.ArgumentParser) -> None:
    """The job's name, where a command is about one."""
    parser.add_argument("job", metavar="JOB", help="the job's name, as `elasticdl list` shows it")


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    what = "where the jobs of this machine are kept (default: ELASTICDL_STATE_DIR or ~/.elasticdl/jobs)"
    parser.add_argument("--state_dir", "--state-dir", metavar="DIR", help=what)


def state_dir_of(args: argparse.Namespace) -> Path:
    """The folder that --state_dir names, else the usual one."""
    return names.expanded(args.state_dir).absolute() if args.state_dir else names.default_state_dir()


def add_arguments(parser: argparse.ArgumentParser, *, every_namespace: bool = False) -> None:
    """The flags that say where."""
    add_state_dir(parser)
    what = "jobs of this namespace of the cluster (default: the context's)"
    parser.add_argument("-n", "--namespace", metavar="NAME", help=what)
    what = "jobs of the cluster of this kubeconfig context (default: the current one; inside a pod, its own cluster)"
    parser.add_argument("--context", metavar="NAME", help=what)
    if every_namespace:
        what = "jobs of all namespaces of the cluster"
        parser.add_argument("-A", "--all_namespaces", "--all-namespaces", action="store_true", help=what)


@dataclass
class JobLookup:
    """One or two places; a cluster that was not asked for by name may stay silent."""

    state_dir: Path | None
    api: KubernetesApi | None = None
    namespace: str | None = None  # None: all
    trouble: str = ""  # why the cluster's jobs are not known

    async def all(self) -> list[Job]:
        """All of them, the newest first."""
        return sorted([*self._here(), *await self._of_cluster()], key=lambda job: job.started_at or 0.0, reverse=True)

    async def find(self, name: str) -> Job:
        """The job of this name: one that runs here, else the one that was started last."""
        here = self._here()
        mine: list[Job] = [job for job in here if job.name == name]
        if mine and mine[0].running:
            return mine[0]
        others = await self._of_cluster()
        candidates = [*mine, *(job for job in others if job.name == name)]
        if candidates:
            return max(candidates, key=lambda job: (job.running, job.started_at or 0.0))
        raise self._unknown(name, {job.name for job in (*here, *others)})

    def find_here(self, name: str) -> LocalJob:
        """The job of this name on this machine."""
        here = {job.name: job for job in self._here()}
        if name not in here:
            raise self._unknown(name, here)
        return here[name]

    def _here(self) -> list[LocalJob]:
        return all_jobs(self.state_dir) if self.state_dir is not None else []

    def _unknown(self, name: str, known: Collection[str]) -> UsageError:
        meant = nearest(name, known)
        if meant:
            remedy = f"Did you mean {meant}?"
        elif known:
            remedy = "`elasticdl list` shows the jobs."
        else:
            flags = ["--state_dir"] if self.state_dir is not None else []
            flags += ["--namespace", "--context"] if self.api is not None else []
            remedy = f"There are none; look elsewhere with {' or '.join(flags)}."
        if self.trouble:
            remedy += f" {self.trouble}"
        return UsageError([Problem(name, "", f"no such job in {self.described}", remedy)])

    @property
    def described(self) -> str:
        cluster = ""
        if self.api is not None:
            which = "all namespaces" if self.namespace is None else f"namespace {self.namespace}"
            cluster = f"{which} of {self.api.credentials.context}"
        return " and ".join(place for place in (str(self.state_dir or ""), cluster) if place)

    async def _of_cluster(self) -> list[Job]:
        if self.api is None:
            return []
        from elasticdl.cli.cluster_job import JobInCluster
        from elasticdl.cluster.kubernetes.jobs import list_jobs

        try:
            found = await list_jobs(self.api, self.namespace, _ASK_SECONDS)
        except WireError as error:
            if self.state_dir is None:
                raise
            self.trouble = f"Skipped the cluster of {self.api.credentials.context}: {error}"
            return []
        return [JobInCluster.of(self.api, job) for job in found]


def run(what: Callable[[argparse.Namespace, JobLookup], Awaitable[int]], args: argparse.Namespace) -> int:
    """Run a command that needs jobs; its exit code."""

    async def with_lookup() -> int:
        async with lookup(args) as found:
            return await what(args, found)

    return asyncio.run(with_lookup())


@contextlib.asynccontextmanager
async def lookup(args: argparse.Namespace) -> AsyncIterator[JobLookup]:
    """What the flags name; without any, this machine and, where there is one, the cluster that kubectl would ask."""
    from elasticdl.cluster.kubernetes.credentials import configured

    everywhere = bool(getattr(args, "all_namespaces", False))
    named = bool(args.namespace or args.context or everywhere)
    found = JobLookup(None if named and not args.state_dir else state_dir_of(args))
    if not named and (args.state_dir or not configured()):
        yield found
        return
    try:
        from elasticdl.cluster.kubernetes import credentials
        from elasticdl.cluster.kubernetes.api import KubernetesApi

        found.api = KubernetesApi(credentials.find(args.context))
    except UsageError as error:
        if named:
            raise
        found.trouble = f"Skipped the cluster: {error}"
        yield found
        return
    found.namespace = None if everywhere else args.namespace or found.api.credentials.namespace
    try:
        yield found
    finally:
        await found.api.close()
