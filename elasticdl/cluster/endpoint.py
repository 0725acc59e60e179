"""The Unix socket between the launcher and its clients: its path and its access check."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from elasticdl.errors import Problem, UsageError

_MOST_PATH_BYTES = 100  # sun_path holds 108 on Linux and 104 on macOS


def bind(path: Path) -> socket.socket:
    """A listening socket at this path, in a directory that only this user can enter."""
    _private_directory(path.parent)
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as address:
            listener.bind(address)
        path.chmod(0o600)
        listener.listen()
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def connect(path: Path) -> socket.socket:
    """A socket connected to the listener at this path; OSError if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)  # it connects at once or not at all
        with _short(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def is_own_user(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user, according to the kernel.

    Where the kernel does not tell (macOS), the directory's permissions are the only protection.
    """
    if sys.platform != "linux":
        return True
    ucred = struct.Struct("3i")
    _pid, uid, _gid = ucred.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, ucred.size))
    return bool(uid == os.geteuid())


def _private_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    # Never repaired here: a directory that others use may be a home directory, or /tmp.
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        what = "other users can enter this directory, so it must not hold the job's control socket"
        raise UsageError([Problem(str(directory), "", what, "Choose one of your own, or chmod 700 it")])


def _remove_stale(path: Path) -> None:
    """Remove the socket of a killed launcher; a running launcher keeps its own."""
    try:
        connect(path).close()
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink()
        return
    except BlockingIOError:
        pass  # alive, with a full queue
    what = "a launcher of this job is already running"
    raise UsageError([Problem(str(path), "", what, "Stop it, or rename this job")])


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """The path in a form that fits a socket address: a long path goes through an open directory."""
    if len(os.fsencode(path)) <= _MOST_PATH_BYTES or sys.platform != "linux":
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
