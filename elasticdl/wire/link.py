"""A replica's end of the control stream: opens it, and opens it again with a new Hello whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

import grpc

from elasticdl.errors import Refused, Unreachable
from elasticdl.wire import auth, tls
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_service import ControlStub
from elasticdl.wire.usage import REPORT_SECONDS, Meter

log = logging.getLogger(__name__)

OPTIONS = (
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.ping_timeout_ms", 5000),  # newer gRPC uses this one, with a default of a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)
# Without the ping options a server disconnects clients that ping a silent stream.
SERVER_OPTIONS = (
    *OPTIONS,
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 100),
    # The launcher keeps the port bound for the life of the job, so it must be shared. The journal's lock ensures that
    # there is only one master.
    ("grpc.so_reuseport", 1),
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
        options: Sequence[tuple[str, Any]] = OPTIONS,
        certificate: str | None = None,
    ) -> None:
        self.address, self.token, self.certificate = address, token, certificate
        self.hello, self.receive = hello, receive
        self.patience_seconds, self.options = patience_seconds, options
        self.broken = asyncio.Event()  # set while a stream that was open is not
        self._outbox: asyncio.Queue[pb.FromReplica | None] | None = None
        self._closing = False
        self._over = asyncio.Event()

    def send(self, message: pb.FromReplica) -> None:
        """Send on the open stream. Without one the message is dropped; the next Hello repeats what matters."""
        if self._outbox is not None:
            self._outbox.put_nowait(message)

    async def close(self, seconds: float) -> None:
        """End the stream once the master has read all messages, or the Hello that repeats them.

        Canceling a stream would drop messages that the master has not read.
        """
        self._closing = True
        if self._outbox is not None:
            self._outbox.put_nowait(None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)

    async def run(self) -> None:
        """Keep the stream open until closed. Raises Refused, or Unreachable if the master does not answer."""
        reporting = asyncio.create_task(self._report_usage())
        try:
            await self._run()
        finally:
            reporting.cancel()
            self._over.set()

    async def _report_usage(self) -> None:
        meter = Meter()
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self.send(pb.FromReplica(usage=meter.read()))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        away_since, wait = loop.time(), FIRST_RETRY_SECONDS
        async with tls.channel(self.address, self.options, self.certificate) as channel:
            while True:
                welcome = False
                try:
                    async with contextlib.aclosing(self._stream(channel)) as messages:
                        async for message in messages:
                            welcome = True
                            self.receive(message)
                    if self._closing:
                        return
                    reason = "the master closed the stream"
                except grpc.aio.AioRpcError as error:
                    if error.code() in NO:
                        raise Refused(f"the master at {self.address} refused: {error.details()}") from error
                    reason = f"{error.code().name.lower()}: {error.details()}"
                now = loop.time()
                if welcome:  # the master was there until now, even if it sent nothing
                    away_since, wait = now, FIRST_RETRY_SECONDS
                if now - away_since > self.patience_seconds:
                    raise Unreachable(f"no master at {self.address} for {now - away_since:.0f} s ({reason})")
                log.info("Lost the stream to the master (%s); reconnecting", reason)
                await asyncio.sleep(wait)
                wait = min(2 * wait, LAST_RETRY_SECONDS)

    async def _stream(self, channel: grpc.aio.Channel) -> AsyncGenerator[pb.ToReplica, None]:
        outbox: asyncio.Queue[pb.FromReplica | None] = asyncio.Queue()

        async def messages() -> AsyncIterator[pb.FromReplica]:
            while (message := await outbox.get()) is not None:
                yield message

        call = ControlStub(channel).Connect(messages(), metadata=auth.metadata(self.token))
        outbox.put_nowait(self.hello())
        if self._closing:
            outbox.put_nowait(None)
        self._outbox = outbox
        self.broken.clear()
        try:
            async for message in call:
                yield message
        finally:
            call.cancel()
            self._outbox = None
            self.broken.set()
