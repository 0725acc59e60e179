"""A replica's link against real streams on loopback: hello, refusals, broken streams, patience."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from elasticdl.core import events as e
from elasticdl.errors import Refused, Unreachable
from elasticdl.wire import PROTOCOL
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.link import OPTIONS
from tests.wire.loopback import NAME, TOKEN, Hall, Proxy, Replica, hello, progress, raw_stream

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., None]
# Keepalive as quick as gRPC allows, for tests that wait for it.
QUICK = tuple((key, 300 if key.endswith(("keepalive_time_ms", "_timeout_ms")) else value) for key, value in OPTIONS)


def unused_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_hello_comes_first_and_is_answered_with_welcome(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall, Replica(hall.address, lambda: hello(address="tcp://x:1", capacity=2)) as replica:
            assert (await replica.receive("welcome")).master_epoch == 1
            joined = await hall.hear(e.ReplicaJoined)
            assert (joined.name, joined.incarnation, joined.address, joined.capacity) == (NAME, "one", "tcp://x:1", 2)
            replica.link.send(progress(3))
            assert (await hall.hear(e.BatchesCommitted)).next_batch == 3
            hall.streams.send(NAME, pb.ToReplica(shutdown=pb.Shutdown(reason="over")))
            assert (await replica.receive("shutdown")).reason == "over"

    run(story())


@pytest.mark.parametrize(
    ("token", "say", "reason"),
    [
        ("another secret", hello, "not the token of this job"),
        ("", hello, "not the token of this job"),
        (TOKEN, lambda: hello(name="elasticdl-j-worker-9"), "elasticdl-j-worker-9 is not expected"),
        (TOKEN, lambda: hello(incarnation="zero"), "another process replaced it"),
        (TOKEN, lambda: hello(protocol=7), f"uses protocol 7, this master {PROTOCOL}: use one version of ElasticDL"),
        (TOKEN, lambda: progress(1), "a stream starts with Hello"),
    ],
)
def test_a_refusal_is_final_and_has_a_reason(
    run: Run, token: str, say: Callable[[], pb.FromReplica], reason: str
) -> None:
    async def story() -> None:
        said = 0

        def counted() -> pb.FromReplica:
            nonlocal said
            said += 1
            return say()

        async with Hall(lambda name, incarnation: (name, incarnation) == (NAME, "one")) as hall:
            async with Replica(hall.address, counted, token) as replica:
                with pytest.raises(Refused, match=reason):
                    await replica.task
            assert said == 1, "a refused replica tried again"
            assert hall.heard.empty()

    run(story())


def test_nothing_is_answered_without_the_token(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall, raw_stream(hall.address, token=None) as call:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call.read()
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert hall.heard.empty()

    run(story())


def test_a_stream_that_ends_before_hello_is_refused_and_leaves_no_error_in_the_log(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with Hall() as hall, raw_stream(hall.address) as call:
            await call.done_writing()
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call.read()
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "Hello" in str(refusal.value.details())

    run(story())
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


def test_a_master_that_returns_on_the_same_port_receives_the_present_holdings(run: Run) -> None:
    async def story() -> None:
        held = 0

        def say() -> pb.FromReplica:
            return hello(holdings=[pb.Holding(shard="train/0/0", attempt=1, next_batch=held)])

        async with Hall() as hall, Replica(hall.address, say) as replica:
            first = await hall.hear(e.ReplicaJoined)
            assert first.holdings[0].next_batch == 0
            assert (await replica.receive("welcome")).master_epoch == 1
            await hall.stop()
            held = 5
            await hall.start()
            again = await hall.hear(e.ReplicaJoined)
            assert again.holdings[0].next_batch == 5
            assert (await replica.receive("welcome")).master_epoch == 2

    run(story())


def test_a_cut_connection_is_made_again_at_once(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall, Proxy(hall.port) as proxy, Replica(proxy.address) as replica:
            for _ in range(5):
                await replica.receive("welcome")
                assert (await hall.hear(e.ReplicaJoined)).name == NAME
                proxy.cut()
                assert (await hall.hear(e.ReplicaDropped)).incarnation == "one"
            began = time.monotonic()
            await replica.receive("welcome")
            assert time.monotonic() - began < 2

    run(story())


def test_keepalive_notices_a_connection_that_swallows_everything(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall, Proxy(hall.port) as proxy, Replica(proxy.address, options=QUICK) as replica:
            await replica.receive("welcome")
            proxy.swallow()
            async with asyncio.timeout(8):
                while proxy.connections < 2:
                    await replica.link.broken.wait()
                    proxy.forward()
                    await replica.receive("welcome")

    run(story())


@pytest.mark.processes
def test_keepalive_notices_a_frozen_master_and_takes_it_back_when_it_thaws(run: Run) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.wire.frozen_server"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )

    async def story() -> None:
        assert server.stdout is not None
        port = int(await asyncio.to_thread(server.stdout.readline))
        async with Replica(f"127.0.0.1:{port}", options=QUICK, patience_seconds=30) as replica:
            await replica.receive("welcome")
            os.kill(server.pid, signal.SIGSTOP)
            async with asyncio.timeout(8):
                await replica.link.broken.wait()
            os.kill(server.pid, signal.SIGCONT)
            await replica.receive("welcome")

    try:
        run(story())
    finally:
        server.kill()
        server.communicate()


def test_a_quiet_stream_is_left_alone_by_keepalive(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC servers disconnect clients that often ping a silent stream, unless options allow it."""
    monkeypatch.setattr("elasticdl.wire.link.REPORT_SECONDS", 3600)

    async def story() -> None:
        async with Hall() as hall, Replica(hall.address, options=QUICK) as replica:
            await hall.hear(e.ReplicaJoined)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5.5):  # five pings: gRPC sends no more than one a second
                    await hall.hear(e.ReplicaDropped)
            assert not replica.link.broken.is_set()

    run(story())


