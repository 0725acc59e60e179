"""Notifies the event loop when a process ends, without polling."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

Cancel = Callable[[], None]


def on_exit(pid: int, callback: Callable[[], None]) -> Cancel:
    """Call `callback` in the running loop when this child has ended; the callback reaps it. Returns a cancel function.

    Uses a pidfd where the kernel supports it, otherwise a waiting thread.
    """
    try:
        fd = open_pidfd(pid)
    except OSError:
        return on_exit_by_thread(pid, callback)
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        if loop.remove_reader(fd):
            os.close(fd)

    def readable() -> None:
        cancel()
        callback()

    loop.add_reader(fd, readable)
    return cancel


def on_exit_by_thread(pid: int, callback: Callable[[], None]) -> Cancel:
    """`on_exit` for systems without pidfd."""
    loop = asyncio.get_running_loop()
    cancelled = threading.Event()

    def ended() -> None:
        if not cancelled.is_set():
            callback()

    def wait() -> None:
        with contextlib.suppress(ChildProcessError):  # already reaped by other code
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(ended)

    threading.Thread(target=wait, name=f"wait-{pid}", daemon=True).start()
    return cancelled.set


def open_pidfd(pid: int) -> int:
    """A file descriptor that becomes readable when the process ends; OSError where this is not supported."""
    if not hasattr(os, "pidfd_open"):
        raise OSError("this system has no pidfd")
    return os.pidfd_open(pid)


async def all_ended(pids: Iterable[int], deadline_seconds: float) -> bool:
    """Wait until these processes, not only our children, have ended. False if the deadline passes first.

    Without pidfd it returns True at once: there is nothing to wait on but a clock.
    """
    loop = asyncio.get_running_loop()
    waits: list[asyncio.Future[None]] = []
    fds: list[int] = []
    try:
        for pid in pids:
            try:
                fd = open_pidfd(pid)
            except OSError:
                continue  # ended already, or no pidfd here
            future: asyncio.Future[None] = loop.create_future()
            loop.add_reader(fd, _resolve, future)
            fds.append(fd)
            waits.append(future)
        if not waits:
            return True
        _, pending = await asyncio.wait(waits, timeout=deadline_seconds)
        return not pending
    finally:
        for fd in fds:
            loop.remove_reader(fd)
            os.close(fd)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def catches(pid: int, signum: int) -> bool:
    """Whether a process handles this signal, according to /proc; False where there is no /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signum - 1) & 1)


def group_members(group: int) -> list[int]:
    """The running processes of a group, according to /proc; empty where there is no /proc."""
    members = []
    for entry in _process_folders():
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue  # ended while we looked
        # The command is in brackets and may itself contain brackets and spaces.
        state, _parent, its_group = stat[stat.rindex(")") + 2 :].split(" ", 3)[:3]
        if int(its_group) == group and state not in "ZX":
            members.append(int(entry.name))
    return members


def _process_folders() -> list[Path]:
    try:
        return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return []
