"""`elasticdl top`: what replicas use, as a table and for programs."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from elasticdl.cli.commands.top import Look, size, table
from elasticdl.cli.local_job import LocalJob
from elasticdl.cli.main import main
from elasticdl.cli.screen import make_console
from elasticdl.job.names import JobPaths
from elasticdl.job.spec import JobSpec
from elasticdl.wire import control_pb2 as pb
from tests.cli.launched import elasticdl, launched, write_ids


def looked_at(folder: Path) -> Look:
    """A job with a limit for its workers, of which one uses nearly all of it and the other has not said yet."""
    paths = JobPaths(folder, "mnist")
    paths.root.mkdir()
    spec = JobSpec.model_validate({"job_name": "mnist", "worker_resource_limit": "cpu=1,memory=512Mi"})
    paths.job_file.write_text(spec.to_json())
    status = pb.Status(job="mnist", phase="training", records_done=30, records_total=40, records_per_second=1234.5)
    for name, state in (("worker-0", "joined"), ("worker-1", "launched"), ("worker-2", "gone")):
        status.replicas.add(name=f"elasticdl-mnist-{name}", role="worker", state=state, leases=[f"{name} 1/8"])
    for name, cpu, mib in (("master", 0.05, 60), ("worker-0", 0.97, 500)):
        status.usage[f"elasticdl-mnist-{name}"].CopyFrom(pb.Usage(cpu=cpu, memory_bytes=mib << 20))
    return Look(LocalJob(paths, "running"), status)


def test_the_table_has_sums_and_limits_and_leaves_out_who_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_console().print(table([looked_at(tmp_path)]))
    header, *rows = [re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert header == ["REPLICA", "STATE", "CPU", "MEMORY", "DOING"]
    assert rows == [
        ["mnist", "training", "1.02", "560 MiB", "75%, 1,234 records/s"],
        ["master", "working", "0.05", "60 MiB"],
        ["worker-0", "working", "0.97 of 1", "500 MiB of 512 MiB", "worker-0 1/8"],
        ["worker-1", "starting", "–", "–", "worker-1 1/8"],
    ]


def test_programs_are_told_the_same(tmp_path: Path) -> None:
    found = looked_at(tmp_path).as_json()
    assert (found["name"], found["where"], found["cpu"]) == ("mnist", "here", pytest.approx(1.02))
    worker = found["replicas"][1]
    assert (worker["name"], worker["memory_bytes"], worker["memory_limit_bytes"]) == ("worker-0", 500 << 20, 512 << 20)
    assert found["replicas"][2]["cpu"] is None


def test_a_job_that_does_not_answer_is_a_row_that_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print(table([Look(LocalJob(JobPaths(tmp_path, "new"), "running"), None, "not there yet")]))
    assert capsys.readouterr().out.splitlines()[1].split() == ["new", "running", "–", "–", "not", "there", "yet"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (900, "900 B"), (1536, "1.5 KiB"), (60 << 20, "60 MiB"), (3 << 39, "1.5 TiB")]
)
def test_sizes_read_well(count: int, text: str) -> None:
    assert size(count) == text


def test_where_no_job_runs_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", f"--state_dir={tmp_path}"]) == 0
    assert capsys.readouterr().out == f"No jobs are running in {tmp_path}.\n"
    assert main(["top", "--json", f"--state_dir={tmp_path}"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.processes
def test_the_replicas_of_a_running_job_say_what_they_use(tmp_path: Path) -> None:
    data = write_ids(tmp_path / "ids", 2000)
    words = ("--num_workers=1", "--minibatch_size=4", "--num_epochs=200", "--worker_resource_limit=cpu=1,memory=4Gi")
    with launched(tmp_path / "jobs", "busy", data, *words) as job:
        job.wait_until_training()
        deadline = time.monotonic() + 30
        while True:  # each has spoken after two seconds
            done = elasticdl("top", "busy", "--json", state_dir=job.paths.state_dir)
            (found,) = json.loads(done.stdout)
            if all(replica["memory_bytes"] for replica in found["replicas"]):
                break
            assert time.monotonic() < deadline, found
        assert [r["name"] for r in found["replicas"]] == ["master", "ps-0", "worker-0"]
        worker = found["replicas"][-1]
        assert 0.02 < worker["cpu"] < 4.0
        assert 50 << 20 < worker["memory_bytes"] < worker["memory_limit_bytes"] == 4 << 30
        assert "worker-0" in elasticdl("top", state_dir=job.paths.state_dir).stdout
        assert elasticdl("stop", "busy", "--now", state_dir=job.paths.state_dir).returncode == 0
        job.wait()
