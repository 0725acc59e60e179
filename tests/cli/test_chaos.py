"""`elasticdl chaos`: its schedule, the connections it cuts, its signals, what it refuses and what it reports."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from elasticdl.cli.chaos import connections, processes
from elasticdl.cli.chaos.command import add_arguments, line_of, plan_of
from elasticdl.cli.chaos.report import Delivery, Report
from elasticdl.cli.chaos.schedule import LAST_SHARE, ROLES, Kind, Plan, Timing
from elasticdl.cli.main import main
from elasticdl.job.names import ENV_JOB_FILE, ENV_REPLICA, JobPaths

# Talks to itself over TCP, tells the ports, and says when its connection ends.
TALKER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
connection = socket.create_connection(listener.getsockname())
accepted, _ = listener.accept()
print(listener.getsockname()[1], connection.getsockname()[1], flush=True)
print(connection.recv(1), accepted.recv(1), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def talker(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    env = {**os.environ, ENV_REPLICA: "elasticdl-j-worker-0", ENV_JOB_FILE: str(JobPaths(tmp_path, "j").job_file)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", TALKER], stdin=pipe, stdout=pipe, text=True, env=env) as process:
        assert process.stdout is not None
        listens, connected = map(int, process.stdout.readline().split())
        yield process, listens, connected
        process.kill()


# The schedule.


def test_a_seed_gives_the_same_schedule_again_and_another_seed_another_one() -> None:
    def schedule(seed: int) -> list[object]:
        return list(Plan(seed, Timing(20)).by_records(0, 10_000))

    assert schedule(3) == schedule(3)
    assert schedule(3) != schedule(4)


def test_the_nature_of_an_event_does_not_depend_on_how_many_there_are_or_on_the_clock() -> None:
    few = [event for _, event in Plan(7, Timing(3, every_seconds=2.0)).by_clock()]
    many = [event for _, event in Plan(7, Timing(9, every_seconds=50.0)).by_clock()]
    assert few == many[:3]


def test_events_are_spread_over_the_records_that_are_left() -> None:
    at = [records for records, _ in Plan(1, Timing(10)).by_records(2000, 10_000)]
    assert at == sorted(at)
    assert at[0] >= 2000 and at[-1] < LAST_SHARE * 10_000
    width = (LAST_SHARE * 10_000 - 2000) / 10
    assert [int((records - 2000) / width) for records in at] == list(range(10)), "not one in each tenth"


def test_spared_roles_are_left_alone_and_only_the_wanted_is_done() -> None:
    plan = Plan(0, Timing(200), roles=("ps",), kinds=(Kind.PAUSE, Kind.CUT))
    events = [event for _, event in plan.by_records(0, 10_000)]
    assert {event.role for event in events} == {"ps"}
    assert {event.kind for event in events} == {Kind.PAUSE, Kind.CUT}


def test_every_role_and_kind_comes_up_when_nothing_is_spared() -> None:
    events = [event for _, event in Plan(0, Timing(200)).by_records(0, 10_000)]
    assert {(event.role, event.kind) for event in events} == {(role, kind) for role in ROLES for kind in Kind}


def test_by_the_clock_events_end_after_the_seconds_and_pause_as_long_as_asked_on_average() -> None:
    times = [at for at, _ in Plan(5, Timing(every_seconds=2.0, seconds=2000.0)).by_clock()]
    assert times == sorted(times) and times[-1] <= 2000.0
    assert 800 < len(times) < 1200


def test_flags_say_whether_events_follow_the_progress_or_the_clock() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert plan_of(parser.parse_args(["j", "--seed", "4"])).timing == Timing(10)
    assert plan_of(parser.parse_args(["j", "--events", "3"])).timing == Timing(3)
    assert plan_of(parser.parse_args(["j", "--seconds", "60"])).timing == Timing(None, 5.0, 60.0)
    assert plan_of(parser.parse_args(["j", "--every", "2"])).timing == Timing(10, 2.0)
    spared = plan_of(parser.parse_args(["j", "--spare", "master", "--spare", "ps", "--kind", "cut"]))
    assert (spared.roles, spared.kinds) == (["worker"], [Kind.CUT])


# Connections and processes.


def test_a_connection_of_another_process_is_cut_for_both_its_ends(
    talker: tuple[subprocess.Popen[str], int, int],
) -> None:
    process, listens, connected = talker
    ends = [c for c in connections.established(process.pid) if c.ends[0][1] == connected]
    assert [c.ends[1] for c in ends] == [("127.0.0.1", listens)]
    assert connections.listening(process.pid).popitem()[1] == listens
    connections.cut(ends[0])
    assert process.stdout is not None
    assert process.stdout.readline() == "b'' b''\n"
    assert process.poll() is None, "the process itself was hurt"


def test_a_connection_that_is_not_the_one_meant_stays_whole(talker: tuple[subprocess.Popen[str], int, int]) -> None:
    process, _, connected = talker
    mine = next(c for c in connections.established(process.pid) if c.ends[0][1] == connected)
    other = connections.Connection(mine.pid, mine.fd, mine.inode + 1, mine.ends)
    with pytest.raises(OSError, match="another connection's by now"):
        connections.cut(other)
    assert mine in connections.established(process.pid)


def test_a_connection_through_a_socket_in_a_directory_is_found_from_both_sides_and_cut(tmp_path: Path) -> None:
    program = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(tmp_path / 's')!r}); print(s.recv(1))"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as client:
            served, _ = listener.accept()
            with served:
                pids = {"ps-0": ("ps", os.getpid()), "worker-0": ("worker", client.pid)}
                [of_worker] = connections.lines("worker-0", pids)
                [of_server] = connections.lines("ps-0", pids)
                assert str(of_worker) == "data connection to ps-0" and str(of_server) == "data connection to worker-0"
                connections.cut(of_worker.end)
                assert client.communicate(timeout=10)[0] == "b''\n"


def test_only_connections_between_replicas_are_lines_of_the_job(
    talker: tuple[subprocess.Popen[str], int, int],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as outgoing:
        accepted, _ = server.accept()
        with accepted:
            pids = {"elasticdl-j-worker-0": ("worker", talker[0].pid), "elasticdl-j-master": ("master", os.getpid())}
            assert connections.lines("elasticdl-j-worker-0", pids) == []
            assert outgoing.getpeername() == server.getsockname()


def test_addresses_are_read_as_the_kernel_writes_them() -> None:
    assert connections._address("0100007F:1F90") == ("127.0.0.1", 8080)
    assert connections._address("0000000000000000FFFF00000100007F:0050") == ("127.0.0.1", 80)
    assert connections._address("00000000000000000000000001000000:0050") == ("::1", 80)


def test_a_signal_goes_only_to_the_process_that_bears_the_name(
    talker: tuple[subprocess.Popen[str], int, int],
) -> None:
    process = talker[0]
    assert not processes.send(process.pid, "elasticdl-j-worker-1", signal.SIGKILL)
    assert process.poll() is None
    assert processes.send(process.pid, "elasticdl-j-worker-0", signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    assert not processes.send(process.pid, "elasticdl-j-worker-0", signal.SIGKILL)


def test_a_process_that_outlives_its_job_is_named_and_its_port_too(
    talker: tuple[subprocess.Popen[str], int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_END_SECONDS", 0.1)
    process, listens, _ = talker
    population = processes.Population(JobPaths(tmp_path, "j"), launcher_pid=0)
    population.note()
    assert asyncio.run(population.left()) == [f"elasticdl-j-worker-0 (process {process.pid})"]
    assert population.ports_left() == [listens]
    process.kill()
    process.wait()
    assert asyncio.run(population.left()) == []
    assert population.ports_left() == []


# The report and the command.


def _report(**changes: object) -> Report:
    deliveries = [
        Delivery(0, 0.0, 960, "ps-1", "ps", "pause", "for 1.8 s"),
        Delivery(1, 0.0, 3608, "worker-0", "worker", "kill", ""),
        Delivery(2, 0.0, 4504, "", "worker", "cut", "", "this user may not (no)"),
    ]
    report = Report("j", 1, deliveries)
    status = {
        "audit": "8000 records, each trained exactly 2 times", "losses": 1, "rollbacks": 2, "repeated_batches": "12",
        "recovery_seconds": [0.5, 1.5, 0.7], "master_starts": 1, "records_done": "16000",
    }  # fmt: skip
    report.conclude({"outcome": "succeeded", "reason": "all is trained", "status": status, "elapsed_seconds": 46})
    for name, value in changes.items():
        setattr(report, name, value)
    return report


def test_the_report_counts_what_was_delivered_and_what_the_job_made_of_it(tmp_path: Path) -> None:
    report = _report()
    assert report.passed
    rows = dict(report.rows())
    assert rows["faults"] == "2 delivered (seed 1)"
    assert rows["  ps"] == "1 pause" and rows["  worker"] == "1 kill"
    assert rows["  not delivered"] == "1: this user may not (no)"
    assert rows["rollbacks"] == "2, 12 batches trained again"
    assert rows["recovery"] == "median 0.70 s, longest 1.50 s"
    report.write(tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["passed"] is True and written["delivered"]["ps"]["pause"] == 1
    assert [d["not_delivered"] for d in written["deliveries"]] == ["", "", "this user may not (no)"]


def test_a_failed_job_or_an_orphan_or_an_open_port_does_not_pass() -> None:
    assert not _report(outcome="failed").passed
    assert not _report(outcome="stopped").passed
    assert not _report(orphans=["elasticdl-j-ps-0 (process 7)"]).passed
    assert not _report(ports_open=[4000]).passed


def test_a_job_that_was_not_audited_says_how_to_have_it_audited(capsys: pytest.CaptureFixture[str]) -> None:
    _report(audit="").show(Console(width=120))
    assert "not requested; start the job with --audit" in capsys.readouterr().out


def test_an_event_is_told_in_a_line() -> None:
    line = line_of(Delivery(0, 0.0, 4504, "worker-1", "worker", "cut", "data connection to ps-1"))
    assert line.endswith("at     4,504 records  worker-1    lost its data connection to ps-1")
    line = line_of(Delivery(0, 0.0, 4504, "", "ps", "kill", "", "no replica to hit"))
    assert line.endswith("at     4,504 records  ps          kill not delivered: no replica to hit")


def test_a_job_that_does_not_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "gone", "--state_dir", str(tmp_path)]) == 2
    assert "no such job" in capsys.readouterr().err
    paths = JobPaths(tmp_path, "gone")
    paths.root.mkdir()
    paths.launcher_pid.write_text("1 0.0\n")
    words = ["chaos", "gone", "--state_dir", str(tmp_path), "--report", str(tmp_path / "no" / "r.json")]
    spared = [word for role in ROLES for word in ("--spare", role)]
    assert main([*words, *spared]) == 2
    told = capsys.readouterr().err
    assert "gone: not running: it died" in told
    assert "no role is left to hit" in told
    assert "its directory does not exist" in told
