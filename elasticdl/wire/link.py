"""A replica's end of the control stream: opened, kept open, and said Hello on again whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import grpc

from elasticdl.errors import Refused, Unreachable
from elasticdl.wire import auth
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_pb2_grpc import ControlStub

log = logging.getLogger(__name__)

OPTIONS = (
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.05, 1.0
NO = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)


class Link:
    """Runs in one asyncio loop; `send` must be called from it."""

    def __init__(
        self,
        address: str,
        token: str,
        hello: Callable[[], pb.FromReplica],
        receive: Callable[[pb.ToReplica], None],
        patience_seconds: float,
    ) -> None:
        self.address, self.token = address, token
        self.hello, self.receive = hello, receive
        self.patience_seconds = patience_seconds
        self._outbox: asyncio.Queue[pb.FromReplica | None] | None = None

    def send(self, message: pb.FromReplica) -> None:
        """Send on the open stream. Without one the message is dropped: the next Hello says what matters."""
        if self._outbox is not None:
            self._outbox.put_nowait(message)

    async def drain(self, seconds: float) -> None:
        """Wait until what was sent has left, so that a replica may exit."""
        outbox = self._outbox
        if outbox is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(outbox.join(), seconds)

    async def run(self) -> None:
        """Keep the stream open for ever; raises Refused when the master says no, Unreachable when it stays away."""
        loop = asyncio.get_running_loop()
        last_seen, wait = loop.time(), FIRST_RETRY_SECONDS
        async with grpc.aio.insecure_channel(self.address, options=OPTIONS) as channel:
            while True:
                try:
                    async for message in self._stream(channel):
                        last_seen, wait = loop.time(), FIRST_RETRY_SECONDS
                        self.receive(message)
                    reason = "the master closed the stream"
                except grpc.aio.AioRpcError as error:
                    if error.code() in NO:
                        raise Refused(f"the master at {self.address} refused: {error.details()}") from error
                    reason = f"{error.code().name.lower()}: {error.details()}"
                finally:
                    self._outbox = None
                silent = loop.time() - last_seen
                if silent > self.patience_seconds:
                    raise Unreachable(f"no master at {self.address} for {silent:.0f} s ({reason})")
                log.info("Stream to the master broke (%s); trying again", reason)
                await asyncio.sleep(wait)
                wait = min(2 * wait, LAST_RETRY_SECONDS)

    async def _stream(self, channel: grpc.aio.Channel) -> AsyncIterator[pb.ToReplica]:
        outbox: asyncio.Queue[pb.FromReplica | None] = asyncio.Queue()
        outbox.put_nowait(self.hello())
        self._outbox = outbox

        async def messages() -> AsyncIterator[pb.FromReplica]:
            while True:
                message = await outbox.get()
                if message is None:
                    return
                yield message
                outbox.task_done()

        call = ControlStub(channel).Connect(  # type: ignore[no-untyped-call]
            messages(), metadata=auth.metadata(self.token)
        )
        try:
            async for message in call:
                yield message
        finally:
            call.cancel()
