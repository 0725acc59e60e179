"""What the master does to the disk: a checkpoint appears at once or not at all, and goes at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from elasticdl.core.commands import LaunchReplica, PublishCheckpoint
from elasticdl.core.plan import BadRecord, EpochDone, Position
from elasticdl.core.steps import StepPlan
from elasticdl.files import MANIFEST
from elasticdl.master.actions import Actions
from elasticdl.master.checkpoint_folder import CheckpointFolder
from elasticdl.master.side import Program
from elasticdl.ps.snapshot import read_manifest
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.strategies.allreduce.core.saves import Save
from elasticdl.strategies.allreduce.core.terms import AllreduceTerms
from elasticdl.strategies.allreduce.master import AllreduceSide
from elasticdl.strategies.parameter_servers.master import ParameterServerSide
from tests.master.replicas import DATA, job_spec
from tests.master.sides import context

AT = Position(40, (0, 5), {"train/0/4": (1, 2)}, {0: EpochDone(40, 320)})


def publish(home: Path, command: PublishCheckpoint, bad_records: Sequence[BadRecord] = (), job: str = "j") -> str:
    asked = context(home, job_name=job, checkpoint_dir=str(home))
    side = ParameterServerSide(ParameterServerSide.begin(asked.spec, DATA, 0), asked)
    side.machine.shards.searches.bad_records = list(bad_records)
    return side.publish(command)


def parts(home: Path, cut: int, job: str = "j", text: str = "rows") -> Path:
    """What servers leave behind for the master."""
    partial = Path(CheckpointFolder(str(home), job).partial(cut))
    partial.mkdir(parents=True)
    (partial / "ps-0-of-1.0.safetensors").write_text(text)
    return partial


def command(cut: int, at: Position = AT) -> PublishCheckpoint:
    return PublishCheckpoint(cut, at, (("elasticdl-j-ps-0", json.dumps([FILE])),), lasting=True)


FILE = {"name": "ps-0-of-1.0.safetensors", "bytes": 4, "crc32c": 7}


def test_a_checkpoint_says_where_in_the_data_it_stands(tmp_path: Path) -> None:
    parts(tmp_path, 3)
    assert publish(tmp_path, command(3), [BadRecord(7, "record 7 of a", "ValueError")]) == str(tmp_path / "version-40")
    manifest = read_manifest(tmp_path / "version-40")
    assert (manifest["cut"], manifest["version"], manifest["next"]) == (3, 40, (0, 5))
    assert manifest["open"] == {"train/0/4": (1, 2)} and manifest["done"] == {"0": (40, 320)}
    assert manifest["files"] == {"elasticdl-j-ps-0": [FILE]}
    assert manifest["bad_records"] == [(7, "record 7 of a", "ValueError")]
    assert [p.name for p in tmp_path.iterdir()] == ["version-40"]


def test_asked_again_by_the_next_master_it_is_the_same_checkpoint(tmp_path: Path) -> None:
    parts(tmp_path, 3)
    first = publish(tmp_path, command(3))
    inode = (tmp_path / "version-40" / MANIFEST).stat().st_ino
    assert publish(tmp_path, command(3)) == first
    assert (tmp_path / "version-40" / MANIFEST).stat().st_ino == inode


@pytest.mark.parametrize("died_at", ["the manifest's rename", "the folder's rename"])
def test_a_master_that_died_half_way_leaves_nothing_that_passes_for_a_checkpoint(tmp_path: Path, died_at: str) -> None:
    partial = parts(tmp_path, 3)
    (partial / (MANIFEST + ".partial")).write_text('{"cut": 3, "ver')
    if died_at == "the folder's rename":
        (partial / MANIFEST).write_text("{}")
    assert not list(tmp_path.glob("version-*"))
    publish(tmp_path, command(3))
    assert read_manifest(tmp_path / "version-40")["cut"] == 3


def test_a_checkpoint_of_a_version_that_was_reached_again_replaces_the_old_one(tmp_path: Path) -> None:
    parts(tmp_path, 3, text="of an older timeline")
    publish(tmp_path, command(3))
    parts(tmp_path, 9, text="of this one")
    publish(tmp_path, command(9))
    assert (tmp_path / "version-40" / FILE["name"]).read_text() == "of this one"  # type: ignore[operator]
    assert read_manifest(tmp_path / "version-40")["cut"] == 9
    assert [p.name for p in tmp_path.iterdir()] == ["version-40"]


def test_a_checkpoint_left_by_another_cut_is_not_taken_for_this_one(tmp_path: Path) -> None:
    parts(tmp_path, 3)
    publish(tmp_path, command(3))
    with pytest.raises(FileNotFoundError):  # this cut's parts are gone: it cannot be published
        publish(tmp_path, command(9))


def test_folders_of_cuts_that_were_given_up_go_with_the_next_checkpoint(tmp_path: Path) -> None:
    parts(tmp_path, 2)
    parts(tmp_path, 3)
    other = parts(tmp_path, 2, job="j2")
    publish(tmp_path, command(3))
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == sorted([other.name, "version-40"]), "another job's are none of its business"


def test_what_is_left_of_checkpoints_when_the_job_is_over_goes_and_those_stay(tmp_path: Path) -> None:
    parts(tmp_path, 3)
    publish(tmp_path, command(3))
    parts(tmp_path, 2)
    parts(tmp_path, 4)
    other = parts(tmp_path, 5, job="j2")
    CheckpointFolder(str(tmp_path), "j").sweep()
    CheckpointFolder(str(tmp_path / "never made"), "j").sweep()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([other.name, "version-40"])


STATE = {"name": "model.safetensors", "bytes": 4, "crc32c": 7}


def state(home: Path, cut: int, text: str = "rows") -> tuple[Path, PublishCheckpoint]:
    """What a worker of an all-reduce job leaves behind for the master, and what that is asked to do with it."""
    partial = Path(CheckpointFolder(str(home), "j").partial(cut))
    partial.mkdir(parents=True)
    (partial / "model.safetensors").write_text(text)
    part = json.dumps({"step": 40, "files": [STATE]})
    return partial, PublishCheckpoint(cut, AT, (("elasticdl-j-worker-0", part),), lasting=True)


def allreduce(home: Path) -> AllreduceSide:
    machine = AllreduceMachine.new(AllreduceTerms("j", 2, StepPlan(8, 4, 2, 1)))
    return AllreduceSide(machine, context(home, checkpoint_dir=str(home)))


def test_a_state_that_is_still_being_written_stays_when_a_later_one_is_published(tmp_path: Path) -> None:
    """The lasting ones are asked for long before they are due: others overtake them."""
    being_written, _ = state(tmp_path, 2)
    given_up, _ = state(tmp_path, 3)
    _, due = state(tmp_path, 4)
    side = allreduce(tmp_path)
    side.machine.saves.asked.append(Save(2, "elasticdl-j-worker-0", 50, lasting=True))
    side.publish(due)
    assert (being_written / "model.safetensors").exists() and not given_up.exists()


def test_a_state_that_is_not_whole_is_not_published(tmp_path: Path) -> None:
    partial, due = state(tmp_path, 1, text="row")
    with pytest.raises(OSError, match="does not have the 4 bytes that were written"):
        allreduce(tmp_path).publish(due)
    (partial / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        allreduce(tmp_path).publish(due)
    assert not (tmp_path / "version-40").exists() and not (partial / MANIFEST).exists()


def test_two_jobs_may_share_a_folder_for_their_checkpoints(tmp_path: Path) -> None:
    """As long as they do not stand at the same version; each publishes and cleans up its own."""
    parts(tmp_path, 1)
    parts(tmp_path, 1, job="other")
    publish(tmp_path, command(1))
    later = Position(41, (0, 5), {}, {0: EpochDone(41, 328)})
    publish(tmp_path, command(1, later), job="other")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["version-40", "version-41"]


def test_checkpoints_are_deleted_from_one_moment_to_the_next(tmp_path: Path) -> None:
    for cut, version in ((1, 40), (2, 50)):
        parts(tmp_path, cut)
        publish(tmp_path, command(cut, Position(version)))
    CheckpointFolder(str(tmp_path), "j").delete((str(tmp_path / "version-40"), str(tmp_path / "version-7")))
    assert [p.name for p in tmp_path.iterdir()] == ["version-50"], "one that is not there is no trouble"


def test_a_deletion_that_was_interrupted_is_not_in_the_way_of_the_next(tmp_path: Path) -> None:
    (tmp_path / "version-40.gone").mkdir()
    (tmp_path / "version-40.gone" / "left").write_text("over")
    parts(tmp_path, 3)
    publish(tmp_path, command(3))
    CheckpointFolder(str(tmp_path), "j").delete((str(tmp_path / "version-40"),))
    assert list(tmp_path.iterdir()) == []


OURS = {
    "ELASTICDL_JOB_FILE": "/tmp/elasticdl-master-x/job.json", "ELASTICDL_TOKEN": "t", "MASTER_ADDR": "m:50001",
    "ELASTICDL_TLS_CERT": "certificate", "ELASTICDL_TLS_KEY": "key", "ELASTICDL_DATA_KEY": "public",
    "ELASTICDL_DATA_SECRET": "secret", "MY_POD_IP": "10.0.0.9", "AWS_REGION": "somewhere", "OMP_NUM_THREADS": "64",
}  # fmt: skip


def run(role: str, index: int) -> tuple[LaunchReplica, Program]:
    asked = context()
    side = ParameterServerSide(ParameterServerSide.begin(asked.spec, DATA, 0), asked)
    return LaunchReplica(role, index, "initial"), side.program(role)


def in_pods(home: Path, **knobs: object) -> Actions:
    given = {"runtime": "kubernetes", "image_name": "i:1", "worker_resource_limit": "cpu=1.5,memory=1Gi", **knobs}
    return Actions(job_spec(home, **given), DATA, str(home), OURS)


def test_a_pod_runs_its_own_images_python_finds_the_job_in_its_config_and_has_the_threads_of_its_limit(
    tmp_path: Path,
) -> None:
    request = in_pods(tmp_path).request(*run("worker", 3))
    assert request.command == ("python", "-m", "elasticdl.worker")
    assert request.env["ELASTICDL_JOB_FILE"] == "/etc/elasticdl/job.json"
    assert (request.env["MASTER_ADDR"], request.env["WORKER_ID"]) == ("m:50001", "3")
    assert request.env["OMP_NUM_THREADS"] == "2", "whatever the master's own are"
    assert in_pods(tmp_path, envs="OMP_NUM_THREADS=3").request(*run("worker", 3)).env["OMP_NUM_THREADS"] == "3"


def test_a_workers_heap_is_in_huge_pages_unless_it_is_tuned_already(tmp_path: Path) -> None:
    local, tuned = ({"MASTER_ADDR": "m:1", **more} for more in ({}, {"GLIBC_TUNABLES": "glibc.malloc.check=1"}))
    worker = Actions(job_spec(tmp_path), DATA, str(tmp_path), local).request(*run("worker", 0))
    assert worker.env["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert "GLIBC_TUNABLES" not in Actions(job_spec(tmp_path), DATA, str(tmp_path), local).request(*run("ps", 0)).env
    assert (
        "GLIBC_TUNABLES" not in Actions(job_spec(tmp_path), DATA, str(tmp_path), tuned).request(*run("worker", 0)).env
    )
    own = in_pods(tmp_path, envs="GLIBC_TUNABLES=glibc.malloc.check=3").request(*run("worker", 0))
    assert own.env["GLIBC_TUNABLES"] == "glibc.malloc.check=3"
    assert in_pods(tmp_path).request(*run("worker", 0)).env["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"


def test_a_worker_gets_the_keys_to_speak_and_only_servers_and_the_master_those_to_be_spoken_to(tmp_path: Path) -> None:
    worker, server = (in_pods(tmp_path).request(*run(role, 0)).env for role in ("worker", "ps"))
    assert (worker["ELASTICDL_TOKEN"], worker["ELASTICDL_TLS_CERT"], worker["ELASTICDL_DATA_KEY"]) == (
        "t", "certificate", "public",
    )  # fmt: skip
    assert not {"ELASTICDL_TLS_KEY", "ELASTICDL_DATA_SECRET"} & worker.keys()
    assert server["ELASTICDL_DATA_SECRET"] == "secret" and "ELASTICDL_TLS_KEY" not in server


def test_the_master_hands_on_what_populate_env_names_says_but_never_a_secret(tmp_path: Path) -> None:
    env = in_pods(tmp_path, populate_env_names=".*").request(*run("worker", 0)).env
    assert env["AWS_REGION"] == "somewhere"
    assert not {"ELASTICDL_TLS_KEY", "ELASTICDL_DATA_SECRET", "MY_POD_IP"} & env.keys()
    assert "AWS_REGION" not in in_pods(tmp_path, populate_env_names="AWS").request(*run("worker", 0)).env
    assert "AWS_REGION" not in in_pods(tmp_path).request(*run("worker", 0)).env
