"""Short words among workers on one machine, through a socket for each pair of them.

The same words through Gloo cost each of two workers 0.5 ms of CPU time apiece, since a thread of Gloo's own wakes up
for each. Like Gloo's, these sockets tell at once that the other side is gone, and whoever waits is freed when they are
cut.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_WORD = struct.Struct("<BB")  # what is said, and a flag
_GREETING = struct.Struct("<16sq")  # a word that only members know, and who it is
FILLED, READY, READ = 1, 2, 3  # of a vector: some of it, all of it; and that everybody else's has been read


class Lost(Exception):
    """What was to come from a peer, or to go there, did not."""

    def __init__(self, peer: int, text: str) -> None:
        self.peer = peer
        super().__init__(text)


class Words:
    """One member's sockets, by the rank of who is at the other end. All calls from one thread, but `cut`."""

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        self._sockets = dict(sockets)

    def tell(self, what: int, flag: bool = False) -> None:
        """Say it to everybody: it is short enough never to wait."""
        for peer, there in self._sockets.items():
            try:
                there.sendall(_WORD.pack(what, flag), socket.MSG_NOSIGNAL)
            except OSError as error:
                raise Lost(peer, str(error)) from error

    def hear(self, what: int) -> bool:
        """Wait until everybody has said it; whether anybody's flag was set."""
        flags = []
        for peer, there in self._sockets.items():
            try:
                text = there.recv(_WORD.size, socket.MSG_WAITALL)
            except OSError as error:
                raise Lost(peer, str(error)) from error
            if len(text) < _WORD.size:
                raise Lost(peer, "the connection is closed")
            said, flag = _WORD.unpack(text)
            if said != what:
                raise Lost(peer, f"it says {said} where {what} was to come")
            flags.append(bool(flag))
        return any(flags)

    def cut(self) -> None:
        """Nothing comes in or leaves any more; whoever waits, here or there, hears of it. From any thread."""
        for there in self._sockets.values():
            with contextlib.suppress(OSError):  # the other side was faster
                there.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for there in self._sockets.values():
            there.close()


class Door:
    """Where the others of a world reach this member. Its name is in no file system, and goes with it."""

    def __init__(self) -> None:
        self._word, self._network = secrets.token_bytes(16), str(Path("/proc/self/ns/net").readlink())
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(b"\0elasticdl-" + secrets.token_hex(16).encode())
        self._listening.listen(16)

    def offer(self) -> Mapping[str, str]:
        """What others need to find it, and the network in which its name is known."""
        name = bytes(self._listening.getsockname())
        return {"name": name.hex(), "word": self._word.hex(), "network": self._network}

    def meet(self, rank: int, offers: Sequence[Mapping[str, str]], seconds: float) -> Words | None:
        """Connect to those before this member, let those behind it in; None where one does not come within `seconds`.

        All members do this at the same time.
        """
        deadline = time.monotonic() + seconds
        found: dict[int, socket.socket] = {}
        try:
            for peer, offer in enumerate(offers[:rank]):
                found[peer] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                found[peer].settimeout(_left(deadline))
                found[peer].connect(bytes.fromhex(offer["name"]))
                found[peer].sendall(_GREETING.pack(bytes.fromhex(offer["word"]), rank), socket.MSG_NOSIGNAL)
            while len(found) < len(offers) - 1:
                self._let_in(found, range(rank + 1, len(offers)), deadline)
        except OSError:
            for there in found.values():
                there.close()
            return None
        for there in found.values():
            there.settimeout(None)
        return Words(found)

    def _let_in(self, found: dict[int, socket.socket], expected: range, deadline: float) -> None:
        self._listening.settimeout(_left(deadline))
        there, _ = self._listening.accept()
        with contextlib.ExitStack() as stack:
            stack.enter_context(there)  # a stranger's is closed
            there.settimeout(_left(deadline))
            greeting = there.recv(_GREETING.size, socket.MSG_WAITALL)
            if len(greeting) < _GREETING.size:
                return
            word, peer = _GREETING.unpack(greeting)
            if secrets.compare_digest(word, self._word) and peer in expected and peer not in found:
                found[peer] = there
                stack.pop_all()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # whoever waits there waits no longer
        self._listening.close()


def door() -> Door | None:
    """None where the system has no such sockets, or no more of them."""
    try:
        return Door()
    except OSError:
        return None


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("not everybody has come")
    return left
