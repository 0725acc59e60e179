"""A small master: it starts member processes, relays what they put into the store, and calls their tasks.

Members are forked from a process that has torch imported, so that starting one takes milliseconds.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.collective.member import serve

SECONDS = 20.0  # that any answer may take
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.collective.member"])


@dataclass
class Answer:
    """The result of a member's task."""

    done: threading.Event = field(default_factory=threading.Event)
    value: Any = None
    error: str = ""  # the exception's type
    text: str = ""
    suspects: tuple[str, ...] = ()
    at: float = 0.0  # time.monotonic() when it came

    def wait(self, seconds: float = SECONDS) -> Answer:
        assert self.done.wait(seconds), f"no answer within {seconds} s"
        return self

    def result(self, seconds: float = SECONDS) -> Any:
        self.wait(seconds)
        assert not self.error, f"{self.error}: {self.text}"
        return self.value


class Member:
    """One process."""

    def __init__(self, name: str, faults: str = "") -> None:
        self.name = name
        self.connection, theirs = _context.Pipe()
        self.process = _context.Process(target=serve, args=(theirs, name, faults), daemon=True)
        self.process.start()
        theirs.close()
        self._lock = threading.Lock()
        self._answers: dict[int, Answer] = {}
        self._count = 0

    def call(self, command: str, **arguments: Any) -> Answer:
        """Run a task in the member's main thread."""
        with self._lock:
            self._count += 1
            number, answer = self._count, Answer()
            self._answers[number] = answer
        self.send("do", number, command, arguments)
        return answer

    def send(self, *message: Any) -> None:
        with self._lock, contextlib.suppress(OSError):  # it may have ended
            self.connection.send(message)

    def answered(self, number: int, value: Any, error: str, text: str, suspects: tuple[str, ...]) -> None:
        answer = self._answers.pop(number)
        answer.value, answer.error, answer.text, answer.suspects = value, error, text, suspects
        answer.at = time.monotonic()
        answer.done.set()

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def abort(self, reason: str) -> None:
        self.send("abort", reason)

    def interrupt(self, reason: str) -> None:
        self.send("interrupt", reason)


class Relay:
    """Members by name, and the generations they were put into."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.worlds: dict[int, list[str]] = {}
        self._waker, self._woken = multiprocessing.Pipe()
        self._closed = False
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def start(self, *names: str, faults: str = "") -> list[Member]:
        for name in names:
            self.members[name] = Member(name, faults)
        self._waker.send(None)
        return [self.members[name] for name in names]

    def build(self, generation: int, *names: str, absent: tuple[str, ...] = (), **arguments: Any) -> list[Answer]:
        """Have members build a generation; absent ones belong to it, but are not called."""
        self.worlds[generation] = list(names)
        return [
            self.members[name].call("build", generation=generation, rank=rank, members=list(names), **arguments)
            for rank, name in enumerate(names)
            if name not in absent
        ]

    def together(self, generation: int, *names: str, **arguments: Any) -> list[Member]:
        """Build a generation and wait for it."""
        for answer in self.build(generation, *names, **arguments):
            answer.result()
        return [self.members[name] for name in names]

    def close(self) -> None:
        self._closed = True
        self._waker.send(None)
        self._thread.join(SECONDS)
        for member in self.members.values():
            member.process.kill()
            member.process.join(SECONDS)

    def _pass_on(self) -> None:
        gone: set[str] = set()
        while not self._closed:
            there = {m.connection: m for m in list(self.members.values()) if m.name not in gone}
            for ready in wait([self._woken, *there]):
                assert isinstance(ready, Connection)
                try:
                    message = ready.recv()
                except (EOFError, OSError):
                    gone.add(there[ready].name)
                    continue
                if ready is not self._woken:
                    self._handle(there[ready], message)

    def _handle(self, member: Member, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        if kind == "answer":
            member.answered(*rest)
        else:
            generation, key, value = rest
            for name in self.worlds[generation]:
                if name != member.name:
                    self.members[name].send("stored", generation, key, value)


@contextlib.contextmanager
def relaying() -> Iterator[Relay]:
    relay = Relay()
    try:
        yield relay
    finally:
        relay.close()
