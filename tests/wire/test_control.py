"""The worker's control thread: its last words get out, and it ends whatever became of its stream."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elasticdl.core import events as e
from elasticdl.errors import Refused, Unreachable
from elasticdl.wire import control_pb2 as pb
from elasticdl.worker.control import Control
from elasticdl.worker.session import Session
from tests.wire.loopback import NAME, TOKEN, Hall


class Host:
    """A control server in a thread of its own, as a master is in a process of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.hall: Hall = self.do(self._start())

    async def _start(self) -> Hall:
        hall = Hall()
        await hall.start()
        return hall

    def do(self, story: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(story, self.loop).result(20)

    def hear(self, kind: type[e.Event]) -> Any:
        return self.do(self.hall.hear(kind))

    def send(self, **body: Any) -> None:
        self.loop.call_soon_threadsafe(self.hall.streams.send, NAME, pb.ToReplica(**body))

    def close(self) -> None:
        self.do(self.hall.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


@pytest.fixture
def started(host: Host) -> Iterator[Callable[..., Control]]:
    made: list[Control] = []

    def start(token: str = TOKEN, patience_seconds: float = 10.0) -> Control:
        control = Control(Session(NAME, "one", 2), host.hall.address, token, patience_seconds)
        made.append(control)
        control.start()
        return control

    yield start
    for control in made:
        began = time.monotonic()
        control.close()
        control.close()
        assert time.monotonic() - began < 5
        control.leave()  # a late signal does no harm
        assert not control._thread.is_alive()


Start = Callable[..., Control]


def grant(shard: str = "train/0/0", batches: int = 2) -> pb.Grant:
    return pb.Grant(shard=shard, attempt=1, kind="train", stop=8, batches=batches)


def test_the_last_message_of_a_worker_arrives(host: Host, started: Start) -> None:
    control = started()
    host.hear(e.ReplicaJoined)
    host.send(members=pb.Members(servers=["tcp://a"]))
    host.send(grant=grant(batches=300))
    work = control.wait_for_work()
    assert work is not None
    for n in range(300):
        control.committed(work, n + 1, 0.5)
    control.close()
    assert [host.hear(e.BatchesCommitted).next_batch for _ in range(300)] == list(range(1, 301))
    host.hear(e.ReplicaDropped)


def test_a_refusal_reaches_the_thread_that_trains(started: Start) -> None:
    control = started(token="guess")
    with pytest.raises(Refused, match="not the token"):
        control.wait_for_servers()
    assert control.over()


def test_a_master_that_stays_away_reaches_the_thread_that_trains(host: Host, started: Start) -> None:
    control = started(patience_seconds=0.3)
    host.hear(e.ReplicaJoined)
    host.do(host.hall.stop())
    with pytest.raises(Unreachable, match="no master"):
        control.wait_for_work()


def test_leases_come_in_order_and_go_when_the_master_takes_them(host: Host, started: Start) -> None:
    control = started()
    host.hear(e.ReplicaJoined)
    host.send(members=pb.Members(servers=["tcp://a", "tcp://b"], timeline=0))
    assert control.wait_for_servers() == (("tcp://a", "tcp://b"), 0)
    host.send(grant=grant("train/0/0"))
    host.send(grant=grant("train/0/1"))
    first = control.wait_for_work()
    assert first is not None and first.shard == "train/0/0" and not control.gone(first)
    gone = threading.Event()
    control.on_change(lambda: gone.set() if control.gone(first) else None)
    host.send(revoke=pb.Revoke(shard="train/0/0", attempt=1))
    assert gone.wait(5)
    second = control.wait_for_work()
    assert second is not None and second.shard == "train/0/1"
    host.send(shutdown=pb.Shutdown(reason="over"))
    control.committed(second, 2, 0.1)
    assert control.wait_for_work() is None and control.over()


def test_a_control_thread_that_is_late_makes_no_crash_of_a_leave(
    host: Host, started: Start, caplog: pytest.LogCaptureFixture
) -> None:
    control = started()
    host.hear(e.ReplicaJoined)
    busy, free = threading.Event(), threading.Event()

    def hold_up() -> None:
        busy.set()
        free.wait(20)

    control.on_change(hold_up)
    host.send(shutdown=pb.Shutdown(reason="over"))
    assert busy.wait(5)
    control.close(0.1)
    assert "Could not close the control stream within 1.1 s" in caplog.text
    free.set()
    control._thread.join(10)


def test_a_control_that_never_started_closes() -> None:
    Control(Session(NAME, "one", 2), "127.0.0.1:1", TOKEN, 1.0).close()
