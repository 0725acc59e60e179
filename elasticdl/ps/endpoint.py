"""Where a server listens: the socket, how clients find it, requests and answers, and connections that were refused."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from elasticdl.wire import frames
from elasticdl.wire.auth import Keys

log = logging.getLogger(__name__)

LOCAL_HOST = "127.0.0.1"
LOG_SECONDS = 10.0  # between two log lines about refused connections
ENCRYPTION_BYTES = 64  # that CURVE adds to a frame, rounded up
MOST_PATH_BYTES = 100  # the kernel takes 107 for a socket
_EVENTS = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
# libzmq's ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC and ..._MECHANISM_MISMATCH
_REASONS = {0x11000001: "a wrong key", 0x11000002: "one side encrypts and the other does not"}


@dataclass(frozen=True)
class Request:
    """What a client asks, and where to send the answer."""

    sender: bytes
    header: frames.Header[frames.Operation]
    body: list[memoryview]


class Endpoint:
    """Belongs to the thread that serves.

    Clients on this machine connect through a socket in `directory`, which takes about a quarter less time than TCP.
    `address` is the TCP address and, after a space, that socket.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], host: str, keys: Keys | None, directory: Path | None
    ) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        # A client that reconnects keeps its identity, even if the server has not noticed the end of the old connection.
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.setsockopt(zmq.MAXMSGSIZE, frames.FRAME_BYTES + ENCRYPTION_BYTES)
        if keys is not None:
            keys.serve(self.socket)
        self.monitor = self.socket.get_monitor_socket(_EVENTS)
        if ":" in host:
            self.socket.setsockopt(zmq.IPV6, 1)
            host = f"[{host}]"
        self.socket.bind(f"tcp://{host}:*")
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._local = None if directory is None else directory / f"ps-{os.getpid()}-{id(self):x}"
        if self._local is not None and len(os.fsencode(self._local)) <= MOST_PATH_BYTES:
            self.socket.bind(f"ipc://{self._local}")
            self.address += f" ipc://{self._local}"
        self._refused, self._logged_at = 0, -LOG_SECONDS

    def receive(self, at_most: int) -> Iterator[Request]:
        """The requests that have come."""
        for _ in range(at_most):
            try:
                sender, *parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                if not parts:
                    raise frames.BadFrame("the message has no frames")
                header = frames.read(parts[0].buffer, frames.OPERATIONS)
                yield Request(bytes(sender.buffer), header, frames.joined([p.buffer for p in parts[1:]]))
            except frames.BadFrame as error:
                log.warning("Refused a message: %s", error)

    def answer(self, request: Request, answer: frames.Answer, *body: Any) -> None:
        header = frames.Header(request.header.request, request.header.timeline, answer)
        self.socket.send_multipart([request.sender, header.pack(), *frames.cut(body)], copy=False)

    def log_refused_connections(self) -> None:
        """Count and log refused connections; called when the monitor is readable."""
        reason = ""
        while self.monitor.poll(0):
            event = parse_monitor_message(self.monitor.recv_multipart())
            reason = _reason(event["event"], event["value"])
            self._refused += 1
        now = time.monotonic()
        if self._refused and now - self._logged_at >= LOG_SECONDS:
            log.warning("Refused %d connections since the last report: %s", self._refused, reason)
            self._refused, self._logged_at = 0, now

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)
        if self._local is not None:
            self._local.unlink(missing_ok=True)


def _reason(event: int, value: int) -> str:
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:  # the other side may notice first, and be gone
        return f"no handshake ({os.strerror(value)})"
    return _REASONS.get(value, f"protocol error {value:#x}")
