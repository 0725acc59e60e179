"""Two jobs in a cluster that has room for one and a half of them: one after the other, and both at once.

    python benchmarks/two_jobs.py --image elasticdl:mnist_allreduce --volume "host_path=/data,mount_path=/data" \\
        [--context NAME] [--namespace elasticdl-two-jobs] [--out benchmarks/results/two_jobs.json]

Each job wants four workers; `--worker_cpu` is such that the cluster has room for six. A scheduler that starts a job
only when all of its workers fit runs them one after the other. Elastic jobs start with what is there and take what
becomes free. The pods themselves report what runs. Prints the makespans and how much of the six places was in
use, writes them, and draws both beside the JSON file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import report
from elasticdl.cluster.kubernetes import credentials
from elasticdl.cluster.kubernetes.api import ApiRefused, KubernetesApi
from elasticdl.cluster.kubernetes.reading import Pod
from elasticdl.job import names

PLACES, WORKERS = 6, 4
OLD_PROJECT = 0.16  # by how much the makespan of its experiment was shorter


@dataclass
class Observed:
    """Which workers ran when, from the pods' own changes."""

    running: dict[str, dict[str, float]] = field(default_factory=dict)  # pod uid -> since when, by job
    spans: list[tuple[str, float, float]] = field(default_factory=list)  # (job, from, to)
    ended: dict[str, tuple[float, str]] = field(default_factory=dict)  # job -> when its master ended, and how
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, pod: Pod, deleted: bool) -> None:
        now, labels, uid = time.monotonic(), pod["metadata"]["labels"], pod["metadata"]["uid"]
        job, role = labels[names.LABEL_JOB], labels.get(names.LABEL_TYPE)
        phase = "Gone" if deleted else pod["status"].get("phase")
        if role == names.MASTER and phase in ("Succeeded", "Failed"):
            self.ended.setdefault(job, (now, phase))
        if role == names.WORKER:
            since = self.running.setdefault(job, {})
            if phase == "Running":
                since.setdefault(uid, now)
            elif uid in since:
                self.spans.append((job, since.pop(uid), now))
        self.news.set()

    async def end_of(self, jobs: Sequence[str], deadline_seconds: float) -> None:
        async with asyncio.timeout(deadline_seconds):
            while not all(job in self.ended for job in jobs):
                self.news.clear()
                await self.news.wait()
        failed = [job for job in jobs if self.ended[job][1] != "Succeeded"]
        if failed:
            raise SystemExit(f"failed: {', '.join(failed)}; see `elasticdl logs {failed[0]}`")


async def observe(api: KubernetesApi, namespace: str, observed: Observed) -> None:
    path, ours = f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": f"{names.LABEL_APP}={names.APP}"}
    while True:
        answer = await api.call("GET", path, params=ours)
        for pod in answer["items"]:
            observed.take(pod, deleted=False)
        since = {**ours, "resourceVersion": answer["metadata"]["resourceVersion"]}
        with contextlib.suppress(ApiRefused):
            async for kind, pod in api.watch(path, since, seconds=300):
                if kind != "BOOKMARK":
                    observed.take(pod, deleted=kind == "DELETED")


def submit(args: argparse.Namespace, job: str) -> None:
    size = f"cpu={args.worker_cpu},memory={args.worker_memory}"
    small = "cpu=0.02,memory=300Mi"
    command = [
        sys.executable, "-m", "elasticdl", "train", f"--image_name={args.image}", f"--job_name={job}",
        f"--namespace={args.namespace}", "--distribution_strategy=AllreduceStrategy", f"--num_workers={WORKERS}",
        "--min_workers=1", f"--worker_resource_request={size}", f"--worker_resource_limit={size}",
        f"--master_resource_request={small}", "--master_resource_limit=cpu=1,memory=1Gi",
        f"--image_pull_policy={args.image_pull_policy}", "--model_zoo=model_zoo", f"--model_def={args.model_def}",
        f"--training_data={args.training_data}", f"--num_epochs={args.epochs}",
        f"--minibatch_size={args.minibatch_size}",
        *([f"--volume={args.volume}"] if args.volume else []),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=120)


