"""The session of an all-reduce worker, shared between its two threads: one trains, the other keeps the stream.

The training thread computes, builds groups and exchanges. Before it does something that may never end, it registers how
to interrupt it; the control thread does so as soon as the master calls it off.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from elasticdl.collective.session import Todo, WorldSession
from elasticdl.errors import CalledOff, JobFailed, Unreachable
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_thread import CLOSE_SECONDS, ControlThread
from elasticdl.wire.link import Link

log = logging.getLogger(__name__)

PULSE_SECONDS = 0.25
Messages = Sequence[pb.FromReplica]
Interrupt = Callable[[str], None]
Deliver = Callable[[str, bytes], None]
T = TypeVar("T")


class SharedSession:
    """A session under a lock. Without a stream, its messages are dropped."""

    def __init__(self, session: WorldSession, clock: Callable[[], float]) -> None:
        self._session, self._clock = session, clock
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._interrupts: list[Interrupt] = []
        self._deliver: tuple[int, Deliver] | None = None
        self._superseded_at: float | None = None  # when the master first named a newer world than the current one
        session.activity.since = clock()

    def call(self, body: Callable[[WorldSession], T]) -> T:
        """Read or change the session; for changes that no thread waits for."""
        with self._changed:
            return body(self._session)

    def send(self, body: Callable[[WorldSession], Messages]) -> None:
        """Change the session, and send the messages that this gives to the master."""
        with self._changed:
            messages = body(self._session)
            self._changed.notify_all()
        self._send(messages)

    def leave(self) -> None:
        """SIGTERM came."""
        self.send(lambda s: s.leave())

    def close(self) -> None:
        """Let the last messages out, then stop."""

    # What comes next.

    def todo(self, idle: bool) -> Todo:
        """What to do next; raises when the master was away for too long, or refused this worker."""
        with self._changed:
            self._raise()
            return self._session.todo(idle)

    def wait(self, idle: bool) -> None:
        """Until there is something to do. The master's absence is the only deadline: while it is there, it decides how
        long a world may take to form."""
        self.doing("wait")
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._session.todo(idle) is not Todo.WAIT)

    def check(self) -> None:
        """Raise CalledOff when the work of the current world is called off."""
        with self._changed:
            self._raise()
            if self._session.called_off:
                raise CalledOff(self._session.called_off)

    @contextmanager
    def interruptible(self, interrupt: Interrupt) -> Iterator[None]:
        """While inside, `interrupt` is called (by any thread) as soon as the work is called off."""
        with self._changed:
            self._interrupts.append(interrupt)
            reason = self._called_off()
        if reason:
            interrupt(reason)
        try:
            yield
        finally:
            with self._changed:
                self._interrupts.remove(interrupt)

    @contextmanager
    def delivering(self, generation: int, deliver: Deliver) -> Iterator[None]:
        """While inside, `deliver` is called with what other members put into the store of this world."""
        with self._changed:
            for key, value in self._session.world.stored_for(generation).items():
                deliver(key, value)
            self._deliver = (generation, deliver)
        try:
            yield
        finally:
            with self._changed:
                self._deliver = None

    # What the training thread did.

    def doing(self, phase: str) -> None:
        """The training thread begins this; the pulses report it, with how long it has lasted."""
        with self._changed:
            self._session.activity.begin(phase, self._clock())

    def moved(self, phase: str) -> None:
        """What the training thread waits for in this phase made progress; from any thread, also when it is over."""
        with self._changed:
            if self._session.activity.phase == phase:
                self.doing(phase)

    def may_commit(self) -> None:
        """Raise unless a step whose exchange is complete may still become part of the model."""
        with self._changed:
            self._raise()
            if self._session.cut_off(self._clock()):
                raise self._cut_off()

    def commit(self, loss: float | None, seconds: float, stop: bool, records: int = 0) -> None:
        with self._changed:
            first = self._session.commit(loss, seconds, stop, records)
            messages = [self._session.pulse(self._clock())] if first else []  # the change to this world is over
        self._send(messages)

    def leave_world(self, broken: pb.Broken | None = None) -> None:
        def leave(session: WorldSession) -> Messages:
            since, self._superseded_at = self._superseded_at, None
            seconds = 0.0 if since is None else self._clock() - since
            return session.world.leave(broken, seconds)

        self.send(leave)

    # Inside.

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _called_off(self) -> str:
        return str(self._failure) if self._failure is not None else self._session.called_off

    def _send(self, messages: Messages) -> None:
        """There is no stream."""

    def _cut_off(self) -> Unreachable:
        grace = self._session.grace_seconds
        return Unreachable(f"the master was away for {grace:.0f} s: it may have started another world")


class Alone(SharedSession):
    """A worker without a master: one world, in which it is the only member."""

    def __init__(self, session: WorldSession, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(session, clock)
        me = [session.replica]
        session.receive(pb.ToReplica(proposal=pb.Proposal(generation=1, members=me)))
        session.receive(pb.ToReplica(start=pb.Start(generation=1, members=me)))

    def begin_at(self, step: int, directory: str) -> None:
        """Start from a checkpoint."""
        state = pb.StateName(step=step)
        start = pb.Start(generation=1, members=[self._session.replica], state=state, directory=directory)
        self._session.receive(pb.ToReplica(start=start))

    def leave(self) -> None:
        self._session.receive(pb.ToReplica(shutdown=pb.Shutdown(reason="received SIGTERM")))

    def leave_world(self, broken: pb.Broken | None = None) -> None:
        if broken is not None:
            raise JobFailed(broken.error)  # there is no master to start another world
        super().leave_world()

    def wait(self, idle: bool) -> None:
        """No message will come: when every step is done, the job is."""
        if idle:
            self._session.receive(pb.ToReplica(shutdown=pb.Shutdown(reason="every step is done")))


class WorldControl(SharedSession):
    """With the stream to the master, kept in a thread of its own."""

    def __init__(
        self, session: WorldSession, address: str, token: str, clock: Callable[[], float] = time.monotonic,
        certificate: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(session, clock)
        self._link = Link(address, token, self._hello, self._receive, session.grace_seconds, certificate=certificate)
        self._thread = ControlThread(self._link, self._fail, self._pulse)
        self.start = self._thread.start
        session.disconnected(clock())

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        self._thread.close(seconds)

    def leave(self) -> None:
        """A signal's handler runs in the middle of anything the training thread does: the control thread handles it."""
        self._thread.call(super().leave)

    def _send(self, messages: Messages) -> None:
        self._thread.send(messages)

    # The control thread.

    def _hello(self) -> pb.FromReplica:
        with self._changed:
            return self._session.hello()

    def _receive(self, message: pb.ToReplica) -> None:
        if message.WhichOneof("body") == "hung":
            stack = _stack()
            log.error("The master considers this worker stuck (%s). Stack trace of the training thread:\n%s",
                      message.hung.reason, stack)  # fmt: skip
            self._send([pb.FromReplica(stack=pb.Stack(text=stack))])
            return
        with self._changed:
            self._session.connected()
            answers = self._session.receive(message)
            if self._superseded_at is None and self._session.world.superseded:
                self._superseded_at = self._clock()
            deliver = self._deliver
            self._changed.notify_all()
        if message.WhichOneof("body") == "stored" and deliver is not None and deliver[0] == message.stored.generation:
            deliver[1](message.stored.key, message.stored.value)
        self._send(answers)
        self._interrupt()

    def _interrupt(self) -> None:
        with self._changed:
            reason = self._called_off()
            interrupts = list(self._interrupts) if reason else []
        for interrupt in interrupts:
            interrupt(reason)

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            now = self._clock()
            with self._changed:
                if self._link.broken.is_set():
                    self._session.disconnected(now)
                # Counted here and not by the link: an attempt to connect may hang.
                cut_off = self._session.cut_off(now)
                pulse = self._session.pulse(now)
            self._send([pulse])
            if cut_off:
                self._fail(self._cut_off())

    def _fail(self, failure: BaseException) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = failure
            self._changed.notify_all()
        self._interrupt()


def _stack() -> str:
    """The stack trace of the training thread, which is the process's main one."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)).rstrip() if frame is not None else "none: the thread has ended"
