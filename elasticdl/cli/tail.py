"""Follows log files as they grow, without polling."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_MODIFY, _MOVED_TO, _CREATE = 0x2, 0x80, 0x100  # inotify's bits
_CLOCK_SECONDS = 0.2  # how often to look where the system does not notify


class Changes:
    """Waits until a file of a directory grows or appears: by inotify, or by the clock where there is none."""

    def __init__(self, directory: Path) -> None:
        self._changed = asyncio.Event()
        self._fd = _inotify(directory)
        if self._fd is not None:
            asyncio.get_running_loop().add_reader(self._fd, self._hear)

    def _hear(self) -> None:
        assert self._fd is not None
        os.read(self._fd, 1 << 16)
        self._changed.set()

    async def wait(self) -> None:
        if self._fd is None:
            await asyncio.sleep(_CLOCK_SECONDS)
        else:
            await self._changed.wait()
            self._changed.clear()

    def close(self) -> None:
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Changes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _inotify(directory: Path) -> int | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        return None  # too many of them on this machine
    if libc.inotify_add_watch(fd, os.fsencode(directory), _MODIFY | _MOVED_TO | _CREATE) < 0:
        os.close(fd)
        return None
    return fd


class LogReader:
    """Reads the lines that a log file has gained since the last time."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self._offset, self._rest = path, offset, b""

    def new_lines(self) -> Iterator[str]:
        """Lines that are complete by now."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:  # its replica has not started yet
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r")

    def last_line(self) -> Iterator[str]:
        """The rest after the last line end, once the file is complete."""
        yield from self.new_lines()
        if self._rest:
            yield self._rest.decode(errors="replace")
            self._rest = b""