def test_a_replica_reports_its_usage_while_it_is_connected(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl.wire.link.REPORT_SECONDS", 0.05)

    async def story() -> None:
        async with Hall() as hall:
            async with Replica(hall.address) as replica:
                await replica.receive("welcome")
                async with asyncio.timeout(10):
                    while NAME not in hall.streams.usage:  # noqa: ASYNC110 (it is no event)
                        await asyncio.sleep(0.02)
                assert hall.streams.usage[NAME].memory_bytes > 5 << 20
            await hall.hear(e.ReplicaDropped)
            assert hall.streams.usage == {}

    run(story())


def test_a_master_that_stays_away_is_unreachable_after_the_patience(run: Run) -> None:
    async def story() -> None:
        port = unused_port()
        began = time.monotonic()
        async with Replica(f"127.0.0.1:{port}", patience_seconds=0.5) as replica:
            with pytest.raises(Unreachable, match=rf"no master at 127\.0\.0\.1:{port} for \d+ s \(unavailable"):
                await replica.task
        assert 0.5 < time.monotonic() - began < 5

    run(story())


def test_a_master_that_is_silent_by_trade_is_not_taken_for_one_that_is_away(run: Run) -> None:
    """Patience counts from the moment the stream broke, not from the last message on it."""

    async def story() -> None:
        async with Hall() as hall, Replica(hall.address, patience_seconds=1.0) as replica:
            await replica.receive("welcome")
            await hall.hear(e.ReplicaJoined)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.3):
                    await hall.hear(e.ReplicaDropped)
            await hall.stop()
            await hall.start()
            assert (await replica.receive("welcome")).master_epoch == 2

    run(story())


def test_a_message_without_a_stream_is_dropped_and_hello_repeats_what_matters(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall, Replica(hall.address) as replica:
            await hall.hear(e.ReplicaJoined)
            await hall.stop()
            await replica.link.broken.wait()
            replica.link.send(progress(1))
            await hall.start()
            await hall.hear(e.ReplicaJoined)
            replica.link.send(progress(2))
            assert (await hall.hear(e.BatchesCommitted)).next_batch == 2

    run(story())


def test_close_returns_when_the_master_has_read_everything(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall, Replica(hall.address) as replica:
            await hall.hear(e.ReplicaJoined)
            for n in range(500):
                replica.link.send(progress(n))
            await replica.link.close(5)
            assert replica.task.done()
            got = [await hall.hear(e.BatchesCommitted) for _ in range(500)]
            assert [g.next_batch for g in got] == list(range(500))
            await hall.hear(e.ReplicaDropped)

    run(story())


def test_a_link_that_closes_while_the_master_is_away_sends_hello_once_more(run: Run) -> None:
    """A worker that leaves while the master restarts still gets its last word out."""

    async def story() -> None:
        async with Hall() as hall, Replica(hall.address) as replica:
            await hall.hear(e.ReplicaJoined)
            await hall.stop()
            await replica.link.broken.wait()
            closed = asyncio.create_task(replica.link.close(5))
            await hall.start()
            await closed
            assert (await hall.hear(e.ReplicaJoined)).name == NAME
            await hall.hear(e.ReplicaDropped)

    run(story())


def test_close_does_not_wait_for_ever_and_may_be_called_when_all_is_over(run: Run) -> None:
    async def story() -> None:
        async with Replica(f"127.0.0.1:{unused_port()}") as replica:
            began = time.monotonic()
            await replica.link.close(0.2)
            assert time.monotonic() - began < 2
        await replica.link.close(5)
        assert time.monotonic() - began < 3

    run(story())
