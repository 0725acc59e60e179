"""The TCP connections of a process group: which peer each leads to, and how to shut them down.

Gloo cannot abandon a collective: its threads stay in it until the timeout, and a late peer still writes into its
buffers. But its connections can be shut down from outside, and then every wait for them fails at once, at both ends.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

Address = tuple[str, int]

_OPEN_FILES = Path("/dev/fd")
_NAMED = re.compile(r"\[([0-9a-fA-F.:%]+)\]:(\d+)")


def listening_address(value: bytes) -> Address | None:
    """A member's address, from what Gloo has put into the store; None if the format is unknown.

    A length and so many bytes of host name, then a length and a `struct sockaddr_storage`.
    """
    try:
        (name,) = struct.unpack_from("<Q", value)
        start = 8 + name + 8
        (family,) = struct.unpack_from("=H", value, start)
        (port,) = struct.unpack_from(">H", value, start + 2)
        if family == socket.AF_INET:
            return socket.inet_ntop(socket.AF_INET, value[start + 4 : start + 8]), port
        if family == socket.AF_INET6:
            return socket.inet_ntop(socket.AF_INET6, value[start + 8 : start + 24]), port
    except (struct.error, ValueError, OverflowError):
        pass
    return None


def named_in(error: str, addresses: Mapping[int, Address]) -> list[int]:
    """The ranks whose address an error of Gloo contains. Gloo writes ports with their bytes swapped."""
    ports = {(host, int(port)) for host, port in _NAMED.findall(error)}
    swapped = {(host, int.from_bytes(port.to_bytes(2, "little"), "big")) for host, port in ports if port < 1 << 16}
    return [rank for rank, address in addresses.items() if address in ports or address in swapped]


def shut_down(addresses: Iterable[Address]) -> int:
    """Shut down every connection of this process from or to these listening addresses; their number."""
    wanted = set(addresses)
    count = 0
    for number in [int(path.name) for path in _OPEN_FILES.iterdir()]:
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            # A duplicate stays valid even if another thread closes the original now.
            with socket.socket(fileno=os.dup(number)) as connection:
                ends = {connection.getsockname()[:2], connection.getpeername()[:2]}
                if ends & wanted:
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
        except (OSError, TypeError):
            continue  # closed meanwhile, not connected, or not an IP socket
    return count
