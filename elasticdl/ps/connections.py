"""A worker's connections to the servers. Requests go to all servers at once; without an answer they are sent again."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from elasticdl import faults
from elasticdl.errors import Refused, WireError
from elasticdl.wire import frames
from elasticdl.wire.auth import Keys

log = logging.getLogger(__name__)

RESEND_SECONDS, LAST_RESEND_SECONDS, WARN_SECONDS = 2.0, 16.0, 30.0
HEARTBEAT_MILLISECONDS = 5000
FAULTS = {  # before which request of an operation
    (frames.Push, 1): "worker.between_pushes",
    (frames.Confirm, 0): "worker.before_confirm",
    (frames.Confirm, 1): "worker.between_confirms",
}


class Interrupted(WireError):
    """The worker stopped waiting: it lost the lease, or it has to end."""


class Resend(WireError):
    """A server expects an earlier batch of the lease first."""

    def __init__(self, server: int, next_batch: int) -> None:
        self.next_batch = next_batch
        super().__init__(f"ps-{server} expects batch {next_batch} first")


class Stale(WireError):
    """In synchronous training: a server rejected a push that was computed on too old a version."""

    def __init__(self, server: int, version: int) -> None:
        super().__init__(f"ps-{server} is at version {version}")


class TimelineOver(WireError):
    """A server is on another timeline, since the job rolled back or is about to; `move` there once it is known."""

    def __init__(self, server: int, text: str) -> None:
        self.server, self.text = server, text
        super().__init__(f"ps-{server}: {text}")


Reply = tuple[frames.Done, list[memoryview]]
Take = Callable[[int, Reply], None]


@dataclass
class _Pending:
    """Requests of one operation that wait for their answers."""

    operation: str
    first: int  # number of the first request
    take: Take
    unanswered: dict[int, tuple[int, list[Any]]] = field(default_factory=dict)  # number -> server, frames


def nearest(address: str) -> str:
    """The server's socket on this machine if there is one, else its TCP address."""
    far, _, local = address.partition(" ")
    return local if local and Path(local.removeprefix("ipc://")).is_socket() else far


class Connections:
    """Used by one thread, except `interrupt`. The first request on new connections greets the servers."""

    def __init__(
        self, addresses: Sequence[str], token: str, timeline: int, resend_seconds: float, keys: Keys | None = None
    ) -> None:
        self._token, self._resend_seconds, self._keys = token, resend_seconds, keys
        self._request = 0
        self._called_off: Callable[[], bool] = lambda: False
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._context = zmq.Context(1 if keys is None else 2)  # encryption is work for more than one core
        self._poller = zmq.Poller()
        self._poller.register(self._bell, zmq.POLLIN)
        self._sockets: list[zmq.Socket[bytes]] = []
        self.move(addresses, timeline)

    def move(self, addresses: Sequence[str], timeline: int) -> None:
        """Connect to these servers instead. Answers of the old ones are lost with their connections."""
        for s in self._sockets:
            self._poller.unregister(s)
            s.close(0)
        self.addresses, self.timeline = list(addresses), timeline
        self._sockets = [self._connect(a) for a in self.addresses]
        self._greeted = False

    def close(self) -> None:
        for s in self._sockets:
            s.close(0)
        self._context.term()
        self._bell.close()
        self._rope.close()

    def interrupt(self) -> None:
        """From any thread: ask the question of `called_off_by` again."""
        with contextlib.suppress(OSError):  # full: it rings already; closed: no request waits
            self._rope.send(b"!")

    def called_off_by(self, question: Callable[[], bool]) -> None:
        self._called_off = question

    def ask(self, operation: frames.Operation, requests: Sequence[tuple[int, Sequence[Any]]], take: Take) -> None:
        """Send each (server, parts). `take` gets the place of a request and its answer, in the order of the answers."""
        kind = type(operation)
        if not self._greeted and kind is not frames.Greet:
            greeting = [self._token.encode()]
            self.ask(frames.Greet(), [(s, greeting) for s in range(len(self._sockets))], lambda place, reply: None)
            self._greeted = True
        pending = _Pending(kind.__name__, self._request + 1, take)
        for place, (server, parts) in enumerate(requests):
            if (kind, place) in FAULTS:
                faults.point(FAULTS[kind, place])
            self._request += 1
            header = frames.Header(self._request, self.timeline, operation)
            sent = [header.pack(), *frames.cut(parts)]
            pending.unanswered[self._request] = (server, sent)
            self._send(server, sent)
        self._collect(pending)

    def _send(self, server: int, sent: list[Any]) -> None:
        """A request that cannot be sent, since the connection broke, is sent again as one without an answer."""
        with contextlib.suppress(zmq.Again):
            self._sockets[server].send_multipart(sent, zmq.NOBLOCK, copy=False)

    def _collect(self, pending: _Pending) -> None:
        began, wait = time.monotonic(), self._resend_seconds
        resend, warn = began + wait, began + WARN_SECONDS
        while pending.unanswered:
            ready = dict(self._poller.poll(int(max(0.0, resend - time.monotonic()) * 1000) + 1))
            if self._bell.fileno() in ready:
                self._bell.recv(4096)
            if self._called_off():
                raise Interrupted("the worker stopped waiting")
            for server, s in enumerate(self._sockets):
                if s in ready:
                    self._receive(server, pending)
            now = time.monotonic()
            if now >= resend:
                for server, sent in pending.unanswered.values():
                    self._send(server, sent)
                # Slower each time: more copies do not help a server that is busy with a checkpoint.
                wait = min(2 * wait, LAST_RESEND_SECONDS)
                resend = now + wait
                if now >= warn and pending.unanswered:
                    silent = sorted({server for server, _ in pending.unanswered.values()})
                    where = ", ".join(f"ps-{s} ({self.addresses[s]})" for s in silent)
                    log.warning("No answer to %s for %.0f s from %s", pending.operation, now - began, where)
                    warn = now + WARN_SECONDS

    def _receive(self, server: int, pending: _Pending) -> None:
        while True:
            try:
                received = self._sockets[server].recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            header = frames.read(received[0].buffer, frames.ANSWERS)
            if header.request not in pending.unanswered:
                continue  # the second answer to a request that was sent twice
            body = frames.joined([f.buffer for f in received[1:]])
            match header.message:
                case frames.Done() as answer:
                    del pending.unanswered[header.request]
                    pending.take(header.request - pending.first, (answer, body))
                case frames.Resend(next_batch):
                    raise Resend(server, next_batch)
                case frames.Stale(version):
                    raise Stale(server, version)
                case answer:
                    reason = bytes(body[0]).decode("utf-8", "replace") if body else "no reason given"
                    if isinstance(answer, frames.Over):
                        raise TimelineOver(server, reason)
                    raise Refused(f"ps-{server} refused {pending.operation}: {reason}")

    def _connect(self, address: str) -> zmq.Socket[bytes]:
        s = self._context.socket(zmq.DEALER)
        s.setsockopt(zmq.LINGER, 0)
        s.setsockopt(zmq.SNDHWM, 0)
        s.setsockopt(zmq.RCVHWM, 0)
        s.setsockopt(zmq.IDENTITY, b"w" + secrets.token_bytes(12))
        s.setsockopt(zmq.RECONNECT_IVL, 50)
        s.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        # A connection that delivers nothing is closed, and opened again under the same identity.
        s.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MILLISECONDS)
        s.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MILLISECONDS)
        if self._keys is not None:
            self._keys.connect(s)
        if address.startswith("tcp://["):
            s.setsockopt(zmq.IPV6, 1)
        s.connect(nearest(address))
        self._poller.register(s, zmq.POLLIN)
        return s
