"""Connections between the replicas of a job, TCP and local: found through /proc, and broken for real from outside."""

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
_STREAM, _CONNECTED = "0001", "03"  # of local sockets
_UCRED = struct.Struct("3i")
_SS_SECONDS = 5.0

Address = tuple[str, int]


@dataclass(frozen=True)
class Connection:
    """One end of a connection, held by a process of the job."""

    pid: int
    fd: int
    inode: int
    ends: tuple[Address, Address] | None = None  # here and there; None: a local socket


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
    found = [*_tcp(replica, pids), *_local(replica, pids)]
    planes = {name: "control" if MASTER in (pids[replica][0], role) else "data" for name, (role, _) in pids.items()}
    known = [Line(c, peer, planes[peer]) for c, peer in found if peer != replica]
    return sorted(known, key=lambda line: (line.plane, line.peer, line.end.fd))


def _tcp(replica: str, pids: Mapping[str, tuple[str, int]]) -> Iterator[tuple[Connection, str]]:
    held = {name: list(established(pid)) for name, (_, pid) in pids.items()}
    owners = {c.ends: name for name, found in held.items() for c in found}
    for c in held.get(replica, []):
        assert c.ends is not None
        peer = owners.get((c.ends[1], c.ends[0]))
        if peer is not None:
            yield c, peer


def _local(replica: str, pids: Mapping[str, tuple[str, int]]) -> Iterator[tuple[Connection, str]]:
    """Through a socket in a directory: the listening end is asked for its peer, since the other end bears no name."""
    names = {pid: name for name, (_, pid) in pids.items()}
    for name, (_, pid) in pids.items():
        for c in accepted(pid):
            try:
                peer = names.get(_came_from(c))
            except OSError:  # closed by now, or not ours to take
                continue
            if peer is not None and replica in (name, peer):
                yield c, peer if replica == name else name


def established(pid: int) -> Iterator[Connection]:
    """The TCP connections that a process has open."""
    fds = _sockets(pid)
    for state, local, remote, inode in _table(pid):
        if state == _ESTABLISHED and inode in fds:
            yield Connection(pid, fds[inode], inode, (local, remote))


def accepted(pid: int) -> Iterator[Connection]:
    """The local connections that others made to a process; their own ends have no path."""
    fds = _sockets(pid)
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
            fields = line.split(maxsplit=7)
            if len(fields) == 8 and fields[4] == _STREAM and fields[5] == _CONNECTED and int(fields[6]) in fds:
                yield Connection(pid, fds[int(fields[6])], int(fields[6]))


def _came_from(c: Connection) -> int:
    """The process at the other end of an accepted local connection."""
    with socket.socket(fileno=_take(c)) as connection:
        return int(_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[0])


def listening(pid: int, every_process: bool = False) -> dict[int, int]:
    """Inode and port of each socket on which a process (or any that shares its network) listens."""
    fds = {} if every_process else _sockets(pid)
    return {
        inode: local[1]
        for state, local, _, inode in _table(pid)
        if state == _LISTEN and (every_process or inode in fds)
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
        # A kernel (or a filter of system calls) without it is treated like one that refuses.
        code = errno.EPERM if number == errno.ENOSYS else number
        raise OSError(code, os.strerror(number))
    if os.fstat(taken).st_ino != c.inode:
        os.close(taken)
        raise OSError(errno.EBADF, "the descriptor is another connection's by now")
    return taken


def _cut_by_ss(c: Connection) -> bool:
    """By the administrator's way: needs CAP_NET_ADMIN and a kernel with INET_DIAG_DESTROY."""
    ss = shutil.which("ss")
    if ss is None or c.ends is None:
        return False
    here, there = c.ends[0][1], c.ends[1][1]
    ends = ["sport", "=", f":{here}", "and", "dport", "=", f":{there}"]
    try:
        done = subprocess.run([ss, "-HntK", *ends], capture_output=True, text=True, timeout=_SS_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return str(there) in done.stdout  # it lists what it killed, and is silent where it could not


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
