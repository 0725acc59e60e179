"""The master's end of the control streams: one per connected replica, with the messages to send."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from elasticdl.core import events as e
from elasticdl.errors import Refused
from elasticdl.wire import PROTOCOL, auth
from elasticdl.wire import control_pb2 as pb

log = logging.getLogger(__name__)

Outbox = asyncio.Queue[pb.ToReplica | None]


class Streams:
    """Turns messages into events; keeps one stream per replica, the newest."""

    def __init__(
        self, token: str, master_epoch: int, put: Callable[[e.Event], None],
        hear: Callable[[str, pb.FromReplica], None], admits: Callable[[str, str], bool],
        status: Callable[[], pb.Status], status_seconds: float = 0.5,
        refuses: Callable[[str, int], str] = lambda role, count: "",
        join: Callable[[int], Awaitable[pb.JoinReply]] | None = None, datasets: str = "",
    ) -> None:  # fmt: skip
        self._token, self._epoch = token, master_epoch
        self._put, self._hear, self._admits, self._status = put, hear, admits, status
        self._status_seconds, self._refuses = status_seconds, refuses
        self._datasets = datasets  # description of the data, as JSON
        self._join = join  # takes a worker that a user started
        self._outboxes: dict[str, Outbox] = {}
        self.usage: dict[str, pb.Usage] = {}  # last report of each connected replica
        self._left = asyncio.Event()  # set while no replica is connected
        self._left.set()
        self._over = asyncio.Event()
        self._goodbye: pb.ToReplica | None = None

    def send(self, replica: str, message: pb.ToReplica) -> None:
        outbox = self._outboxes.get(replica)
        if outbox is not None:
            outbox.put_nowait(message)

    def cutter(self, replica: str) -> Callable[[], None]:
        """Closes the stream that a replica has now: without messages of this master it stops after a while."""
        outbox = self._outboxes.get(replica)
        return lambda: outbox.put_nowait(None) if outbox is not None else None

    def say_goodbye(self, reason: str) -> None:
        """Tell all replicas that the job is over, also those that connect later."""
        self._goodbye = pb.ToReplica(shutdown=pb.Shutdown(reason=reason))
        for outbox in self._outboxes.values():
            outbox.put_nowait(self._goodbye)

    async def all_left(self) -> None:
        """Until no replica is connected."""
        await self._left.wait()

    def finish(self) -> None:
        """Send watchers the last status."""
        self._over.set()

    async def Join(self, request: pb.JoinRequest, context: Any) -> pb.JoinReply:
        await self._authenticate(context)
        try:
            if request.protocol != PROTOCOL:
                what = f"this worker uses protocol {request.protocol}, the master {PROTOCOL}"
                raise Refused(f"{what}: use one version of ElasticDL")
            if self._join is None:
                raise Refused("this job starts its workers itself")
            return await self._join(request.worker)
        except Refused as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise

    async def Connect(self, request_iterator: AsyncIterator[pb.FromReplica], context: Any) -> None:
        # Not a generator: a cancelled call would leave it at its `yield` until it is garbage-collected.
        await self._authenticate(context)
        first = await anext(aiter(request_iterator), None)
        if first is None or first.WhichOneof("body") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a stream starts with Hello")
            return
        hello = first.hello
        name = hello.replica
        if hello.protocol != PROTOCOL:
            what = f"{name} uses protocol {hello.protocol}, this master {PROTOCOL}: use one version of ElasticDL"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, what)
        if not self._admits(name, hello.incarnation):
            what = f"{name} is not expected, or another process replaced it"
            log.warning("Rejected a stream: %s", what)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, what)
        old = self._outboxes.get(name)
        outbox: Outbox = asyncio.Queue()
        self._outboxes[name] = outbox
        self._left.clear()
        if old is not None:
            old.put_nowait(None)
        outbox.put_nowait(pb.ToReplica(welcome=pb.Welcome(master_epoch=self._epoch)))
        if self._goodbye is not None:
            outbox.put_nowait(self._goodbye)
        self._hear(name, first)
        reader = asyncio.create_task(self._read(name, outbox, request_iterator))
        try:
            while (message := await outbox.get()) is not None:
                await context.write(message)
        finally:
            reader.cancel()
            if self._outboxes.get(name) is outbox:
                del self._outboxes[name]
                self.usage.pop(name, None)
                if not self._outboxes:
                    self._left.set()
                self._put(e.ReplicaDropped(name, hello.incarnation))

    async def _read(self, name: str, outbox: Outbox, messages: AsyncIterator[pb.FromReplica]) -> None:
        try:
            async for message in messages:
                if self._outboxes.get(name) is not outbox:
                    return
                kind = message.WhichOneof("body")
                if kind == "usage":
                    self.usage[name] = message.usage
                elif kind not in (None, "hello"):
                    self._hear(name, message)
        finally:
            outbox.put_nowait(None)

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.Description:
        await self._authenticate(context)
        return pb.Description(datasets=self._datasets)

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.Status]:
        await self._authenticate(context)
        while not self._over.is_set():
            yield self._status()
            try:
                await asyncio.wait_for(self._over.wait(), self._status_seconds)
            except TimeoutError:
                continue
        yield self._status()

    async def Stop(self, request: pb.StopRequest, context: Any) -> pb.StopReply:
        await self._authenticate(context)
        self._put(e.StopRequested(request.reason or "a stop was asked for"))
        return pb.StopReply()

    async def Scale(self, request: pb.ScaleRequest, context: Any) -> pb.ScaleReply:
        await self._authenticate(context)
        refused = self._refuses(request.role, request.count)
        if not refused:
            self._put(e.ScaleRequested(request.role, request.count))
        return pb.ScaleReply(refused=refused)

    async def _authenticate(self, context: Any) -> None:
        if not auth.authentic(self._token, context.invocation_metadata()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not the token of this job")
