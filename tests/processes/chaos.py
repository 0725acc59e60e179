"""Seeded chaos: witness jobs disturbed by `elasticdl chaos` and by named fault points, each audited at its end.

    python -m tests.processes.chaos --runs 100 --report FILE
    python -m tests.processes.chaos --seed 17        # one of them again, telling what happens

Each run draws from its seed the size of its job, a schedule of kills, pauses, terminations and cut connections, two
fault points, whether it is synchronous and, in a third of the runs, another number of servers to scale to. It passes
when the job succeeds in time, every record of every epoch was applied exactly once on every server, and no process and
no listening socket is left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from elasticdl import faults
from elasticdl.cli.chaos.command import line_of
from elasticdl.cli.chaos.report import Delivery, Report
from elasticdl.cli.chaos.schedule import Plan, Timing
from elasticdl.cli.chaos.striking import Striker
from elasticdl.cli.local_job import look
from elasticdl.cli.master_client import MasterClient
from elasticdl.errors import Unreachable
from tests.processes import chaos_metric
from tests.processes.harness import ROOT, RunningJob, about, check_witness, end_all, start_witness

RECORDS, EPOCHS, EVENTS = 6000, 2, 6
DEADLINE_SECONDS = 240.0  # a run takes some fifteen seconds on two quiet cores
KEPT = ROOT / "build" / "chaos"  # what the jobs of failed runs left

# How often a replica may have passed the point before it dies there: within what a run reaches.
PASSES = {
    "worker.between_pushes": ("*", 120),
    "worker.before_confirm": ("*", 120),
    "worker.between_confirms": ("*", 120),
    "worker.after_ack": ("*", 120),
    "worker.before_completion": ("*", 30),
    "worker.before_manifest": ("*", 1),
    "master.after_journal": ("master", 200),
    "master.between_cut_phases": ("master", 3),
    "master.before_publishing": ("master", 2),
    "server.before_freeze": ("*", 2),
    "server.writing": ("*", 3),
    "server.part_written": ("*", 2),
    "server.restoring": ("*", 1),
}


@dataclass(frozen=True)
class Setting:
    """The job that a seed stands for."""

    seed: int
    servers: int
    workers: int
    evaluates: bool
    points: tuple[str, ...]  # fault points, each with the replica and the pass at which it dies
    scale_to: int | None  # servers
    scale_at: int  # records
    grads_to_wait: int  # 2: synchronous

    @classmethod
    def of(cls, seed: int) -> Setting:
        random = Random(f"{seed}/setting")
        servers, workers = random.choice([1, 2, 2, 3]), random.choice([2, 2, 3])
        names = sorted(PASSES)
        points = []
        for place in (2 * seed, 2 * seed + 1):
            name = names[place % len(names)]
            role, most = PASSES[name]
            target = role if role == "*" else f"elasticdl-chaos-{seed}-{role}"
            points.append(f"{name}@{target}:{random.randint(1, most)}")
        if any("between_pushes" in p or "confirm" in p for p in points):
            servers = max(servers, 2)
        evaluates = random.random() < 0.5
        scale_to = random.choice([n for n in (1, 2, 3) if n != servers]) if random.random() < 1 / 3 else None
        scale_at = int(random.random() * RECORDS * EPOCHS / 2)
        grads_to_wait = 2 if random.random() < 0.25 or any("confirm" in p for p in points) else 1
        return cls(seed, servers, workers, evaluates, tuple(points), scale_to, scale_at, grads_to_wait)

    @property
    def plan(self) -> Plan:
        return Plan(self.seed, Timing(EVENTS))


@dataclass
class Run:
    """What came of a seed."""

    seed: int
    servers: int
    workers: int
    events: list[str]
    delivered: dict[str, dict[str, int]]
    not_delivered: int
    points_hit: list[str]
    losses: int
    master_starts: int
    rollbacks: int
    repeated_batches: int
    recovery_seconds: list[float]
    seconds: float
    failure: str = ""
    points_armed: list[str] = field(default_factory=list)
    servers_at_end: int = 0
    synchronous: bool = False

    def __str__(self) -> str:
        hits = [
            f"{role} " + " ".join(f"{n} {kind}" for kind, n in kinds.items() if n)
            for role, kinds in self.delivered.items()
            if any(kinds.values())
        ]
        what = f"{', '.join(hits) or 'no event'}; points {' '.join(self.points_hit) or 'none'}"
        came = f"{self.losses} lost, {self.rollbacks} rollbacks, {self.repeated_batches} batches again"
        came += f", {self.servers} to {self.servers_at_end} servers" if self.servers_at_end != self.servers else ""
        came += f", {self.not_delivered} events not delivered" if self.not_delivered else ""
        came += ", synchronous" if self.synchronous else ""
        verdict = "FAILED" if self.failure else "passed"
        return f"seed {self.seed} {verdict} in {self.seconds:.1f} s: {what}; {came}"


def chaos_run(tmp: Path, seed: int, tell: Callable[[str], None] = lambda line: None) -> Run:
    """One job; raises when it fails, hangs, leaves something behind, or any record was not applied exactly once."""
    setting = Setting.of(seed)
    log = tmp / "faults"
    tell(f"{setting}")
    began = time.monotonic()
    flags = ["--checkpoint_seconds=1", "--audit=true", f"--grads_to_wait={setting.grads_to_wait}"]
    if setting.evaluates:
        flags += [f"--validation_data={tmp / f'ids-{RECORDS}'}", "--evaluation_steps=150"]
    job = start_witness(
        tmp, f"chaos-{seed}", *flags, records=RECORDS, epochs=EPOCHS, servers=setting.servers, workers=setting.workers,
        env={"ELASTICDL_FAULTS": ",".join(setting.points), "ELASTICDL_FAULT_LOG": str(log)},
    )  # fmt: skip
    job.deadline_seconds = DEADLINE_SECONDS
    told: list[str] = []

    def heard(d: Delivery) -> None:
        told.append(line_of(d))
        tell(told[-1])

    job.wait_until(lambda s: True)  # there is a master
    striker = Striker(look(job.paths), setting.plan, heard, lambda status, coming: None)
    try:
        report = asyncio.run(_in_time(striker, job, setting))
    except TimeoutError as error:
        raise AssertionError(f"the job did not end in {DEADLINE_SECONDS:.0f} s:\n{job.story()}") from error
    status = check_witness(job, tmp / f"chaos-{seed}-model", RECORDS, EPOCHS, setting.servers, setting.grads_to_wait)
    assert not report.orphans, f"processes left over: {report.orphans}"
    assert not report.ports_open, f"sockets left listening: {report.ports_open}"
    assert "exactly" in report.audit
    hit = [entry.partition("@")[0] for entry in (log.read_text().split() if log.exists() else [])]
    missed = sum(bool(d.not_delivered) for d in report.deliveries)
    return Run(
        seed, setting.servers, setting.workers, told, report.delivered(), missed, hit, report.losses,
        report.master_starts, report.rollbacks, report.repeated_batches, report.recovery_seconds,
        round(time.monotonic() - began, 1), points_armed=[p.partition("@")[0] for p in setting.points],
        servers_at_end=int(status["servers"]), synchronous=setting.grads_to_wait > 1,
    )  # fmt: skip


async def _in_time(striker: Striker, job: RunningJob, setting: Setting) -> Report:
    scaling = asyncio.create_task(_scale(MasterClient.of(job.paths), setting))
    try:
        async with asyncio.timeout(job.deadline_seconds):
            return await striker.run()
    finally:
        scaling.cancel()
        await asyncio.wait({scaling})


async def _scale(master: MasterClient, setting: Setting) -> None:
    """Ask for another number of servers in the middle of it all; a master that dies over it is asked again."""
    if setting.scale_to is None:
        return
    async with contextlib.aclosing(master.watch()) as statuses:
        async for status in statuses:
            if status is None or status.records_done < setting.scale_at:
                continue
            if status.servers_wanted == setting.scale_to:
                return
            with contextlib.suppress(Unreachable):
                await master.scale("ps", setting.scale_to, 5.0)


@contextlib.contextmanager
def _kept_on_failure(seed: int) -> Iterator[Path]:
    """A directory that goes with a run, and stays where the run failed."""
    with tempfile.TemporaryDirectory() as tmp:
        try:
            yield Path(tmp)
        except AssertionError:
            end_all()
            shutil.rmtree(KEPT / f"seed-{seed}", ignore_errors=True)
            shutil.copytree(tmp, KEPT / f"seed-{seed}", ignore=shutil.ignore_patterns("*.sock"))
            raise
        finally:
            end_all()


def one(seed: int, tell: Callable[[str], None]) -> Run:
    """A run whose failure is an answer too."""
    began = time.monotonic()
    try:
        with _kept_on_failure(seed) as tmp:
            return chaos_run(tmp, seed, tell)
    except (AssertionError, TimeoutError) as error:
        setting = Setting.of(seed)
        seconds = round(time.monotonic() - began, 1)
        return Run(seed, setting.servers, setting.workers, [], {}, 0, [], 0, 0, 0, 0, [], seconds, str(error))


def totals(runs: list[Run]) -> dict[str, object]:
    """All runs together."""
    delivered: Counter[str] = Counter()
    for run in runs:
        delivered.update({f"{role} {kind}": n for role, kinds in run.delivered.items() for kind, n in kinds.items()})
    hits = Counter(point for run in runs for point in run.points_hit)
    return {
        "runs": len(runs),
        "failed": [run.seed for run in runs if run.failure],
        "records_audited": EPOCHS * RECORDS * sum(not run.failure for run in runs),
        "delivered": dict(sorted(delivered.items())),
        "not_delivered": sum(run.not_delivered for run in runs),
        "fault_points_hit": {point: hits[point] for point in faults.POINTS},
        "losses": sum(run.losses for run in runs),
        "rollbacks": sum(run.rollbacks for run in runs),
        "master_starts_again": sum(max(0, run.master_starts - 1) for run in runs),
        "repeated_batches": sum(run.repeated_batches for run in runs),
        "synchronous": sum(run.synchronous for run in runs),
        "scaled": sum(run.servers_at_end not in (0, run.servers) for run in runs),
        "longest_recovery_seconds": max((s for run in runs for s in run.recovery_seconds), default=0.0),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first run's seed")
    parser.add_argument("--seed", type=int, help="only this one, telling what happens")
    parser.add_argument("--metric_runs", type=int, default=0, help="disturbed jobs of a real model, for their metric")
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    if args.seed is not None:
        run = one(args.seed, lambda line: print(line, flush=True))
        print(run, run.failure, sep="\n")
        return 1 if run.failure else 0
    runs = []
    for place, seed in enumerate(range(args.first, args.first + args.runs), 1):
        runs.append(one(seed, lambda line: None))
        print(f"{place}/{args.runs} {runs[-1]}", flush=True)
        if runs[-1].failure:
            print(f"{runs[-1].failure}\nkept in {KEPT / f'seed-{seed}'}", flush=True)
    metric = chaos_metric.compare(args.metric_runs) if args.metric_runs else None
    together = totals(runs)
    if args.report:
        args.report.parent.mkdir(parents=True, exist_ok=True)
        known = {**about(), "total": together, "metric": metric, "runs": [asdict(run) for run in runs]}
        args.report.write_text(json.dumps(known, indent=1) + "\n")
    print(json.dumps(together, indent=1))
    failed = [run.seed for run in runs if run.failure]
    never = [p for p in faults.POINTS if not any(p in run.points_hit for run in runs)]
    if never:
        print(f"fault points never hit: {', '.join(never)}")
    print(f"{len(runs) - len(failed)} passed, {len(failed)} failed")
    # A few runs cannot hit every point; as many as arm each of them several times must.
    incomplete = bool(never) and len(runs) >= 2 * len(faults.POINTS)
    return 1 if failed or incomplete or (metric is not None and not metric["within"]) else 0


if __name__ == "__main__":
    sys.exit(main())
