"""Control servers on loopback that a test can stop and start again, and a TCP proxy that cuts or swallows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import grpc

from elasticdl.core import events as e
from elasticdl.master.servicer import Streams
from elasticdl.strategies.parameter_servers.messages import event_of
from elasticdl.wire import PROTOCOL, auth, tls
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_service import ControlStub, serve_control
from elasticdl.wire.link import OPTIONS, SERVER_OPTIONS, Link

TOKEN = "the secret of this job"
NAME = "elasticdl-j-worker-0"
DATASETS = '{"training": "described"}'


def hello(name: str = NAME, incarnation: str = "one", protocol: int = PROTOCOL, **more: Any) -> pb.FromReplica:
    return pb.FromReplica(hello=pb.Hello(protocol=protocol, replica=name, incarnation=incarnation, **more))


def progress(next_batch: int) -> pb.FromReplica:
    return pb.FromReplica(progress=pb.Progress(shard="train/0/0", attempt=1, next_batch=next_batch))


class Hall:
    """A master's streams without a master; keeps the messages that they receive."""

    def __init__(
        self, admits: Callable[[str, str], bool] = lambda name, incarnation: True, status_seconds: float = 0.02,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.admits, self.status_seconds, self.env = admits, status_seconds, env
        self.port = 0
        self.starts = 0
        self.heard: asyncio.Queue[e.Event] = asyncio.Queue()
        self.statuses = 0
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, options: Sequence[tuple[str, Any]] = SERVER_OPTIONS) -> None:
        self.starts += 1
        self.streams = Streams(
            TOKEN,
            self.starts,
            self.heard.put_nowait,
            self._hear,
            self.admits,
            self._status,
            status_seconds=self.status_seconds,
            datasets=DATASETS,
        )
        self._server = grpc.aio.server(options=options)
        serve_control(self.streams, self._server)
        self.port = tls.listen(self._server, self.address, self.env)
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    def _hear(self, replica: str, message: pb.FromReplica) -> None:
        self.heard.put_nowait(event_of(replica, message))

    def _status(self) -> pb.Status:
        self.statuses += 1
        return pb.Status(version=self.statuses)

    async def hear(self, kind: type[e.Event]) -> Any:
        """The next event of this kind; others before it are thrown away."""
        async with asyncio.timeout(10):
            while not isinstance(event := await self.heard.get(), kind):
                pass
            return event

    async def __aenter__(self) -> Hall:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class Replica:
    """A link that runs, and what it received."""

    def __init__(
        self,
        address: str,
        say: Callable[[], pb.FromReplica] = hello,
        token: str = TOKEN,
        patience_seconds: float = 10.0,
        options: Sequence[tuple[str, Any]] = OPTIONS,
        certificate: str | None = None,
    ) -> None:
        self.received: asyncio.Queue[pb.ToReplica] = asyncio.Queue()
        self.link = Link(address, token, say, self.received.put_nowait, patience_seconds, options, certificate)

    async def __aenter__(self) -> Replica:
        self.task = asyncio.create_task(self.link.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def receive(self, kind: str) -> Any:
        """The next message of this kind; fails at once if the link ends before."""
        async with asyncio.timeout(10):
            while True:
                get = asyncio.ensure_future(self.received.get())
                await asyncio.wait({get, self.task}, return_when=asyncio.FIRST_COMPLETED)
                if not get.done():
                    get.cancel()
                    self.task.result()
                message = await get
                if message.WhichOneof("body") == kind:
                    return getattr(message, kind)


@contextlib.asynccontextmanager
async def stub(address: str) -> AsyncIterator[ControlStub]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield ControlStub(channel)


@contextlib.asynccontextmanager
async def raw_stream(address: str, token: str | None = TOKEN) -> AsyncIterator[Any]:
    """A stream without Link's manners."""
    async with stub(address) as control:
        call = control.Connect(metadata=auth.metadata(token) if token is not None else None)
        try:
            yield call
        finally:
            call.cancel()


class Proxy:
    """Forwards TCP to another port of this machine, until it is stopped."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = self._opened()
        self.connections = 0

    def _opened(self) -> asyncio.Event:
        gate = asyncio.Event()
        gate.set()
        return gate

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        self._open.set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset every connection that is open."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def swallow(self) -> None:
        """Keep connections open and forward nothing: what a frozen machine or a lost route looks like."""
        self._open.clear()

    def swallow_so_far(self) -> None:
        """`swallow` for the connections there are; those made later are good ones."""
        self._open.clear()
        self._open = self._opened()

    def forward(self) -> None:
        self._open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there_writer}
        gate = self._open
        await asyncio.gather(self._pump(reader, there_writer, gate), self._pump(there_reader, writer, gate))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await gate.wait()
                writer.write(data)
                await writer.drain()
            writer.close()
