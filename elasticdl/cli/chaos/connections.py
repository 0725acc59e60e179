"""TCP connections between the replicas of a job: found through /proc, and broken for real from outside."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticdl.job.names import MASTER

_PIDFD_GETFD = 438  # the same number on every architecture that has it
_ESTABLISHED, _LISTEN = "01", "0A"
_SS_SECONDS = 5.0

Address = tuple[str, int]


@dataclass(frozen=True)
class Connection:
    """One end of a connection, held by a process of the job."""

    pid: int
    fd: int
    local: Address
    remote: Address


@dataclass(frozen=True)
class Line:
    """A connection between two replicas, by their names and roles."""

    end: Connection
    peer: str
    plane: str  # control or data

    def __str__(self) -> str:
        return f"{self.plane} connection to {self.peer}"


class NotPermitted(Exception):
    """This user may not break connections of other processes."""


def lines(replica: str, pids: Mapping[str, tuple[str, int]]) -> list[Line]:
    """The connections of a replica to others, in an order that does not depend on port numbers.

    `pids` has (role, process id) by name.
    """
    ends = {name: list(established(pid)) for name, (_, pid) in pids.items()}
    owners = {(c.local, c.remote): name for name, found in ends.items() for c in found}
    found = []
    for c in ends.get(replica, []):
        peer = owners.get((c.remote, c.local))
        if peer is not None and peer != replica:
            control = MASTER in (pids[replica][0], pids[peer][0])
            found.append(Line(c, peer, "control" if control else "data"))
    return sorted(found, key=lambda line: (line.plane, line.peer, line.end.fd))


def established(pid: int) -> Iterator[Connection]:
    """The TCP connections that a process has open."""
    fds = _sockets(pid)
    for state, local, remote, inode in _table(pid):
        if state == _ESTABLISHED and inode in fds:
            yield Connection(pid, fds[inode], local, remote)


def listening(pid: int, everybody: bool = False) -> dict[int, int]:
    """Inode and port of each socket on which a process (or any that shares its network) listens."""
    fds = {} if everybody else _sockets(pid)
    return {
        inode: local[1] for state, local, _, inode in _table(pid) if state == _LISTEN and (everybody or inode in fds)
    }


def cut(c: Connection) -> None:
    """Shut a connection of another process down, in both directions; OSError when it is gone already."""
    try:
        taken = _take(c)
    except PermissionError as error:
        if not _cut_by_ss(c):
            raise NotPermitted(str(error.strerror)) from error
        return
    with socket.socket(fileno=taken) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def _take(c: Connection) -> int:
    """A descriptor of our own for another process's socket."""
    process = os.pidfd_open(c.pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        taken = int(libc.syscall(_PIDFD_GETFD, process, c.fd, 0))
        number = ctypes.get_errno()
    finally:
        os.close(process)
    if taken < 0:
        # A kernel (or a filter of system calls) without it is the same to us as one that says no.
        code = errno.EPERM if number == errno.ENOSYS else number
        raise OSError(code, os.strerror(number))
    with contextlib.suppress(OSError):
        mine = socket.socket(fileno=os.dup(taken))
        with mine:
            if mine.getpeername()[1] == c.remote[1] and mine.getsockname()[1] == c.local[1]:
                return taken
    os.close(taken)
    raise OSError(errno.EBADF, "the descriptor is another connection's by now")


def _cut_by_ss(c: Connection) -> bool:
    """By the administrator's way: needs CAP_NET_ADMIN and a kernel with INET_DIAG_DESTROY."""
    ss = shutil.which("ss")
    if ss is None:
        return False
    ends = ["sport", "=", f":{c.local[1]}", "and", "dport", "=", f":{c.remote[1]}"]
    try:
        done = subprocess.run([ss, "-HntK", *ends], capture_output=True, text=True, timeout=_SS_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return str(c.remote[1]) in done.stdout  # it lists what it killed, and is silent where it could not


def _sockets(pid: int) -> dict[int, int]:
    """Descriptor by inode, of every socket that a process has open."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    found[int(target[8:-1])] = int(entry.name)
    return found


def _table(pid: int) -> Iterator[tuple[str, Address, Address, int]]:
    """(state, local, remote, inode) of the sockets in a process's network."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                yield fields[3], _address(fields[1]), _address(fields[2]), int(fields[9])


def _address(text: str) -> Address:
    """`0100007F:1F90` as ("127.0.0.1", 8080)."""
    digits, port = text.split(":")
    raw = struct.pack(f"={len(digits) // 8}I", *(int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)))
    if len(raw) == 16 and raw[:12] == bytes(10) + b"\xff\xff":
        raw = raw[12:]  # an IPv4 connection of an IPv6 socket
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, raw), int(port, 16)
