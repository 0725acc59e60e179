"""The session of an all-reduce worker, shared between its two threads: one trains, the other keeps the stream.

The training thread computes, builds groups and exchanges. While it does something that may never end, it says how that
can be interrupted; the control thread does so as soon as the master says that it is in vain.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from elasticdl.collective.session import State, Todo, WorldSession
from elasticdl.errors import CalledOff, JobFailed, Unreachable
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_thread import CLOSE_SECONDS, ControlThread
from elasticdl.wire.link import Link

log = logging.getLogger(__name__)

PULSE_SECONDS = 0.25
Interrupt = Callable[[str], None]
Deliver = Callable[[str, bytes], None]
Got = TypeVar("Got")


class SharedSession:
    """What the training thread asks and says, whoever listens."""

    def __init__(self, session: WorldSession, clock: Callable[[], float]) -> None:
        self._session, self._clock = session, clock
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._interrupts: list[Interrupt] = []
        self._deliver: tuple[int, Deliver] | None = None
        self._heard_at: float | None = None  # that the present world is to end
        self.seconds: dict[str, float] = {}  # what the training thread did, for how long
        session.doing("wait", clock())

    def close(self) -> None:
        """Let what was said last get out, then stop."""

    def leave(self) -> None:
        """SIGTERM came."""
        self._tell(lambda s: s.leave())

    # What comes next.

    def todo(self, idle: bool) -> Todo:
        """What to do next; raises when the master was away for too long, or refused this worker."""
        with self._changed:
            self._raise()
            return self._session.todo(idle)

    def wait(self, idle: bool) -> None:
        """Until there is more to do than to wait. The master's absence is the only deadline: while it is there, it is
        the master's to know how long a world may take to come about."""
        self.doing("wait")
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._session.todo(idle) is not Todo.WAIT)

    def check(self) -> None:
        """Raise CalledOff when what the world is doing is in vain."""
        with self._changed:
            self._raise()
            if self._session.called_off:
                raise CalledOff(self._session.called_off)

    @contextmanager
    def interruptible(self, interrupt: Interrupt) -> Iterator[None]:
        """While inside, `interrupt` is called (by any thread) as soon as what happens there is in vain."""
        with self._changed:
            self._interrupts.append(interrupt)
            reason = self._in_vain()
        if reason:
            interrupt(reason)
        try:
            yield
        finally:
            with self._changed:
                self._interrupts.remove(interrupt)

    @contextmanager
    def delivering(self, generation: int, deliver: Deliver) -> Iterator[None]:
        """While inside, what other members put into the store of this world is handed to `deliver`."""
        with self._changed:
            for key, value in self._session.stored_for(generation).items():
                deliver(key, value)
            self._deliver = (generation, deliver)
        try:
            yield
        finally:
            with self._changed:
                self._deliver = None

    # What the training thread says.

    def confirm(self) -> None:
        self._tell(lambda s: s.confirm())

    def enter(self) -> pb.Start | None:
        with self._changed:
            return self._session.enter()

    def loaded(self, records: int) -> None:
        with self._changed:
            self._session.loaded(records)

    def form(self, build_seconds: float, copy_seconds: float, copied_bytes: int, unheard: Collection[int] = ()) -> None:
        self._tell(lambda s: s.form(build_seconds, copy_seconds, copied_bytes, unheard))

    def may_commit(self) -> None:
        """Raise unless a step whose exchange is complete may still become part of the model."""
        with self._changed:
            self._raise()
            if self._session.cut_off(self._clock()):
                raise self._cut_off()

    def commit(self, loss: float | None, seconds: float, stop: bool, records: int = 0) -> None:
        with self._changed:
            first = self._session.commit(loss, seconds, stop, records)
            pulse = self._session.pulse(self._clock())
        if first:  # the change to this world is over
            self._send([pulse])

    def leave_world(self, error: str = "", suspects: Sequence[str] = (), unreadable: str = "") -> None:
        with self._changed:
            since, self._heard_at = self._heard_at, None
            self._session.left_seconds = 0.0 if since is None else self._clock() - since
        self._tell(lambda s: s.leave_world(error, suspects, unreadable))

    def store(self, generation: int, key: str, value: bytes) -> None:
        self._tell(lambda s: s.store(generation, key, value))

    def evaluated(self, version: int, metrics: str, say: bool) -> None:
        self._tell(lambda s: s.evaluated(version, metrics, say))

    def begin_save(self) -> pb.Save | None:
        """The checkpoint to write now; whoever takes it answers with `saved`."""
        with self._changed:
            save = self._session.save_due()
            if save is not None:
                self._session.begin_save(save.cut)
            return save

    def saved(self, cut: int, part: str, error: str = "") -> None:
        self._tell(lambda s: s.saved(cut, part, error))

    def exported(self, asked: pb.Export, error: str = "", audit: str = "") -> None:
        self._tell(lambda s: s.export_done(asked, error, audit))

    def set_aside(self, record: int, name: str, error: str) -> None:
        self._tell(lambda s: s.set_aside(record, name, error))

    def unfit(self, error: str) -> None:
        self._tell(lambda s: s.unfit(error))

    def doing(self, phase: str) -> None:
        """The training thread begins something: the pulses tell what, and for how long it takes."""
        with self._changed:
            before = self._session.phase
            took = self._session.doing(phase, self._clock())
            self.seconds[before] = self.seconds.get(before, 0.0) + took

    def moved(self, phase: str) -> None:
        """What the training thread waits for in this phase has come nearer; from any thread, and maybe too late."""
        with self._changed:
            if self._session.phase == phase:
                self.doing(phase)

    # What it asks.

    @property
    def replica(self) -> str:
        return self._session.replica

    @property
    def state(self) -> State:
        return self._look(lambda s: s.state)

    @property
    def flag(self) -> bool:
        return self._look(lambda s: s.flag)

    @property
    def called_off(self) -> str:
        return self._look(lambda s: s.called_off)

    @property
    def export(self) -> pb.Export | None:
        return self._look(lambda s: s.export)

    @property
    def evaluations(self) -> Mapping[int, str]:
        """The last ones: metrics by version."""
        return self._look(lambda s: {e.version: e.metrics for e in s.evaluations})

    @property
    def shutdown(self) -> str:
        return self._look(lambda s: s.shutdown)

    # Inside.

    def _look(self, ask: Callable[[WorldSession], Got]) -> Got:
        with self._changed:
            return ask(self._session)

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _in_vain(self) -> str:
        return str(self._failure) if self._failure is not None else self._session.called_off

    def _tell(self, say: Callable[[WorldSession], list[pb.FromReplica]]) -> None:
        with self._changed:
            messages = say(self._session)
            self._changed.notify_all()
        self._send(messages)

    def _send(self, messages: Sequence[pb.FromReplica]) -> None:
        """Nobody listens."""

    def _cut_off(self) -> Unreachable:
        grace = self._session.grace_seconds
        return Unreachable(f"no word from the master for {grace:.0f} s: another world may train by now")


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
        start = pb.Start(generation=1, members=[self.replica], state=state, directory=directory)
        self._session.receive(pb.ToReplica(start=start))

    def leave(self) -> None:
        self._session.receive(pb.ToReplica(shutdown=pb.Shutdown(reason="told to go")))

    def leave_world(self, error: str = "", suspects: Sequence[str] = (), unreadable: str = "") -> None:
        if error:
            raise JobFailed(error)  # there is nobody to begin another world
        super().leave_world(error, suspects, unreadable)

    def wait(self, idle: bool) -> None:
        """Nobody will say more: when every step is done, all is."""
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
        session.disconnected(clock())

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        self._thread.close(seconds)

    def leave(self) -> None:
        """A signal's handler runs in the middle of anything the training thread does: the control thread sees to it."""
        self._thread.call(super().leave)

    def _send(self, messages: Sequence[pb.FromReplica]) -> None:
        self._thread.send(messages)

    # The control thread.

    def _hello(self) -> pb.FromReplica:
        with self._changed:
            return self._session.hello()

    def _receive(self, message: pb.ToReplica) -> None:
        if message.WhichOneof("body") == "hung":
            log.error("Taken for hung (%s). The training thread stands here:\n%s", message.hung.reason, _stack())
            self._link.send(pb.FromReplica(stack=pb.Stack(text=_stack())))
            return
        with self._changed:
            self._session.connected()
            answers = self._session.receive(message)
            if self._heard_at is None and self._session.flag:
                self._heard_at = self._clock()
            deliver = self._deliver
            self._changed.notify_all()
        if message.WhichOneof("body") == "stored" and deliver is not None and deliver[0] == message.stored.generation:
            deliver[1](message.stored.key, message.stored.value)
        self._send(answers)
        self._interrupt()

    def _interrupt(self) -> None:
        with self._changed:
            reason = self._in_vain()
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
                # Counted here and not by the link, so that an attempt to connect that hangs cannot stretch it.
                alone = self._session.cut_off(now)
                pulse = self._session.pulse(now)
            self._link.send(pulse)
            if alone:
                self._fail(self._cut_off())

    def _fail(self, failure: BaseException) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = failure
            self._changed.notify_all()
        self._interrupt()


def _stack() -> str:
    """Where the training thread, which is the process's main one, stands."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)).rstrip() if frame is not None else "nowhere: it has ended"
