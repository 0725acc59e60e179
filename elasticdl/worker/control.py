"""The worker's control thread: keeps the stream to the master, and hands leases to the thread that trains."""

from __future__ import annotations

import threading
from collections.abc import Callable

from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_thread import ControlThread
from elasticdl.wire.link import Link
from elasticdl.worker.session import Session, Work


class Control:
    """The session, shared by two threads under one lock."""

    def __init__(
        self, session: Session, address: str, token: str, patience_seconds: float, certificate: str | None = None
    ) -> None:
        self._session = session
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._listeners: list[Callable[[], None]] = []
        link = Link(address, token, self._hello, self._receive, patience_seconds, certificate=certificate)
        self._thread = ControlThread(link, self._failed)
        self.start, self.close = self._thread.start, self._thread.close

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call this, in the control thread, after each message of the master."""
        self._listeners.append(listener)

    # For the training thread.

    def wait_for_work(self) -> Work | None:
        """The next lease to work on; None when the worker should end."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or (self._session.ready and self._session.current()))
            self._raise()
            return None if self._over else self._session.current()

    def wait_for_servers(self) -> tuple[tuple[str, ...], int] | None:
        """Addresses of the servers and the timeline, once all are there; None when the worker should end."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or bool(self._session.servers))
            self._raise()
            return None if self._over else (self._session.servers, self._session.timeline)

    def place(self) -> tuple[tuple[str, ...], int]:
        """Where the servers are now, and on which timeline; no addresses while they are not all there."""
        with self._changed:
            return self._session.servers, self._session.timeline

    def wait_for_timeline_after(self, timeline: int) -> None:
        """Until the master tells of another timeline. It does as soon as it misses a server, or this worker ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._session.timeline != timeline)

    def queued(self) -> list[Work]:
        with self._changed:
            return list(self._session.queue.values())

    def gone(self, work: Work) -> bool:
        """Whether there is no point in going on with this lease."""
        with self._changed:
            return bool(self._session.shutdown) or self._failure is not None or not self._session.holds(work)

    def preceded(self, work: Work) -> bool:
        """Whether another lease comes before this one now, which may wait for it."""
        with self._changed:
            return self._session.preceded(work)

    def over(self) -> bool:
        """Whether the worker should end."""
        with self._changed:
            return self._over

    @property
    def leaving(self) -> bool:
        return self._session.leaving

    def committed(self, work: Work, next_batch: int, loss: float, skipped: bool = False) -> None:
        self._tell(lambda s: [s.committed(work, next_batch, loss, skipped)])

    def completed(self, work: Work, result: str) -> None:
        self._tell(lambda s: [s.completed(work, result)])

    def failed(self, work: Work, error: str) -> None:
        self._tell(lambda s: [s.failed(work, error)])

    def returned(self, work: Work, reason: str) -> None:
        self._tell(lambda s: [s.returned(work, reason)])

    def unfit(self, error: str) -> None:
        self._tell(lambda s: [s.unfit(error)])

    def leave(self) -> None:
        """Finish the batch in flight, give the rest back and go."""
        self._tell(lambda s: s.leave())

    # Inside.

    @property
    def _over(self) -> bool:
        idle_and_leaving = self._session.leaving and not self._session.queue
        return bool(self._session.shutdown) or self._failure is not None or idle_and_leaving

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _tell(self, say: Callable[[Session], list[pb.FromReplica]]) -> None:
        with self._changed:
            messages = say(self._session)
            self._changed.notify_all()
        self._thread.send(messages)

    def _hello(self) -> pb.FromReplica:
        with self._changed:
            return self._session.hello()

    def _receive(self, message: pb.ToReplica) -> None:
        with self._changed:
            self._session.receive(message)
            self._changed.notify_all()
        for listener in self._listeners:
            listener()

    def _failed(self, failure: BaseException) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()
        for listener in self._listeners:
            listener()
