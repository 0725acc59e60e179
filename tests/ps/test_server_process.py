"""Parameter servers as processes, as a job runs them: training through freezes and frozen connections, clean ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.core import events as e
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.ps import connections
from elasticdl.ps.client import Batch, Client
from elasticdl.wire import control_pb2 as pb
from tests.ps.servers import TIMELINE, Numpy, Trainer, export_ids, model, serving
from tests.ps.stores import OPTIMIZERS
from tests.wire.loopback import TOKEN, Hall, Proxy

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes
SPEC = model(OPTIMIZERS["keras adagrad"])


class Hosted:
    """An asyncio loop in a thread, with a control server in it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.hall = self.do(self._hall())

    async def _hall(self) -> Hall:
        hall = Hall()
        await hall.start()
        return hall

    def do(self, story: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(story, self.loop).result(30)

    def send(self, name: str, **body: Any) -> None:
        self.loop.call_soon_threadsafe(self.hall.streams.send, name, pb.ToReplica(**body))

    def close(self) -> None:
        self.do(self.hall.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)


@contextmanager
def processes(tmp_path: Path, count: int, **more: Any) -> Iterator[tuple[Hosted, list[subprocess.Popen[str]]]]:
    fields = {
        "job_name": "j", "state_dir": str(tmp_path), "num_ps_pods": count, "num_workers": 1, "training_data": "t",
        "model_def": "m.custom_model", "seed": 7, "master_grace_seconds": 20,
    }  # fmt: skip
    job = tmp_path / "job.json"
    job.write_text(JobSpec.model_validate(fields | more).to_json())
    host = Hosted()
    started = []
    with ExitStack() as stack:
        stack.callback(host.close)
        for index in range(count):
            env = {
                **os.environ, "PYTHONPATH": str(ROOT), names.ENV_JOB_FILE: str(job), names.ENV_TOKEN: TOKEN,
                names.ENV_REPLICA: names.replica_name("j", "ps", index), names.ENV_MASTER_ADDR: host.hall.address,
            }  # fmt: skip
            server = subprocess.Popen(
                [sys.executable, "-m", "elasticdl.ps"], env=env, stderr=subprocess.PIPE, text=True, cwd=ROOT
            )
            stack.callback(server.wait)
            stack.callback(server.kill)
            started.append(server)
        yield host, started


def joined(host: Hosted, count: int) -> list[str]:
    """The addresses of all servers once each has sent Hello and begun the first timeline."""
    heard = [host.do(host.hall.hear(e.ReplicaJoined)) for _ in range(count)]
    assert {h.timeline for h in heard} == {0}, "they have not begun a timeline"
    for h in heard:
        host.send(h.name, restore=pb.Restore(timeline=TIMELINE))
    restored = [host.do(host.hall.hear(e.ServerRestored)) for _ in range(count)]
    assert {(r.timeline, r.error) for r in restored} == {(TIMELINE, "")}
    return [h.address for h in sorted(heard, key=lambda h: h.name)]


def test_real_processes_train_like_one_machine_and_survive_being_frozen(tmp_path: Path) -> None:
    with processes(tmp_path, 2) as (host, servers):
        addresses = joined(host, 2)
        for index in range(2):
            opened = pb.Opened(shard="train/0/0", attempt=1, batches=100)
            host.send(names.replica_name("j", "ps", index), opened=opened)
        random = np.random.default_rng(1)
        client = Client(addresses, TOKEN, SPEC, TIMELINE, resend_seconds=0.05)
        weights = random.normal(size=client.trainable_size).astype(np.float32)
        state = np.zeros(client.state_size, np.float32)
        client.declare(weights, state)
        truth = Numpy(SPEC, weights, state, seed=7)
        for n in range(12):
            gradients = random.normal(size=client.trainable_size).astype(np.float32)
            rows = {
                t.name: (random.integers(0, 50, 30), random.normal(size=(30, t.dim)).astype(np.float32))
                for t in SPEC.tables
            }
            if n % 4 == 1:  # frozen for longer than the client waits before it sends again
                frozen = servers[n % 2]
                frozen.send_signal(signal.SIGSTOP)
                threading.Timer(0.4, frozen.send_signal, [signal.SIGCONT]).start()
            assert client.push(Batch(0, 0, 1, n), gradients, state, rows) == n + 1
            truth.push(gradients, state, rows)
        got, _, version = client.pull()
        assert version == 12
        np.testing.assert_array_equal(got, truth.weights)
        for name, table in truth.tables.items():
            ids = export_ids(client, name)
            np.testing.assert_array_equal(ids, sorted(table.rows))
            np.testing.assert_array_equal(client.rows(name, ids), table.peek(ids, 0))
        client.close()
        for index in range(2):
            host.send(names.replica_name("j", "ps", index), shutdown=pb.Shutdown(reason="over"))
        assert [s.wait(15) for s in servers] == [0, 0]


def test_a_server_that_cannot_read_its_checkpoint_reports_why_and_waits_for_another(tmp_path: Path) -> None:
    with processes(tmp_path, 1) as (host, (server,)):
        joined(host, 1)
        nothing = tmp_path / "nothing"
        host.send(names.replica_name("j", "ps", 0), restore=pb.Restore(timeline=2, directory=str(nothing)))
        restored = host.do(host.hall.hear(e.ServerRestored))
        assert restored.error == f"{nothing}: there is no complete checkpoint (manifest.json is missing)"
        host.send(names.replica_name("j", "ps", 0), restore=pb.Restore(timeline=3))
        assert host.do(host.hall.hear(e.ServerRestored)) == e.ServerRestored(restored.server, 3)
        host.send(names.replica_name("j", "ps", 0), shutdown=pb.Shutdown(reason="over"))
        assert server.wait(15) == 0


def test_a_server_asks_to_be_saved_at_sigterm_and_ends_at_the_second_one(tmp_path: Path) -> None:
    with processes(tmp_path, 1) as (host, (server,)):
        joined(host, 1)
        server.send_signal(signal.SIGTERM)
        host.do(host.hall.hear(e.ReplicaLeaving))
        assert server.poll() is None
        server.send_signal(signal.SIGTERM)
        assert server.wait(15) == 128 + signal.SIGTERM


def test_a_server_without_a_master_ends_at_sigterm(tmp_path: Path) -> None:
    with processes(tmp_path, 1) as (host, (server,)):
        joined(host, 1)
        host.do(host.hall.stop())
        server.send_signal(signal.SIGTERM)
        assert server.wait(15) == 128 + signal.SIGTERM


def test_a_server_whose_master_stays_away_ends_with_the_reason(tmp_path: Path) -> None:
    with processes(tmp_path, 1, master_grace_seconds=1) as (host, (server,)):
        joined(host, 1)
        host.do(host.hall.stop())
        _, text = server.communicate(timeout=20)
        assert server.returncode == 143  # as after SIGTERM: the master does not count it as a crash
        assert f"no master at {host.hall.address}" in text
        assert "Traceback" not in text


def test_a_server_that_is_refused_ends_with_the_reason(tmp_path: Path) -> None:
    with processes(tmp_path, 1) as (host, (server,)):
        joined(host, 1)
        host.hall.admits = lambda name, incarnation: False
        host.do(host.hall.stop())
        host.do(host.hall.start())
        _, text = server.communicate(timeout=20)
        assert server.returncode == 1
        assert "refused: elasticdl-j-ps-0 is not expected" in text
        assert "Traceback" not in text


def test_a_connection_that_swallows_everything_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server still sees the old connection as open: the new one must take its identity over."""
    monkeypatch.setattr(connections, "HEARTBEAT_MILLISECONDS", 100)
    with serving(1) as servers:
        port = int(servers.addresses[0].rsplit(":", 1)[1])
        host = Hosted()
        proxy: Proxy = host.do(Proxy(port).__aenter__())
        trainer = Trainer(servers, SPEC)
        servers.open()
        trainer.close()
        client = Client([f"tcp://{proxy.address}"], TOKEN, SPEC, TIMELINE, resend_seconds=0.1)
        before = client.pull()[0]
        assert proxy.connections == 1
        host.loop.call_soon_threadsafe(proxy.swallow_so_far)
        again = client.pull()[0]
        np.testing.assert_array_equal(again, before)
        assert proxy.connections > 1
        client.close()
        host.do(proxy.__aexit__())
        host.close()


def test_no_port_is_left_open_by_a_server_that_ended(tmp_path: Path) -> None:
    with processes(tmp_path, 1) as (host, (server,)):
        address = joined(host, 1)[0]
        host.send(names.replica_name("j", "ps", 0), shutdown=pb.Shutdown(reason="over"))
        assert server.wait(15) == 0
        with socket.socket() as s:
            s.bind(("127.0.0.1", int(address.rsplit(":", 1)[1])))


@pytest.mark.parametrize("turn", range(3))
def test_the_fault_point_between_pushes_really_tears_a_batch(tmp_path: Path, turn: int) -> None:
    with serving(2) as servers:
        servers.open()
        env = {
            **os.environ, "PYTHONPATH": str(ROOT), "ELASTICDL_FAULTS": "worker.between_pushes@pusher:3",
            "ELASTICDL_FAULT_LOG": str(tmp_path / "faults"),
        }  # fmt: skip
        worker = subprocess.run(
            [sys.executable, "-m", "tests.ps.pusher_program", *servers.addresses], env=env, cwd=ROOT
        )
        assert worker.returncode == -signal.SIGKILL
        client = servers.client(model(OPTIMIZERS["sgd"]))
        client.pull()  # what the killed process had sent is served by now
        assert [s.ledger.version for s in servers.services] == [3, 2]
        servers.open(attempt=2)
        zeros, state = np.zeros(client.trainable_size, np.float32), np.zeros(client.state_size, np.float32)
        for number in range(2, 5):
            client.push(Batch(0, 0, 2, number), zeros + 1, state, {})
        np.testing.assert_array_equal(client.pull()[0], zeros - 5 * np.float32(0.05))
        client.close()
