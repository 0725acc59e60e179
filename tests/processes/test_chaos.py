"""A slice of the seeded chaos runs, and `elasticdl chaos` beside a real job."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from elasticdl import faults
from tests.processes.chaos import PASSES, Setting, chaos_run
from tests.processes.harness import ROOT, check_witness, start_witness

pytestmark = pytest.mark.processes


def test_every_fault_point_there_is_is_armed_by_some_seed() -> None:
    assert set(PASSES) == set(faults.POINTS)
    armed = {point.partition("@")[0] for seed in range(7) for point in Setting.of(seed).points}
    assert armed == set(faults.POINTS)


@pytest.mark.parametrize("seed", [3])  # `make test-chaos` runs a hundred
def test_a_disturbed_job_trains_every_record_exactly_once_and_leaves_nothing_behind(tmp_path: Path, seed: int) -> None:
    run = chaos_run(tmp_path, seed, print)
    assert sum(n for kinds in run.delivered.values() for n in kinds.values()) >= 3, "hardly anything was delivered"


def test_the_command_pauses_replicas_and_wakes_them_then_cuts_connections_and_reports(tmp_path: Path) -> None:
    job = start_witness(tmp_path, "cut", "--audit=true", records=8000, epochs=2)
    job.wait_until(lambda s: True)  # there is a master
    command = [sys.executable, "-m", "elasticdl", "chaos", "cut", f"--state_dir={tmp_path / 'state'}", "--seed=2"]
    pausing = [*command, "--kind=pause", "--every=0.3", "--spare=master", "--spare=ps"]
    with subprocess.Popen(pausing, cwd=ROOT, stdout=subprocess.PIPE, text=True) as pauses:
        assert pauses.stdout is not None
        lines = iter(pauses.stdout.readline, "")
        assert any("paused (SIGSTOP) for" in line for line in lines)
        pauses.send_signal(signal.SIGTERM)
        assert "No more faults; cut continues." in pauses.stdout.read()
        assert pauses.wait(60) == 128 + signal.SIGTERM
    assert not [name for name, process in job.replicas().items() if process.status() == psutil.STATUS_STOPPED]
    cutting = [*command, "--events=4", "--kind=cut", f"--report={tmp_path / 'report.json'}"]
    done = subprocess.run(cutting, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{job.story()}"
    assert done.stdout.count("lost its ") == 4
    assert "each trained exactly 2 times" in done.stdout
    status = check_witness(job, tmp_path / "cut-model", 8000, 2, 2)
    assert not status.get("losses") and not status.get("rollbacks"), "a cut connection cost a replica"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["passed"] and [d["kind"] for d in report["deliveries"]] == ["cut"] * 4
