"""Parameter servers of real jobs killed with real signals: they come back, and every record counts exactly once."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from elasticdl.files import MANIFEST, verify
from elasticdl.ps.snapshot import read_manifest
from elasticdl.wire import control_pb2 as pb
from tests.processes.harness import RunningJob, check_witness, start, start_witness, write_ids

pytestmark = pytest.mark.processes

RECORDS, EPOCHS = 4000, 2


def ps(job: str, index: int) -> str:
    return f"elasticdl-{job}-ps-{index}"


def training_again(job: RunningJob, timeline: int) -> pb.Status:
    """The first status with progress on this timeline, or of a later one."""
    began = job.wait_until(lambda s: s.timeline >= timeline and s.phase == "training")
    return job.wait_until(lambda s: s.records_done > began.records_done or s.timeline > timeline)


def log_of(job: RunningJob, name: str, role: str = "master") -> str:
    return (job.paths.logs / f"elasticdl-{name}-{role}.log").read_text()


def test_servers_are_killed_alone_with_a_worker_and_before_a_master(tmp_path: Path) -> None:
    job = start_witness(tmp_path, "dying", "--checkpoint_seconds=0.5", records=RECORDS, epochs=EPOCHS, servers=2)
    job.wait_until(lambda s: s.records_done > 300 and job.kill(ps("dying", 0)))
    training_again(job, 2)
    job.wait_until(lambda s: job.kill_training_worker(s))
    assert job.kill(ps("dying", 1)), "at the same moment"
    training_again(job, 3)
    assert job.kill("elasticdl-dying-master"), "with checkpoints twice a second the servers are likely to write"
    status = check_witness(job, tmp_path / "dying-model", RECORDS, EPOCHS, 2)
    assert (int(status["timeline"]), int(status["losses"])) == (3, 3), job.story()
    left = [p.name for p in job.paths.checkpoint.glob("*")]
    assert left == [], "what was kept for the servers' sake goes with the job's success"


def test_a_server_killed_before_the_first_checkpoint_and_then_one_that_is_only_told_to_go(tmp_path: Path) -> None:
    """The first death costs everything since the beginning, the second not a batch: it is saved first."""
    job = start_witness(tmp_path, "alone", "--checkpoint_seconds=0", records=RECORDS, epochs=EPOCHS, servers=1)
    job.wait_until(lambda s: s.records_done > 300 and job.kill(ps("alone", 0)))
    lost = training_again(job, 2).repeated_batches
    assert lost > 30
    job.wait_until(lambda s: s.records_done > 600 and job.kill(ps("alone", 0), signal.SIGTERM))
    status = check_witness(job, tmp_path / "alone-model", RECORDS, EPOCHS, 1)
    assert (int(status["timeline"]), int(status["repeated_batches"])) == (3, lost)
    told = log_of(job, "alone")
    assert "to version 0 (the beginning)" in told
    assert "received SIGTERM; its part is saved" in told and "Continuing from version" in told


def damage(directory: Path) -> Path:
    """One bit of the newest part of the first server is not what it was."""
    name = next(iter(read_manifest(directory)["files"].values()))[-1]["name"]
    whole = bytearray((directory / name).read_bytes())
    whole[-1] ^= 1
    (directory / name).unlink()  # older checkpoints may share the file
    (directory / name).write_bytes(whole)
    return directory / name


def newest_first(directory: Path) -> list[Path]:
    found = [p for p in directory.glob("version-*") if p.name[8:].isdigit() and (p / MANIFEST).exists()]
    return sorted(found, key=lambda p: -int(p.name[8:]))


@pytest.mark.long
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_is_used(tmp_path: Path) -> None:
    home = tmp_path / "kept"
    flags = ("--checkpoint_steps=60", "--checkpoint_seconds=0", f"--checkpoint_dir={home}")
    job = start_witness(tmp_path, "damage", *flags, records=RECORDS, epochs=EPOCHS)
    job.wait_until(lambda s: len(newest_first(home)) >= 2 and job.kill(ps("damage", 0), signal.SIGSTOP))
    time.sleep(1.0)  # what all servers have written may still be published; nothing new can be
    newest, before, *_ = newest_first(home)
    part = damage(newest)
    job.replicas()[ps("damage", 0)].kill()
    status = check_witness(job, tmp_path / "damage-model", RECORDS, EPOCHS, 2)
    assert int(status["timeline"]) == 3, "one for the server, one for the checkpoint"
    told = log_of(job, "damage")
    damaged = f"version {newest.name[8:]} ({newest})"
    what = "this part of the checkpoint is damaged: its checksum is wrong"
    assert f"Cannot read the checkpoint of {damaged}: {part}: {what}" in told
    assert f"Rolling back from version {newest.name[8:]} to version {before.name[8:]} ({before})" in told
    for directory in newest_first(home):
        if directory != newest:
            verify(directory, [f for files in read_manifest(directory)["files"].values() for f in files])


@pytest.mark.long
def test_a_job_that_was_killed_with_everything_goes_on_with_another_number_of_servers(tmp_path: Path) -> None:
    home = tmp_path / "kept"
    job = start_witness(
        tmp_path, "first", "--checkpoint_steps=50", f"--checkpoint_dir={home}", records=RECORDS, epochs=1, servers=2
    )  # fmt: skip
    job.wait_until(lambda s: len(newest_first(home)) >= 2)
    job.end()  # launcher, master, servers and workers at once
    newest = newest_first(home)[0]
    partial = home / "first.cut-99.partial"
    partial.mkdir()  # what a server was writing just then
    again = start(tmp_path, "second", *_again(tmp_path, home, servers=3))
    status: dict[str, Any] = check_witness(again, tmp_path / "second-model", RECORDS, 1, 2)
    assert int(status["version"]) == RECORDS // 8
    assert f"Started timeline 1 at version {newest.name[8:]}" in log_of(again, "second", "ps-2")


def _again(tmp: Path, home: Path, servers: int) -> list[str]:
    """The same model and data, on other servers."""
    data = write_ids(tmp / f"ids-{RECORDS}", RECORDS)
    return [
        "--model_zoo=tests/models", "--model_def=witness.custom_model", f"--training_data={data}", "--num_epochs=1",
        "--minibatch_size=8", "--num_minibatches_per_task=4", f"--num_ps_pods={servers}", "--num_workers=2",
        "--aux_params=num_servers=2", f"--output={tmp / 'second-model'}", f"--checkpoint_dir_for_init={home}",
    ]  # fmt: skip
