"""`elasticdl scale` on a job that trains: the numbers asked for are reached, every record is trained exactly once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.processes.harness import ROOT, RunningJob, audit_witness, start_witness

RECORDS, EPOCHS = 4000, 2


def scale(job: RunningJob, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elasticdl", "scale", job.paths.job_name, f"--state_dir={job.paths.state_dir}"]
    return subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)


def test_servers_and_workers_are_added_and_taken_away_while_training(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()  # until all is seen
    env = {"PEBBLE_SECONDS": "0.25", "PEBBLE_SLOW": str(tmp_path / "slow")}
    job = start_witness(tmp_path, "scaled", records=RECORDS, epochs=EPOCHS, servers=1, workers=2, env=env)
    job.wait_until(lambda s: s.records_done >= 200)
    for words, expected in (
        ((), "no change given"),
        (("--ps=0",), "a job needs at least one"),
        (("--ps=2000",), "1024 partitions"),
    ):
        done = scale(job, *words)
        assert done.returncode == 2 and expected in done.stderr, done
    done = scale(job, "--ps=3")
    assert (done.returncode, done.stdout) == (0, "scaled: 3 servers hold the model.\n"), job.story()
    assert len([name for name in job.replicas() if "-ps-" in name]) == 3
    assert job.kill("elasticdl-scaled-ps-1"), "one of the new servers"
    job.wait_until(lambda s: s.rollbacks == 1 and s.phase == "training")
    done = scale(job, "--ps=2", "--workers=1")
    assert (done.returncode, done.stdout) == (0, "scaled: 2 servers hold the model and 1 worker trains.\n"), job.story()
    (tmp_path / "slow").unlink()
    code, result = job.finish()
    assert code == 0, job.story()
    status = result["status"]
    assert isinstance(status, dict)
    assert (status["rollbacks"], status["servers"]) == (1, 2)
    audit_witness(tmp_path / "scaled-model", RECORDS, EPOCHS, servers=1)
    done = scale(job, "--ps=2")
    assert done.returncode == 2 and "not running: it succeeded" in done.stderr
