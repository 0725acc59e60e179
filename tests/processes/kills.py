"""Seeded runs that kill random workers (and masters) of a witness job, audited at the end.

    python -m tests.processes.kills --runs 20 --master_runs 5 --report FILE

kills at random points of the job's progress, not of time: after each kill the job goes on, slower or not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from elasticdl.wire import control_pb2 as pb
from tests.processes.harness import RunningJob, about, check_witness, end_all, start_witness

RECORDS, EPOCHS = 8000, 2  # some ten seconds of training, so that there is something to kill


@dataclass
class Report:
    seed: int
    workers_killed: int
    masters_killed: int
    master_starts: int
    replaced: int
    recovery_seconds: list[float]
    seconds: float
    records: int


def kill_run(tmp: Path, seed: int, worker_kills: int, master_kills: int) -> Report:
    """One job; raises when it fails, hangs, or trained any record another number of times than it should."""
    random = Random(seed)
    servers, workers = random.choice([1, 2, 3]), random.choice([2, 3])
    job_name = f"kills-{seed}"
    began = time.monotonic()
    job = start_witness(tmp, job_name, records=RECORDS, epochs=EPOCHS, servers=servers, workers=workers)
    for role, records in schedule(random, worker_kills, master_kills):
        deliver(job, role, records, random)
    status = check_witness(job, tmp / f"{job_name}-model", RECORDS, EPOCHS, servers)
    masters = [name for name in job.kills if name.endswith("-master")]
    workers = len(job.kills) - len(masters)
    assert int(status["master_starts"]) == 1 + len(masters)
    assert int(status.get("losses", 0)) == workers, "killed workers were not missed"
    return Report(
        seed, workers, len(masters), int(status["master_starts"]), int(status.get("losses", 0)),
        [round(s, 3) for s in status.get("recovery_seconds", [])], round(time.monotonic() - began, 1),
        int(status["records_done"]),
    )  # fmt: skip


def schedule(random: Random, worker_kills: int, master_kills: int) -> list[tuple[str, int]]:
    """Replicas to kill, and after how many records: one at random in each of equal parts of the job's first 60 %."""
    roles = ["worker"] * worker_kills + ["master"] * master_kills
    random.shuffle(roles)
    part = 0.6 * RECORDS * EPOCHS / len(roles)
    return [(role, int((place + random.random()) * part)) for place, role in enumerate(roles)]


def deliver(job: RunningJob, role: str, records: int, random: Random) -> None:
    """Kill one replica once so many records are trained; one that is dead already does not count."""

    def killed(status: pb.Status) -> bool:
        if status.records_done < records:
            return False
        if role == "master":
            return job.kill(f"elasticdl-{job.paths.job_name}-master")
        return job.kill_training_worker(status, random.choice)

    job.wait_until(killed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--master_runs", type=int, default=5)
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    reports = []
    plan = [(seed, 0) for seed in range(args.runs)] + [(1000 + seed, 2) for seed in range(args.master_runs)]
    for place, (seed, masters) in enumerate(plan, 1):
        with tempfile.TemporaryDirectory() as tmp:
            try:
                report = kill_run(Path(tmp), seed, worker_kills=4, master_kills=masters)
            finally:
                end_all()
        reports.append(report)
        print(f"{place}/{len(plan)} {report}", flush=True)
    if args.report:
        known = {
            **about(),
            "records_per_run": RECORDS * EPOCHS,
            "workers_killed": sum(r.workers_killed for r in reports),
            "masters_killed": sum(r.masters_killed for r in reports),
            "runs": [asdict(r) for r in reports],
        }
        args.report.parent.mkdir(parents=True, exist_ok=True)
        args.report.write_text(json.dumps(known, indent=1) + "\n")
    print(f"{len(reports)} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
