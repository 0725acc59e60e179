"""When the launcher dies for any reason, no process that it started remains."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from elasticdl.cluster import exec_shim

pytestmark = pytest.mark.processes

REPOSITORY = Path(__file__).resolve().parents[2]


class Launcher:
    """A launcher in its own process, with all processes under it."""

    def __init__(self, directory: Path) -> None:
        self._ready = [directory / f"w-{index}.ready" for index in range(2)]
        for path in self._ready:
            os.mkfifo(path)
        command = [sys.executable, str(Path(__file__).with_name("launcher_program.py")), str(directory)]
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self.process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE)
        for path in self._ready:
            _wait_readable(path)
        self.tree = psutil.Process(self.process.pid).children(recursive=True)
        leaders = [process for process in self.tree if process.ppid() == self.process.pid]
        self.guard = next(process for process in leaders if "guard_process.py" in " ".join(process.cmdline()))
        self.replicas = [process for process in leaders if process != self.guard]

    def next_message(self, deadline_seconds: float = 10) -> bytes:
        assert self.process.stderr is not None
        assert select.select([self.process.stderr], [], [], deadline_seconds)[0], "the launcher says nothing"
        return self.process.stderr.readline()

    def die(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(10)


def _wait_readable(path: Path, deadline_seconds: float = 20) -> None:
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        assert select.select([fd], [], [], deadline_seconds)[0], f"nothing came through {path}"
    finally:
        os.close(fd)


def still_alive(processes: list[psutil.Process], deadline_seconds: float = 10) -> list[psutil.Process]:
    """The processes that have not ended by the deadline; a zombie has ended."""
    return [process for process in processes if not _ended(process, deadline_seconds)]


def _ended(process: psutil.Process, deadline_seconds: float) -> bool:
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], deadline_seconds)[0])
    finally:
        os.close(fd)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    for process in [*launcher.tree, psutil.Process(launcher.process.pid)] if launcher.process.poll() is None else []:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    launcher.process.wait(10)
    assert launcher.process.stderr is not None
    launcher.process.stderr.close()


def test_the_tree_of_the_test_has_grandchildren(launcher: Launcher) -> None:
    assert len(launcher.replicas) == 2
    assert len(launcher.tree) > 2 * 4  # per replica: the shell, its child, two sub-shells with a child each


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_killed_launcher_takes_every_replica_and_its_descendants_along(
    launcher: Launcher, number: signal.Signals
) -> None:
    launcher.die(number)
    assert still_alive(launcher.tree) == []


def test_without_the_guard_the_kernel_still_ends_the_replicas(launcher: Launcher) -> None:
    launcher.guard.suspend()
    launcher.die(signal.SIGKILL)
    assert still_alive(launcher.replicas) == []
    launcher.guard.resume()
    assert still_alive(launcher.tree) == []


def test_a_guard_that_was_killed_is_replaced_and_knows_every_group(launcher: Launcher) -> None:
    launcher.guard.kill()
    assert b"Restarted the guard process" in launcher.next_message()
    parent = psutil.Process(launcher.process.pid)
    known = {process.pid for process in launcher.tree}
    new = [process for process in parent.children() if process.pid not in known]
    assert len(new) == 1
    launcher.die(signal.SIGKILL)
    assert still_alive([*launcher.tree, *new]) == []


def test_the_guard_ignores_polite_signals(launcher: Launcher) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        launcher.guard.send_signal(number)
    launcher.die(signal.SIGKILL)
    assert still_alive(launcher.tree) == []


def test_a_replica_whose_launcher_died_before_it_was_tied_to_it_does_not_start(tmp_path: Path) -> None:
    shim = [sys.executable, "-I", "-S", exec_shim.__file__]
    stranger = str(os.getppid())  # any process that is not the shim's parent
    done = subprocess.run([*shim, stranger, "-", "-", "touch", str(tmp_path / "ran")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "the launcher is gone" in done.stderr
    assert not (tmp_path / "ran").exists()