async def play(args: argparse.Namespace, rounds: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Each round's jobs are submitted together, when those of the round before are over."""
    api, observed = KubernetesApi(await asyncio.to_thread(credentials.find, args.context)), Observed()
    observing = asyncio.create_task(observe(api, args.namespace, observed))
    began = time.monotonic()
    try:
        for jobs in rounds:
            for job in jobs:
                await asyncio.to_thread(submit, args, job)
            ends = asyncio.create_task(observed.end_of(jobs, args.deadline_seconds))
            await asyncio.wait({ends, observing}, return_when=asyncio.FIRST_COMPLETED)
            if not ends.done():
                observing.result()
            await ends
    finally:
        observing.cancel()
        await asyncio.wait({observing})
        await api.close()
    over = max(at for at, _ in observed.ended.values())
    spans = observed.spans + [(job, at, over) for job, pods in observed.running.items() for at in pods.values()]
    spans = [(job, round(at - began, 2), round(min(to, over) - began, 2)) for job, at, to in spans]
    makespan = over - began
    return {
        "makespan seconds": round(makespan, 1),
        "jobs' ends": {job: round(observed.ended[job][0] - began, 1) for jobs in rounds for job in jobs},
        "utilisation": round(sum(to - at for _, at, to in spans) / (PLACES * makespan), 3),
        "most workers at once": max(count for _, count in running(spans)),
        "spans": spans,
    }


def running(spans: Sequence[tuple[str, float, float]], job: str | None = None) -> list[tuple[float, int]]:
    """How many workers ran from each moment on."""
    moves = [(at, by) for name, start, stop in spans if job in (None, name) for at, by in ((start, 1), (stop, -1))]
    found, count = [(0.0, 0)], 0
    for at, by in sorted(moves):
        count += by
        found.append((at, count))
    return found


def draw(result: dict[str, Any], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, plots = pyplot.subplots(2, 1, sharex=True, figsize=(8, 5), layout="constrained")
    for plot, (title, played) in zip(plots, result["played"].items(), strict=True):
        jobs, spans = sorted({job for job, _, _ in played["spans"]}), played["spans"]
        moments = sorted({0.0, played["makespan seconds"], *(t for _, a, b in spans for t in (a, b))})
        counts = [[sum(a <= at < b for name, a, b in spans if name == job) for at in moments] for job in jobs]
        plot.stackplot(moments, counts, labels=jobs, step="post")
        plot.axhline(PLACES, color="gray", linewidth=0.8, linestyle="--")
        plot.set_title(f"{title}: {played['makespan seconds']:g} s, {played['utilisation']:.0%} of the places used")
        plot.set_ylabel("workers")
        plot.legend(loc="upper right")
    plots[-1].set_xlabel("seconds")
    figure.savefig(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True)
    parser.add_argument("--image_pull_policy", default="Never")
    parser.add_argument("--volume", default="")
    parser.add_argument("--context")
    parser.add_argument(
        "--namespace", default="elasticdl-two-jobs", help="must be there, with the RBAC manifest applied"
    )
    parser.add_argument("--worker_cpu", default="0.3")
    parser.add_argument("--worker_memory", default="600Mi")
    parser.add_argument("--model_def", default="mnist.mnist_functional_api.custom_model")
    parser.add_argument("--training_data", default="/data/mnist/train")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatch_size", type=int, default=64)
    parser.add_argument("--deadline_seconds", type=float, default=1500.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result = report.about("elasticdl") | {"places": PLACES, "workers a job": WORKERS, "worker cpu": args.worker_cpu}
    result |= {"epochs": args.epochs, "minibatch size": args.minibatch_size}
    played = {
        "one after the other": asyncio.run(play(args, [["first-alone"], ["second-alone"]])),
        "both at once": asyncio.run(play(args, [["first", "second"]])),
    }
    before, after = (found["makespan seconds"] for found in played.values())
    shorter = round(1 - after / before, 3)
    result |= {"played": played, "makespan shorter by": shorter}
    for title, found in played.items():
        print(f"{title:<20} {found['makespan seconds']:>7g} s   {found['utilisation']:.0%} of {PLACES} places used")
    print(f"both at once: {shorter:.0%} shorter; the old project's experiment: {OLD_PROJECT:.0%}")
    report.write(args.out, result)
    if args.out is not None:
        draw(result, args.out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
