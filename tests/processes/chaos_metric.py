"""The metric of a real model under chaos, compared with the spread of the same jobs left alone.

The zoo's DeepFM in PyTorch on synthetic clicks: dense layers and two tables on two servers, about ten seconds of
training. Jobs that are left alone differ by their seeds and by the order in which gradients arrive: their spread is
three standard deviations around their mean. Every disturbed job must end within it.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from elasticdl.cli.chaos.schedule import Plan, Timing
from elasticdl.cli.chaos.striking import Striker
from elasticdl.cli.local_job import look
from tests.processes.harness import ROOT, RunningJob, end_all, start

UNDISTURBED, EVENTS, RECORDS, JUDGED = 12, 6, 20000, 20000  # and as many records to evaluate on
DEADLINE_SECONDS = 240.0


def train(tmp: Path, seed: int, name: str) -> RunningJob:
    return start(
        tmp, name, "--model_zoo=model_zoo", "--model_def=deepfm.deepfm_pytorch.custom_model",
        f"--training_data={tmp / 'few' / 'train'}", f"--validation_data={tmp / 'many' / 'test'}", "--minibatch_size=64",
        "--num_epochs=3", "--num_ps_pods=2", "--num_workers=2", "--audit=true", f"--seed={seed}",
        "--checkpoint_seconds=2", "--shuffle=true",
    )  # fmt: skip


def metric_of(job: RunningJob) -> float:
    code, result = job.finish()
    assert code == 0, job.story()
    status = result["status"]
    assert isinstance(status, dict)
    return round(float(status["evaluations"][-1]["metrics"]["accuracy"]), 4)


async def _disturb(job: RunningJob, seed: int) -> list[str]:
    plan = Plan(seed, Timing(EVENTS))
    striker = Striker(look(job.paths), plan, lambda delivery: None, lambda status, coming: None)
    async with asyncio.timeout(DEADLINE_SECONDS):
        report = await striker.run()
    return [f"{d.kind} {d.replica}" for d in report.deliveries if not d.not_delivered]


def compare(disturbed: int) -> dict[str, Any]:
    """Run them all and say what came of it; raises when one of the jobs fails."""
    with tempfile.TemporaryDirectory() as folder:
        tmp = Path(folder)
        for name, records in (("few", RECORDS), ("many", 10 * JUDGED)):  # of the latter a tenth is for testing
            command = [sys.executable, "-m", "elasticdl", "data", "criteo", str(tmp / name), "--records", str(records)]
            subprocess.run([*command, "--seed", "1"], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        alone, under = [], []
        try:
            for seed in range(UNDISTURBED):
                alone.append(metric_of(train(tmp, seed, f"alone-{seed}")))
                print(f"left alone, seed {seed}: accuracy {alone[-1]}", flush=True)
            for seed in range(disturbed):
                job = train(tmp, seed, f"disturbed-{seed}")
                job.wait_until(lambda s: True)  # there is a master
                events = asyncio.run(_disturb(job, seed))
                under.append({"seed": seed, "accuracy": metric_of(job), "events": events})
                print(f"disturbed, seed {seed}: accuracy {under[-1]['accuracy']} after {', '.join(events)}", flush=True)
        finally:
            end_all()
    mean, width = statistics.fmean(alone), 3 * statistics.stdev(alone)
    least, most = round(mean - width, 4), round(mean + width, 4)
    within = all(least <= float(str(run["accuracy"])) <= most for run in under)
    print(f"left alone {min(alone)} to {max(alone)}, demanded {least} to {most}: {'all within' if within else 'NOT'}")
    return {
        "model": "DeepFM (PyTorch)",
        "metric": "accuracy",
        "alone": alone,
        "spread": (least, most),
        "disturbed": under,
        "within": within,
    }
