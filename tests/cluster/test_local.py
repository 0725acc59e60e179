"""The socket between the launcher and the master's `LocalCluster`: lost ends, bad messages, wrong users."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.local import LocalCluster
from elasticdl.cluster.messages import MOST_LINE_BYTES
from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.cluster.server import ClusterServer
from elasticdl.cluster.supervisor import Supervisor
from elasticdl.errors import Refused, Unreachable, UsageError
from tests.cluster.memory import MemoryCluster

Run = Callable[..., None]
REPOSITORY = Path(__file__).resolve().parents[2]
WORKER = ReplicaRequest("w-0", "worker", 0, ("sleep", "600"), {"A": "1"}, cpu_limit=0.5, memory_limit_bytes=1 << 30)


@contextlib.asynccontextmanager
async def served(path: Path) -> Any:
    """A memory cluster behind a real socket: these tests need no processes."""
    cluster = MemoryCluster()
    server = ClusterServer(cluster, path)
    await server.start()
    yield cluster
    await server.close()


async def answer_to(path: Path, *lines: bytes) -> list[dict[str, Any]]:
    """Send raw lines on one connection and read one answer for each."""
    reader, writer = await asyncio.open_unix_connection(path)
    answers = []
    for line in lines:
        writer.write(line)
        answers.append(json.loads(await reader.readline()))
    writer.close()
    return answers


@pytest.mark.processes
def test_a_master_that_was_killed_finds_its_workers_when_it_comes_back(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "run" / "launcher.sock"
        async with Supervisor(tmp_path / "logs", path) as supervisor:
            program = str(Path(__file__).with_name("master_program.py"))
            env = {"PYTHONPATH": str(REPOSITORY)}
            master = ReplicaRequest("master", "master", 0, (sys.executable, program, str(path)), env)
            await supervisor.launch(master)
            assert (await supervisor.wait("master")).signal == signal.SIGKILL
            (worker,) = (status for status in supervisor.replicas() if status.role == "worker")
            assert worker.phase == "running"
            await supervisor.launch(master)
            exit = await supervisor.wait("master")
            assert exit.last_lines == (f"found {worker.uid} running", f"heard {worker.uid} killed by SIGTERM")
            assert exit.code == 0

    run(story())


def test_every_field_of_a_request_arrives(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with served(tmp_path / "run" / "s") as cluster:
            client = LocalCluster(tmp_path / "run" / "s")
            await client.launch(WORKER)
            assert cluster.requests == {"w-0": WORKER}
            await client.close()

    run(story())


def test_no_launcher_is_unreachable(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        client = LocalCluster(tmp_path / "nobody")
        with pytest.raises(Unreachable, match=r"no launcher at .*nobody"):
            await client.list()
        with pytest.raises(Unreachable, match=r"no launcher at .*nobody"):
            await anext(client.events())

    run(story())


def test_a_launcher_that_goes_away_ends_calls_and_watches_as_unreachable(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "run" / "s"
        async with served(path):
            client = LocalCluster(path)
            await client.launch(WORKER)
            events = client.events()
            await anext(events)
        with pytest.raises(Unreachable, match="the launcher closed the connection"):
            await anext(events)
        with pytest.raises(Unreachable, match="no launcher"):
            await client.list()
        async with served(path):  # a client outlives a broken connection
            assert await client.list() == []
        await client.close()

    run(story())


def test_a_launcher_that_does_not_answer_is_unreachable_at_the_deadline(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(tmp_path / "s"))
            silent.listen()
            client = LocalCluster(tmp_path / "s", deadline_seconds=0.2)
            with pytest.raises(Unreachable, match=r"did not answer 'kill' within 0\.2 s"):
                await client.kill("w-0")
            with pytest.raises(Unreachable, match=r"did not answer 'watch' within 0\.2 s"):
                await anext(client.events())
            await client.close()

    run(story())


def test_a_connection_that_breaks_in_the_middle_of_a_call_leaves_no_unretrieved_error(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "s"))
            listener.listen()
            client = LocalCluster(tmp_path / "s")
            large = ReplicaRequest("w-0", "worker", 0, ("true",), {"LARGE": "x" * (4 << 20)})
            call = asyncio.create_task(client.launch(large))
            connection, _ = await asyncio.to_thread(listener.accept)
            await asyncio.to_thread(connection.recv, 1)  # the rest fills the pipe: the caller waits to write on
            connection.close()
            with pytest.raises(Unreachable, match="the connection to the launcher broke"):
                await call
            del call
            await client.close()
        gc.collect()
        assert reported == []

    run(story())


def test_a_launcher_that_talks_nonsense_is_unreachable(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\n")
            await reader.read()
            writer.close()

        server = await asyncio.start_unix_server(nonsense, tmp_path / "s")
        client = LocalCluster(tmp_path / "s")
        with pytest.raises(Unreachable, match="the connection to the launcher broke"):
            await client.list()
        await client.close()
        server.close()

    run(story())


GOOD_LAUNCH = {"name": "x", "role": "worker", "index": 0, "command": ["true"], "env": {}}


@pytest.mark.parametrize(
    ("line", "call_id", "complaint"),
    [
        (b"\n", None, "message"),
        (b"\xff\xfe\x00\n", None, "message"),
        (b"[" * 5000 + b"\n", None, "message"),
        (b"null\n", None, "message"),
        (b'{"id": 5}\n', 5, "action: Field required"),
        (b'{"id": "5", "action": {"do": "list"}}\n', None, "id: Input should be a valid integer"),
        (b'{"id": 6, "action": {"do": "format"}}\n', 6, "action: Input tag 'format'"),
        (b'{"id": 7, "action": {"do": "list", "more": 1}}\n', 7, "Extra inputs are not permitted"),
        (b'{"id": 8, "action": {"do": "stop", "name": "x", "grace_seconds": -1}}\n', 8, "greater than or equal to 0"),
        (b'{"id": 8, "action": {"do": "stop", "name": "x", "grace_seconds": NaN}}\n', 8, "grace_seconds"),
    ],
)
def test_a_malformed_call_is_refused_and_the_next_one_answered(
    run: Run, tmp_path: Path, line: bytes, call_id: int | None, complaint: str
) -> None:
    async def story() -> None:
        path = tmp_path / "run" / "s"
        async with served(path):
            bad, good = await answer_to(path, line, b'{"id": 9, "action": {"do": "list"}}\n')
            assert bad["id"] == call_id
            assert complaint in bad["refused"]
            assert (good["id"], good["refused"], good["replicas"]) == (9, None, [])

    run(story())


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../escape"},
        {"name": ".."},
        {"name": ""},
        {"name": "a/b"},
        {"command": []},
        {"command": ["a\0b"]},
        {"command": "true"},
        {"env": {"A=B": "1"}},
        {"env": {"A": 1}},
        {"cpu_limit": 0},
        {"memory_limit_bytes": -1},
        {"index": 1.5},
        {"shell": True},
    ],
    ids=str,
)
def test_a_launch_that_makes_no_sense_is_refused(run: Run, tmp_path: Path, change: dict[str, Any]) -> None:
    async def story() -> None:
        path = tmp_path / "run" / "s"
        async with served(path) as cluster:
            call = {"id": 1, "action": {"do": "launch", "request": {**GOOD_LAUNCH, **change}}}
            (answer,) = await answer_to(path, json.dumps(call).encode() + b"\n")
            assert answer["refused"]
            assert cluster.requests == {}

    run(story())


def test_a_line_without_end_is_refused_and_its_connection_closed(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "run" / "s"
        async with served(path):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"x" * (2 * MOST_LINE_BYTES + 1))
            assert b"message longer than" in await reader.readline()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            client = LocalCluster(path)
            assert await client.list() == []
            await client.close()

    run(story())


def test_clients_that_hang_up_in_the_middle_do_no_harm(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "run" / "s"
        async with served(path) as cluster:
            for part in (b"", b'{"id": 1, "act', b'{"id": 1, "action": {"do": "watch"}}\n' * 3):
                _, writer = await asyncio.open_unix_connection(path)
                writer.write(part)
                writer.transport.abort()
            client = LocalCluster(path)
            await client.launch(WORKER)
            assert "w-0" in cluster.requests
            await client.close()

    run(story())


def test_a_refusal_reaches_the_client_in_words(run: Run, tmp_path: Path) -> None:
    class EndingCluster(MemoryCluster):
        async def launch(self, request: ReplicaRequest) -> None:
            raise Refused(f"cannot start {request.name}: the job is ending")

    async def story() -> None:
        server = ClusterServer(EndingCluster(), tmp_path / "run" / "s")
        await server.start()
        client = LocalCluster(tmp_path / "run" / "s")
        with pytest.raises(Refused, match="cannot start w-0: the job is ending"):
            await client.launch(WORKER)
        await client.close()
        await server.close()

    run(story())


def test_only_this_user_can_reach_the_socket(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with served(tmp_path / "run" / "s"):
            assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
            assert stat.S_IMODE((tmp_path / "run" / "s").stat().st_mode) == 0o600

    run(story())


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A private directory in one that all users can enter, unlike a test's own directories."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        (Path(directory) / "run").mkdir(mode=0o700)
        yield Path(directory) / "run"


ASK_AS_NOBODY = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    print(client.makefile().read())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_turned_away_even_where_the_permissions_were_opened(run: Run, open_directory: Path) -> None:
    path = open_directory / "s"

    def open_to_all() -> None:
        open_directory.chmod(0o777)
        path.chmod(0o777)

    async def story() -> None:
        async with served(path):
            open_to_all()
            ask = [sys.executable, "-I", "-S", "-c", ASK_AS_NOBODY, str(path)]
            child = await asyncio.create_subprocess_exec(*ask, stdout=subprocess.PIPE)
            output, _ = await child.communicate()
            answer = json.loads(output)
            assert answer["refused"] == "this job belongs to another user"

    run(story())


def test_a_directory_that_others_can_enter_is_not_used_and_not_changed(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run").chmod(0o755)
        with pytest.raises(UsageError, match="other users can enter this directory"):
            await Supervisor(tmp_path / "logs", tmp_path / "run" / "s").start()
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o755

    run(story())


def test_a_second_launcher_of_a_job_is_turned_away_and_the_first_goes_on(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "run" / "s"
        async with served(path):
            with pytest.raises(UsageError, match="a launcher of this job is already running"):
                await Supervisor(tmp_path / "logs", path).start()
            client = LocalCluster(path)
            assert await client.list() == []
            await client.close()

    run(story())


def test_the_socket_of_a_launcher_that_was_killed_is_replaced(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "run" / "s"
        path.parent.mkdir(mode=0o700)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        async with served(path):
            client = LocalCluster(path)
            assert await client.list() == []
            await client.close()
        assert not path.exists()

    run(story())


def test_a_path_too_long_for_a_socket_address_works(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / ("long-directory-name-" * 8) / "run" / "launcher.sock"
        async with served(path) as cluster:
            client = LocalCluster(path)
            await client.launch(WORKER)
            assert cluster.requests == {"w-0": WORKER}
            await client.close()
        assert not path.exists()

    run(story())
