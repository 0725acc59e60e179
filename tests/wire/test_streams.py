"""The master's end of the streams: one per replica, the newest; watchers; stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest
from grpc.aio import EOF  # type: ignore[attr-defined]

from elasticdl.core import events as e
from elasticdl.wire import auth
from elasticdl.wire import control_pb2 as pb
from tests.wire.loopback import NAME, TOKEN, Hall, Proxy, hello, progress, raw_stream, stub

Run = Callable[..., None]


def test_a_second_stream_of_a_replica_takes_the_first_ones_place(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall, raw_stream(hall.address) as old, raw_stream(hall.address) as new:
            await old.write(hello())
            assert (await old.read()).welcome.master_epoch == 1
            await hall.hear(e.ReplicaJoined)
            await new.write(hello())
            assert (await new.read()).welcome.master_epoch == 1
            await hall.hear(e.ReplicaJoined)
            assert await old.read() is EOF, "the replaced stream should end"
            hall.streams.send(NAME, pb.ToReplica(close=pb.Close(shard="s")))
            assert (await new.read()).close.shard == "s"
            assert hall.heard.empty(), "being replaced is not being lost"
            new.cancel()
            await hall.hear(e.ReplicaDropped)

    run(story())


def test_messages_of_a_replaced_stream_are_ignored(run: Run) -> None:
    async def story() -> None:
        async with (
            Hall() as hall,
            Proxy(hall.port) as slow,
            raw_stream(slow.address) as old,
            raw_stream(hall.address) as new,
        ):
            await old.write(hello())
            await old.read()
            slow.swallow()
            await old.write(progress(1))
            await new.write(hello())
            await new.read()
            slow.forward()
            assert await old.read() is EOF
            await new.write(progress(2))
            assert (await hall.hear(e.BatchesCommitted)).next_batch == 2

    run(story())


def test_a_second_hello_on_a_stream_and_an_empty_message_are_ignored(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall, raw_stream(hall.address) as call:
            await call.write(hello())
            await hall.hear(e.ReplicaJoined)
            await call.write(hello(name="elasticdl-j-worker-5"))
            await call.write(pb.FromReplica())
            await call.write(progress(4))
            assert isinstance(await hall.heard.get(), e.BatchesCommitted)

    run(story())


def test_a_replica_that_vanishes_while_much_is_sent_to_it_is_noticed(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall, Proxy(hall.port) as proxy, raw_stream(proxy.address) as call:
            await call.write(hello())
            await hall.hear(e.ReplicaJoined)
            big = pb.ToReplica(shutdown=pb.Shutdown(reason="x" * 1_000_000))
            for _ in range(30):
                hall.streams.send(NAME, big)
            await call.read()
            proxy.swallow()
            proxy.cut()
            await hall.hear(e.ReplicaDropped)
            hall.streams.send(NAME, big)

    run(story())


def test_a_replica_that_stops_writing_is_dropped(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall, raw_stream(hall.address) as call:
            await call.write(hello())
            await call.done_writing()
            assert (await call.read()).WhichOneof("body") == "welcome"
            assert await call.read() is EOF
            await hall.hear(e.ReplicaDropped)

    run(story())


def test_a_broadcast_reaches_all_streams_and_later_ones_get_the_end(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall, raw_stream(hall.address) as one, raw_stream(hall.address) as two:
            await one.write(hello())
            await hall.hear(e.ReplicaJoined)
            hall.streams.say_goodbye("the job succeeded")
            assert [(await one.read()).WhichOneof("body") for _ in range(2)] == ["welcome", "shutdown"]
            await two.write(hello(name="elasticdl-j-worker-1", incarnation="late"))
            assert (await two.read()).WhichOneof("body") == "welcome"
            assert (await two.read()).shutdown.reason == "the job succeeded"

    run(story())


def test_watchers_get_statuses_and_a_last_one(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall, stub(hall.address) as control:
            watch = control.Watch(pb.WatchRequest(), metadata=auth.metadata(TOKEN))
            seen = []
            async for status in watch:
                seen.append(status.version)
                if len(seen) == 3:
                    hall.streams.finish()
            assert seen[:3] == [1, 2, 3]
            assert len(seen) > 3 and seen[-1] == hall.statuses
            late = control.Watch(pb.WatchRequest(), metadata=auth.metadata(TOKEN))
            assert len([s async for s in late]) == 1, "a late client still gets the last status"

    run(story())


def test_stop_becomes_an_event_with_its_reason(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall, stub(hall.address) as control:
            await control.Stop(pb.StopRequest(reason="enough"), metadata=auth.metadata(TOKEN))
            assert await hall.hear(e.StopRequested) == e.StopRequested("enough")
            for call in (control.Stop(pb.StopRequest()), control.Watch(pb.WatchRequest()).read()):
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    await call
                assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert hall.heard.empty()

    run(story())


def test_a_token_is_compared_whole() -> None:
    assert auth.authentic("abc", auth.metadata("abc"))
    for wrong in ("", "ab", "abcd", "ABC", "äbc"):
        assert not auth.authentic("abc", auth.metadata(wrong))
    assert not auth.authentic("abc", None)
    assert not auth.authentic("abc", ())
    assert not auth.authentic("abc", (("elasticdl-token", b"\xff\xfe"),))


def test_messages_to_an_unconnected_replica_are_dropped(run: Run) -> None:
    async def story() -> None:
        async with Hall() as hall:
            hall.streams.send("unknown", pb.ToReplica())
            await asyncio.sleep(0)
            assert hall.heard.empty()

    run(story())
