"""The pieces of the launcher: names and their locks, ports, signals, followed files, the command to go on with."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.cli.flags import read_request
from elasticdl.cli.interrupts import Interrupts
from elasticdl.cli.job_dir import claim
from elasticdl.cli.local_job import look
from elasticdl.cli.resume import command_line, resume_command
from elasticdl.cli.tail import Changes, LogReader
from elasticdl.errors import UsageError
from elasticdl.files import checksum
from elasticdl.job.names import JobPaths
from elasticdl.job.spec import JobSpec
from elasticdl.master import preflight
from tests.cli.launched import write_manifest

# Names.


def test_a_claimed_name_is_running_until_it_is_released(tmp_path: Path) -> None:
    held = claim(JobPaths(tmp_path, "j"))
    held.begin("{}")
    assert look(held.paths).state == "running"
    assert look(held.paths).pid == os.getpid()
    held.release()
    assert look(held.paths).state == "died"  # it left no result


def test_a_name_that_is_taken_says_since_when_and_by_which_process(tmp_path: Path) -> None:
    held = claim(JobPaths(tmp_path, "j"))
    with pytest.raises(UsageError, match=rf"job j is running since 2.*\(process {os.getpid()}\)"):
        claim(JobPaths(tmp_path, "j"))
    held.release()


def test_the_lock_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    program = (
        "import sys, os; from pathlib import Path; from elasticdl.cli.job_dir import claim; "
        "from elasticdl.job.names import JobPaths; c = claim(JobPaths(Path(sys.argv[1]), 'j')); c.begin('{}'); "
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert look(JobPaths(tmp_path, "j")).running
    process.kill()
    process.communicate()
    assert look(JobPaths(tmp_path, "j")).state == "died"


def test_a_job_that_never_began_leaves_no_folder(tmp_path: Path) -> None:
    claim(JobPaths(tmp_path, "j")).release()
    assert list(tmp_path.iterdir()) == []


def test_using_a_name_again_keeps_one_earlier_state(tmp_path: Path) -> None:
    paths = JobPaths(tmp_path, "j")
    for number in range(3):
        held = claim(paths)
        held.begin(json.dumps({"run": number}))
        paths.checkpoint.mkdir(exist_ok=True)
        (paths.checkpoint / f"of-run-{number}").touch()
        held.release()
    assert json.loads(paths.job_file.read_bytes()) == {"run": 2}
    assert json.loads((paths.root / "previous" / "job.json").read_bytes()) == {"run": 1}
    assert [p.name for p in (paths.root / "previous" / "checkpoint").iterdir()] == ["of-run-1"]


def test_a_checkpoint_to_start_from_stays_where_the_user_said_it_is(tmp_path: Path) -> None:
    paths = JobPaths(tmp_path, "j")
    held = claim(paths)
    held.begin("{}")
    (paths.checkpoint / "version-3").mkdir(parents=True)
    held.release()
    held = claim(paths)
    held.begin("{}", kept=paths.checkpoint / "version-3")
    held.release()
    assert (paths.checkpoint / "version-3").is_dir()


# Ports.


def test_a_reserved_port_is_shared_with_the_master_only(tmp_path: Path) -> None:
    kept, problems = preflight.reserve_port(0)
    assert kept is not None and problems == []
    port = kept.getsockname()[1]
    with socket.socket() as stranger, pytest.raises(OSError):
        stranger.bind(("127.0.0.1", port))
    for _ in range(2):  # one master, and the next one
        with socket.socket() as master:
            master.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            master.bind(("127.0.0.1", port))
            master.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                master.accept()[0].close()
    kept.close()


def test_the_port_of_another_jobs_master_is_refused_although_it_could_be_shared() -> None:
    other, _ = preflight.reserve_port(0)
    assert other is not None
    kept, problems = preflight.reserve_port(other.getsockname()[1])
    assert kept is None
    assert "this port cannot be used" in str(problems[0])
    other.close()


# Folders.


def spec_of(*words: str) -> JobSpec:
    usual = ["--model_def=a.custom_model", "--training_data=d", "--job_name=j", "--state_dir=/s"]
    return read_request([*usual, *words], "train").resolved.require()


def test_an_exported_model_may_be_written_over_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": "elasticdl-export/1"}')
    problems, notes = preflight.check_output(spec_of(f"--output={tmp_path}"))
    assert problems == []
    assert "which the new one will replace" in notes[0]


def test_the_newest_complete_checkpoint_of_a_folder_is_taken(tmp_path: Path) -> None:
    for version in (9, 80, 100):
        (tmp_path / f"version-{version}").mkdir()
    for version in (9, 80):  # the newest was never finished
        write_manifest(tmp_path / f"version-{version}", {})
    (tmp_path / "j.cut-101.partial").mkdir()
    (tmp_path / "version-110.gone").mkdir()
    write_manifest(tmp_path / "version-110.gone", {})  # while it was being deleted
    found, problems, notes = preflight.find_checkpoint(spec_of(f"--checkpoint_dir_for_init={tmp_path}"))
    assert (found, problems, notes) == (tmp_path / "version-80", [], [])


def with_part(checkpoint: Path, text: bytes) -> Path:
    """A checkpoint with one part that is as it was written."""
    checkpoint.mkdir()
    part = checkpoint / "ps-0-of-1.0.safetensors"
    part.write_bytes(text)
    write_manifest(checkpoint, {"ps-0": [{"name": part.name, "bytes": len(text), "crc32c": checksum(part)}]})
    return part


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before_it_and_that_is_said(tmp_path: Path) -> None:
    parts = [with_part(tmp_path / f"version-{v}", b"rows") for v in (9, 80, 100)]
    parts[2].write_bytes(b"rowz")
    parts[1].write_bytes(b"row")
    found, problems, notes = preflight.find_checkpoint(spec_of(f"--checkpoint_dir_for_init={tmp_path}"))
    assert (found, problems) == (tmp_path / "version-9", [])
    assert notes == [
        f"{parts[2]}: this part of the checkpoint is damaged: its checksum is wrong. Using the previous checkpoint.",
        f"{parts[1]}: this part of the checkpoint has 3 bytes, not 4. Using the previous checkpoint.",
    ]


def test_a_folder_with_only_damaged_checkpoints_is_refused_and_each_is_named(tmp_path: Path) -> None:
    for version in (9, 80):
        with_part(tmp_path / f"version-{version}", b"rows").unlink()
    found, problems, notes = preflight.find_checkpoint(spec_of(f"--checkpoint_dir_for_init={tmp_path}"))
    assert found is None and notes == []
    assert ["version-80" in p.what for p in problems] == [True, False], [p.what for p in problems]


def test_a_checkpoint_that_is_named_outright_is_taken_or_refused_and_no_other(tmp_path: Path) -> None:
    with_part(tmp_path / "version-9", b"rows")
    part = with_part(tmp_path / "version-80", b"rows")
    flag = f"--checkpoint_dir_for_init={tmp_path / 'version-80'}"
    assert preflight.find_checkpoint(spec_of(flag)) == (tmp_path / "version-80", [], [])
    part.write_bytes(b"rowz")
    found, (problem,), notes = preflight.find_checkpoint(spec_of(flag))
    assert found is None and notes == [] and "its checksum is wrong" in problem.what


# The command to go on with.


def test_the_command_line_of_a_job_resolves_to_the_same_job_and_repeats_no_default() -> None:
    words = ["--num_workers=3", "--envs=A=1,B=x y", "--minibatch_size=64", "--data_reader_params=sep=,; quote=1"]
    spec = spec_of(*words)
    line = command_line(spec)
    command, *flags = shlex.split(line)[1:]
    assert read_request(flags, command).resolved.require() == spec
    for derived in ("--runtime", "--use_async", "--num_ps_pods", "--checkpoint_dir", "--minibatch_size"):
        assert derived not in line


def test_the_command_to_go_on_names_the_checkpoint_once() -> None:
    line = resume_command(spec_of("--checkpoint_dir_for_init=/old"), Path("/s/j/checkpoint/version-5"))
    assert line.count("--checkpoint_dir_for_init") == 1
    assert "--checkpoint_dir_for_init=/s/j/checkpoint/version-5" in line


def test_the_command_to_go_on_in_a_cluster_names_the_cluster_and_the_namespace() -> None:
    words = ["--image_name=zoo:1", "--namespace=default", "--volume=claim_name=c,mount_path=/data"]
    spec = spec_of(*words, "--runtime=kubernetes")
    line = resume_command(spec, Path("/data/version-5"), "far")
    command, *flags = shlex.split(line)[1:]
    assert "--context=far" in flags
    assert "--namespace=default" in flags, "which is not the usual one everywhere"
    request = read_request(flags, command)
    assert request.context == "far"
    assert request.resolved.require() == spec.with_values(checkpoint_dir_for_init="/data/version-5")
    assert "--context" not in resume_command(spec_of(), Path("/s/version-5"), "far"), "of no use on this machine"


# Signals.


@pytest.mark.parametrize(
    ("signals", "second", "code"),
    [
        ([signal.SIGINT], False, 130),
        ([signal.SIGTERM], False, 143),
        ([signal.SIGINT, signal.SIGINT], True, 130),
        ([signal.SIGTERM, signal.SIGINT], True, 143),
        ([signal.SIGQUIT], True, 131),
    ],
)
def test_the_first_signal_asks_and_the_second_insists(signals: list[signal.Signals], second: bool, code: int) -> None:
    async def send() -> Interrupts:
        with Interrupts() as interrupts:
            for number in signals:
                os.kill(os.getpid(), number)
                await asyncio.wait_for(interrupts.first.wait(), 5)
                await asyncio.sleep(0)
            if second:
                await asyncio.wait_for(interrupts.second.wait(), 5)
        return interrupts

    interrupts = asyncio.run(send())
    assert interrupts.first.is_set()
    assert interrupts.second.is_set() == second
    assert interrupts.exit_code == code


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    async def enter() -> bool:
        with Interrupts():
            return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert asyncio.run(enter())
    finally:
        signal.signal(signal.SIGHUP, before)


# Files that grow.


def test_lines_are_given_whole_and_once(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    reader = LogReader(path)
    assert list(reader.new_lines()) == []
    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert list(reader.new_lines()) == ["one"]
        file.write("o\nthree")
        file.flush()
        assert list(reader.new_lines()) == ["two"]
    assert list(reader.last_line()) == ["three"]
    assert list(reader.last_line()) == []


def test_who_waits_for_changes_hears_of_new_files_and_of_growing_ones(tmp_path: Path) -> None:
    async def listen() -> None:
        with Changes(tmp_path) as changes:
            for mode in ("x", "a"):
                waiting = asyncio.create_task(changes.wait())
                await asyncio.sleep(0)
                with (tmp_path / "a.log").open(mode) as file:
                    file.write("line\n")
                await asyncio.wait_for(waiting, 5)

    asyncio.run(listen())
