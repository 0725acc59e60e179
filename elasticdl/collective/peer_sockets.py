"""Short signals between workers on one machine, through a Unix socket for each pair of them.

The same signals through Gloo cost each of two workers 0.5 ms of CPU time apiece, since a thread of Gloo wakes up for
each. As with Gloo, a wait ends at once when the peer is gone or the sockets are shut down.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_MESSAGE = struct.Struct("<BB")  # a signal and a flag
_GREETING = struct.Struct("<16sq")  # a secret that only members know, and the sender's rank
FILLED, READY, READ = 1, 2, 3  # of a vector: a part is written, all of it is; and all other vectors are read


class PeerLost(Exception):
    """A peer did not send or receive what it should."""

    def __init__(self, peer: int, text: str) -> None:
        self.peer = peer
        super().__init__(text)


class PeerSockets:
    """One member's sockets, by the peer's rank. All calls from one thread, except `shut_down`."""

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        self._sockets = dict(sockets)

    def send(self, signal: int, flag: bool = False) -> None:
        """Send it to all peers; it is too short to block."""
        for peer, connection in self._sockets.items():
            try:
                connection.sendall(_MESSAGE.pack(signal, flag), socket.MSG_NOSIGNAL)
            except OSError as error:
                raise PeerLost(peer, str(error)) from error

    def receive(self, signal: int) -> bool:
        """Wait for this signal from all peers; whether any of them set its flag."""
        flags = []
        for peer, connection in self._sockets.items():
            try:
                data = connection.recv(_MESSAGE.size, socket.MSG_WAITALL)
            except OSError as error:
                raise PeerLost(peer, str(error)) from error
            if len(data) < _MESSAGE.size:
                raise PeerLost(peer, "the connection is closed")
            received, flag = _MESSAGE.unpack(data)
            if received != signal:
                raise PeerLost(peer, f"received signal {received}, expected {signal}")
            flags.append(bool(flag))
        return any(flags)

    def shut_down(self) -> None:
        """End every wait at both ends. From any thread."""
        for connection in self._sockets.values():
            with contextlib.suppress(OSError):  # the peer was faster
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for connection in self._sockets.values():
            connection.close()


class PeerListener:
    """Where the other members of a world connect to this one. Its name is in no file system, and ends with it."""

    def __init__(self) -> None:
        self._secret, self._network = secrets.token_bytes(16), str(Path("/proc/self/ns/net").readlink())
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(b"\0elasticdl-" + secrets.token_hex(16).encode())
        self._socket.listen(16)

    def address(self) -> Mapping[str, str]:
        """What others need to connect, and the network namespace in which the name is valid."""
        name = bytes(self._socket.getsockname())
        return {"name": name.hex(), "secret": self._secret.hex(), "network": self._network}

    def connect(self, rank: int, addresses: Sequence[Mapping[str, str]], seconds: float) -> PeerSockets | None:
        """Connect to lower ranks and accept higher ones; None where one of them is not there within `seconds`.

        All members do this at the same time.
        """
        deadline = time.monotonic() + seconds
        found: dict[int, socket.socket] = {}
        try:
            for peer, address in enumerate(addresses[:rank]):
                found[peer] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                found[peer].settimeout(_left(deadline))
                found[peer].connect(bytes.fromhex(address["name"]))
                found[peer].sendall(_GREETING.pack(bytes.fromhex(address["secret"]), rank), socket.MSG_NOSIGNAL)
            while len(found) < len(addresses) - 1:
                self._accept(found, range(rank + 1, len(addresses)), deadline)
        except OSError:
            for connection in found.values():
                connection.close()
            return None
        for connection in found.values():
            connection.settimeout(None)
        return PeerSockets(found)

    def _accept(self, found: dict[int, socket.socket], expected: range, deadline: float) -> None:
        self._socket.settimeout(_left(deadline))
        connection, _ = self._socket.accept()
        with contextlib.ExitStack() as stack:
            stack.enter_context(connection)  # closed, unless it turns out to be a member's
            connection.settimeout(_left(deadline))
            greeting = connection.recv(_GREETING.size, socket.MSG_WAITALL)
            if len(greeting) < _GREETING.size:
                return
            secret, peer = _GREETING.unpack(greeting)
            if secrets.compare_digest(secret, self._secret) and peer in expected and peer not in found:
                found[peer] = connection
                stack.pop_all()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends a wait in `connect`
        self._socket.close()


def listen() -> PeerListener | None:
    """None where the system has no such sockets, or no more of them."""
    try:
        return PeerListener()
    except OSError:
        return None


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("not all members have connected")
    return left
