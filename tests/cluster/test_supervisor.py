"""Local processes of the launcher: groups, logs, environment, exits, shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from elasticdl.cluster.protocol import EXIT_OUT_OF_MEMORY, Exit, ReplicaPhase, ReplicaRequest
from elasticdl.cluster.supervisor import Supervisor
from elasticdl.cluster.watch import on_exit_by_thread
from elasticdl.errors import Refused, UsageError

from .stages import ProcessStage

pytestmark = pytest.mark.processes

Run = Callable[..., None]


def shell(name: str, script: str, **more: object) -> ReplicaRequest:
    return ReplicaRequest(name, "worker", 0, ("sh", "-c", script), **{"env": {}, **more})  # type: ignore[arg-type]


def python(name: str, script: str, **more: object) -> ReplicaRequest:
    command = (sys.executable, "-c", script)
    return ReplicaRequest(name, "worker", 0, command, **{"env": {}, **more})  # type: ignore[arg-type]


async def end_of(supervisor: Supervisor, request: ReplicaRequest) -> Exit:
    await supervisor.launch(request)
    return await supervisor.wait(request.name)


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def take_exit_status(pid: int) -> None:
    os.waitpid(pid, 0)


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_each_replica_leads_a_session_and_group_of_its_own_and_has_no_input(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            script = "import os, sys; print(os.getpid(), os.getpgid(0), os.getsid(0), repr(sys.stdin.read()))"
            exit = await end_of(supervisor, python("w-0", script))
            pid, group, session, stdin = exit.last_lines[0].split()
            assert pid == group == session == str(supervisor.replicas()[0].pid)
            assert stdin == "''"

    run(story())


def test_when_a_replica_is_gone_so_is_everything_it_started(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            script = "sleep 600 & echo $!; (trap '' TERM; echo $$; sleep 600) & exit 3"
            exit = await end_of(supervisor, shell("w-0", script))
            assert exit.code == 3
            assert ended(int(exit.last_lines[0]))

    run(story())


def test_a_stop_signals_the_replica_alone_and_leaves_its_children_to_it(run: Run, tmp_path: Path) -> None:
    # A data loader killed under a worker that is saving its last step would turn a clean end into a crash.
    script = f"""
        (trap 'echo child got TERM' TERM; sleep 600 & wait) &
        child=$!
        trap 'echo asked; kill -0 $child && echo child lives; exit 0' TERM
        echo ready > {tmp_path}/w-0.ready
        wait $child
    """

    async def story() -> None:
        async with Supervisor(tmp_path / "logs") as supervisor:
            stage = ProcessStage(tmp_path, lambda: supervisor)
            stage.request("w-0")  # creates its pipes
            await supervisor.launch(shell("w-0", script))
            await stage.ready("w-0")
            await supervisor.stop("w-0", grace_seconds=20)
            exit = await supervisor.wait("w-0")
            stage.close()
            assert exit.code == 0
            assert exit.last_lines == ("asked", "child lives")

    run(story())


def test_both_streams_of_every_life_go_to_one_log_with_a_header_each(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path / "logs") as supervisor:
            first = await end_of(supervisor, shell("elasticdl-j-worker-0", "echo out; echo err >&2"))
            first_uid = supervisor.replicas()[0].uid
            second = await end_of(supervisor, shell("elasticdl-j-worker-0", "echo again"))
            lines = (tmp_path / "logs" / "elasticdl-j-worker-0.log").read_text().splitlines()
            assert lines[1:3] == ["out", "err"]
            assert lines[4:] == ["again"]
            assert all(line.startswith("==== elasticdl-j-worker-0 starts at ") for line in (lines[0], lines[3]))
            assert first_uid in lines[0]
            assert first.last_lines == ("out", "err")
            assert second.last_lines == ("again",)

    run(story())


def test_the_last_lines_of_a_long_log_are_whole_and_few(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            script = "import sys\nfor i in range(5000): print('line', i)\nsys.stdout.buffer.write(b'\\xff end')"
            exit = await end_of(supervisor, python("w-0", script))
            assert exit.last_lines == (*(f"line {i}" for i in range(4981, 5000)), "� end")

    run(story())


def test_a_killed_python_replica_loses_no_line(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            script = "import os, signal; print('last words'); os.kill(os.getpid(), signal.SIGKILL)"
            exit = await end_of(supervisor, python("w-0", script))
            assert (exit.signal, exit.last_lines) == (signal.SIGKILL, ("last words",))

    run(story())


def test_a_replica_gets_the_base_environment_and_its_own_and_nothing_else(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        base = {"PATH": os.environ["PATH"], "SHARED": "base", "MINE": "base"}
        async with Supervisor(tmp_path, environment=base) as supervisor:
            monkeypatch.setenv("SET_LATER", "1")
            await end_of(supervisor, shell("w-1", "true", env={"OTHERS": "1"}))
            exit = await end_of(supervisor, shell("w-0", "env", env={"MINE": "own = with spaces; $HOME"}))
            seen = dict(line.split("=", 1) for line in exit.last_lines)
            assert seen["SHARED"] == "base"
            assert seen["MINE"] == "own = with spaces; $HOME"
            own = {"PWD", "SHLVL", "_", "OLDPWD"}  # a shell's
            assert seen.keys() - own == {"PATH", "SHARED", "MINE", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER"}

    run(story())


def test_a_command_is_never_read_by_a_shell(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            words = ("a b", "$HOME", "`id`", "'", "--", "-c", "")
            script = "import sys; print(sys.argv[1:])"
            request = ReplicaRequest("w-0", "worker", 0, (sys.executable, "-c", script, *words), {})
            assert (await end_of(supervisor, request)).last_lines == (str(list(words)),)

    run(story())


def test_a_command_that_does_not_exist_ends_like_a_shell_would_and_says_so(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            exit = await end_of(supervisor, ReplicaRequest("w-0", "worker", 0, ("no-such-program",), {}))
            assert exit.code == 127
            assert exit.last_lines == ("cannot run 'no-such-program': No such file or directory",)
            exit = await end_of(supervisor, ReplicaRequest("w-1", "worker", 1, (str(tmp_path),), {}))
            assert exit.code == 126

    run(story())


def test_a_process_that_cannot_be_made_is_gone_with_the_reason(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            too_long_for_the_kernel = {"BIG": "x" * (1 << 20)}
            exit = await end_of(supervisor, shell("w-0", "true", env=too_long_for_the_kernel))
            assert (exit.code, exit.signal, exit.oom) == (None, None, False)
            assert exit.reason == "could not be started: Argument list too long"
            assert [status.phase for status in supervisor.replicas()] == [ReplicaPhase.GONE]
            assert (await end_of(supervisor, shell("w-0", "true"))).code == 0

    run(story())


def test_waiting_for_a_replica_that_never_was_is_refused(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            with pytest.raises(Refused, match="nobody"):
                await supervisor.wait("nobody")

    run(story())


def test_the_exit_code_for_memory_is_heard(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            exit = await end_of(supervisor, shell("w-0", f"exit {EXIT_OUT_OF_MEMORY}"))
            assert exit.oom
            assert exit.reason.startswith("out of memory: ")

    run(story())


def test_a_crash_in_native_code_leaves_a_stack_in_the_log(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            script = "import os, signal\ndef deep():\n    os.kill(os.getpid(), signal.SIGSEGV)\ndeep()"
            exit = await end_of(supervisor, python("w-0", script))
            assert exit.signal == signal.SIGSEGV
            assert any("in deep" in line for line in exit.last_lines)

    run(story())


HANGS = """
import ctypes, faulthandler, os, signal
faulthandler.register(signal.SIGUSR1, all_threads=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def where_it_hangs():
    open({ready!r}, "w").write("ready\\n")
    while True:
        {hang}
where_it_hangs()
"""
LOCKED = "ctypes.PyDLL(None).sleep(600)"  # holds the interpreter's lock: no other thread can run


@pytest.mark.parametrize("hang", ["os.kill(os.getpid(), signal.SIGSTOP)", LOCKED, "signal.pause()"])
def test_a_replica_that_hangs_leaves_its_stack_in_the_log_before_it_is_killed(
    run: Run, tmp_path: Path, hang: str
) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path / "logs") as supervisor:
            stage = ProcessStage(tmp_path, lambda: supervisor)
            stage.request("w-0")  # creates its pipes
            await supervisor.launch(python("w-0", HANGS.format(hang=hang, ready=f"{tmp_path}/w-0.ready")))
            await stage.ready("w-0")
            await supervisor.stop("w-0", 0.1)
            exit = await supervisor.wait("w-0")
            stage.close()
            assert exit.reason == "killed by SIGKILL: it did not end within 0.1 s of SIGTERM"
            assert any("most recent call first" in line for line in exit.last_lines)
            assert any("in where_it_hangs" in line for line in exit.last_lines)

    run(story())


def test_shutdown_ends_the_willing_and_the_stubborn_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        socket = tmp_path / "run" / "launcher.sock"
        supervisor = Supervisor(tmp_path / "logs", socket)
        await supervisor.start()
        stage = ProcessStage(tmp_path, lambda: supervisor)
        for index in range(3):
            await supervisor.launch(stage.request(f"willing-{index}"))
        await supervisor.launch(stage.request("stubborn", stubborn=True))
        for status in supervisor.replicas():
            await stage.ready(status.name)
        assert psutil.Process().children(recursive=True)
        shutting_down = asyncio.create_task(supervisor.shutdown(grace_seconds=0.3))
        await supervisor.wait("willing-0")
        with pytest.raises(Refused, match="the job is ending"):
            await supervisor.launch(stage.request("late"))
        await shutting_down
        ends = {status.name: status.exit.signal for status in supervisor.replicas() if status.exit}
        assert ends == {**{f"willing-{i}": signal.SIGTERM for i in range(3)}, "stubborn": signal.SIGKILL}
        assert psutil.Process().children(recursive=True) == []
        assert not socket.exists()
        stage.close()

    run(story())


def test_a_second_shutdown_cuts_the_grace_of_the_first_short(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        supervisor = Supervisor(tmp_path / "logs")
        await supervisor.start()
        stage = ProcessStage(tmp_path, lambda: supervisor)
        await supervisor.launch(stage.request("stubborn", stubborn=True))
        await stage.ready("stubborn")
        patient = asyncio.create_task(supervisor.shutdown(grace_seconds=3600))
        await asyncio.sleep(0)
        before = time.monotonic()
        await supervisor.shutdown(grace_seconds=0)
        await patient
        assert time.monotonic() - before < 10
        stage.close()

    run(story())


def test_hundreds_of_fast_exits_leave_no_zombie_and_no_open_file(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path / "logs", tmp_path / "run" / "launcher.sock") as supervisor:
            await end_of(supervisor, shell("warm-up", "exit 0"))
            open_before, children_before = open_files(), psutil.Process().children()
            at_once = asyncio.Semaphore(10)

            async def live_and_die(index: int) -> None:
                async with at_once:
                    exit = await end_of(supervisor, shell(f"w-{index % 50}-{index // 50}", f"exit {index % 100}"))
                    assert exit.code == index % 100

            await asyncio.gather(*(live_and_die(index) for index in range(300)))
            assert open_files() == open_before
            assert psutil.Process().children() == children_before  # the guard

    run(story(), deadline_seconds=120)


def test_replicas_start_while_other_threads_hold_locks(run: Run, tmp_path: Path) -> None:
    # The reason for the shim: code between fork and exec could wait forever for a lock that a thread held.
    done = threading.Event()
    lock = threading.Lock()

    def hold_locks() -> None:
        while not done.is_set():
            with lock:
                bytearray(100_000)
                sys.stderr.write("")

    threads = [threading.Thread(target=hold_locks) for _ in range(4)]

    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            for index in range(20):
                assert (await end_of(supervisor, shell(f"w-{index}", "exit 0"))).code == 0

    for thread in threads:
        thread.start()
    try:
        run(story(), deadline_seconds=60)
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_an_exit_status_taken_by_other_code_is_reported_as_such(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            await supervisor.launch(shell("w-0", "exit 0"))
            pid = supervisor.replicas()[0].pid
            assert pid is not None
            take_exit_status(pid)
            exit = await supervisor.wait("w-0")
            assert (exit.code, exit.signal) == (None, None)
            assert "other code in the launcher collected it" in exit.reason

    run(story())


def test_without_pidfd_a_thread_hears_of_an_exit(run: Run) -> None:
    async def story() -> None:
        ended_event = asyncio.Event()
        child = subprocess.Popen(["sleep", "0.1"])  # noqa: ASYNC220 (asyncio would reap it)
        on_exit_by_thread(child.pid, ended_event.set)
        await ended_event.wait()
        assert child.poll() == 0

    run(story())


def test_a_log_directory_that_cannot_be_made_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def story() -> None:
        with pytest.raises(UsageError, match="cannot write logs here"):
            await Supervisor(tmp_path / "file" / "logs").start()

    run(story())
