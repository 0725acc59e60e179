"""A worker's view of the parameter servers: asks all of them at once, sends again what got no answer."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zmq

from elasticdl import faults
from elasticdl.errors import Refused, WireError
from elasticdl.job.parameters import ParametersSpec
from elasticdl.ps.placement import gather_index, place, split
from elasticdl.wire.frames import Answer, Header, Op, floats, ids

log = logging.getLogger(__name__)

RESEND_SECONDS, LAST_RESEND_SECONDS, WARN_SECONDS = 2.0, 16.0, 30.0
HEARTBEAT_MILLISECONDS = 5000
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class Interrupted(WireError):
    """The wait was called off: the lease is gone or the worker is told to end."""


class Resend(WireError):
    """A server expects an earlier batch of the lease first."""

    def __init__(self, server: int, next_batch: int) -> None:
        self.next_batch = next_batch
        super().__init__(f"ps-{server} expects batch {next_batch} first")


class TimelineOver(WireError):
    """A server is on another timeline: the job rolled back, or is about to; `move` to the new one when it is known."""

    def __init__(self, server: int, text: str) -> None:
        self.server, self.text = server, text
        super().__init__(f"ps-{server}: {text}")


@dataclass(frozen=True)
class Batch:
    """Names the batch that is pushed."""

    epoch: int
    index: int
    attempt: int
    number: int


@dataclass
class Reply:
    header: Header
    body: list[memoryview]


class Client:
    """Used by one thread, except `interrupt`."""

    def __init__(
        self,
        addresses: Sequence[str],
        token: str,
        spec: ParametersSpec,
        timeline: int,
        resend_seconds: float = RESEND_SECONDS,
    ) -> None:
        self.spec, self.resend_seconds = spec, resend_seconds
        self._trainable_variables = tuple(v for v in spec.variables if v.trainable)
        self._state_variables = tuple(v for v in spec.variables if not v.trainable)
        self.trainable_size = sum(v.size for v in self._trainable_variables)
        self.state_size = sum(v.size for v in self._state_variables)
        self._numbers = {t.name: n for n, t in enumerate(spec.tables)}
        self._request = 0
        self._called_off: Callable[[], bool] = lambda: False
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._token = token
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._poller.register(self._bell, zmq.POLLIN)
        self._sockets: list[zmq.Socket[bytes]] = []
        self._settle(addresses, timeline)

    def move(self, addresses: Sequence[str], timeline: int) -> None:
        """Go to these servers, as many as there are now, on this timeline: the job rolled back, or they changed.

        Whatever was asked before is void: its answers go down with the old connections. Nothing is sent until the
        next request, which greets the servers first.
        """
        for s in self._sockets:
            self._poller.unregister(s)
            s.close(0)
        self._settle(addresses, timeline)

    def _settle(self, addresses: Sequence[str], timeline: int) -> None:
        self.timeline, self.servers = timeline, len(addresses)
        self._addresses = list(addresses)
        self._trainable = [gather_index(p) for p in place(self._trainable_variables, self.servers)]
        self._state = [gather_index(p) for p in place(self._state_variables, self.servers)]
        self._sockets = [self._connect(a) for a in self._addresses]
        self._greeted = False

    def close(self) -> None:
        for s in self._sockets:
            s.close(0)
        self._context.term()
        self._bell.close()
        self._rope.close()

    def interrupt(self) -> None:
        """Look again, from any thread, whether the wait was called off."""
        with contextlib.suppress(OSError):  # full: it rings already; closed: nobody waits any more
            self._rope.send(b"!")

    def called_off_by(self, question: Callable[[], bool]) -> None:
        """`question` says whether to give up the request that is waiting; it is asked whenever `interrupt` rings."""
        self._called_off = question

    # Operations.

    def declare(self, trainable: Floats, state: Floats) -> None:
        """Tell every server what to hold, and from which values to start if it is the first to hear of it."""
        text = self.spec.model_dump_json().encode()
        self._ask(
            {s: [text, trainable[self._trainable[s]], state[self._state[s]]] for s in range(self.servers)}, Op.DECLARE
        )

    def pull(self, view: int = 0) -> tuple[Floats, Floats, int]:
        """All dense values and state, and the lowest version among the servers."""
        replies = self._ask({s: [] for s in range(self.servers)}, Op.PULL, view=view)
        trainable = np.empty(self.trainable_size, np.float32)
        state = np.empty(self.state_size, np.float32)
        for s, reply in replies.items():
            trainable[self._trainable[s]] = floats(reply.body[0], len(self._trainable[s]), "dense values")
            state[self._state[s]] = floats(reply.body[1], len(self._state[s]), "state")
        return trainable, state, min(r.header.view for r in replies.values())

    def rows(self, table: str, wanted: Ids, view: int = 0, create: bool = True) -> Floats:
        """Rows of these ids, in their order."""
        number, dim = self._numbers[table], self.spec.tables[self._numbers[table]].dim
        wanted = np.ascontiguousarray(wanted, np.int64)
        cut = split(wanted, self.servers)
        parts = {
            s: wanted[cut.order[cut.bounds[s] : cut.bounds[s + 1]]]
            for s in range(self.servers)
            if cut.bounds[s] < cut.bounds[s + 1]
        }
        replies = self._ask(
            {s: [p] for s, p in parts.items()}, Op.ROWS, view=view, table=number, start=0 if create else 1
        )
        out = np.empty((len(wanted), dim), np.float32)
        for s, reply in replies.items():
            part = floats(reply.body[0], len(parts[s]) * dim, f"rows of {table}")
            out[cut.order[cut.bounds[s] : cut.bounds[s + 1]]] = part.reshape(-1, dim)
        return out

    def push(
        self, batch: Batch, gradients: Floats, state: Floats, rows: Mapping[str, tuple[Ids, Floats]],
        version: int = 0, rate: float = 0.0,
    ) -> int:  # fmt: skip
        """Push one batch to every server and wait until all have it; the lowest version among them.

        `version` is the one it was computed on, `rate` the learning rate where it is not the optimizer's own.
        Raises Refused when a server says that the lease is no longer good, TimelineOver when the job rolled back.
        """
        bodies: dict[int, list[Any]] = {
            s: [gradients[self._trainable[s]], state[self._state[s]]] for s in range(self.servers)
        }
        for table in self.spec.tables:
            found, grads = rows.get(table.name, (np.empty(0, np.int64), np.empty((0, table.dim), np.float32)))
            cut = split(found, self.servers)
            for s in range(self.servers):
                mine = cut.order[cut.bounds[s] : cut.bounds[s + 1]]
                bodies[s] += [found[mine], grads[mine]]
        replies = self._ask(
            bodies, Op.PUSH, epoch=batch.epoch, index=batch.index, attempt=batch.attempt, batch=batch.number,
            view=version, rate=rate,
        )  # fmt: skip
        return min(r.header.view for r in replies.values())

    def export_ids(self, table: str) -> Ids:
        """Every id that has a row, in rising order."""
        found: list[Ids] = []
        for server in range(self.servers):
            start = 0
            while True:
                reply = self._ask({server: []}, Op.EXPORT, table=self._numbers[table], start=start)[server]
                part = ids(reply.body[0], "ids")
                if not len(part):
                    break
                found.append(part)
                start += len(part)
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)

    # Asking.

    def _connect(self, address: str) -> zmq.Socket[bytes]:
        s = self._context.socket(zmq.DEALER)
        s.setsockopt(zmq.LINGER, 0)
        s.setsockopt(zmq.SNDHWM, 0)
        s.setsockopt(zmq.IDENTITY, b"w" + secrets.token_bytes(12))
        s.setsockopt(zmq.RECONNECT_IVL, 50)
        s.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        # A connection that swallows everything is given up, and made again under the same identity.
        s.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MILLISECONDS)
        s.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MILLISECONDS)
        s.connect(address)
        self._poller.register(s, zmq.POLLIN)
        return s

    def _ask(self, bodies: Mapping[int, list[Any]], op: Op, **fields: Any) -> dict[int, Reply]:
        """Send to these servers, collect one answer from each; again what stays unanswered."""
        if not self._greeted and op is not Op.GREET:
            self._ask({s: [self._token.encode()] for s in range(self.servers)}, Op.GREET)
            self._greeted = True
        self._request += 1
        header = Header(op, self._request, self.timeline, **fields).pack()
        replies: dict[int, Reply] = {}
        began = time.monotonic()
        wait = self.resend_seconds
        resend, warn = began + wait, began + WARN_SECONDS
        for place_, s in enumerate(bodies):
            if op is Op.PUSH and place_ == 1:
                faults.point("worker.between_pushes")
            self._sockets[s].send_multipart([header, *bodies[s]], copy=False)
        while len(replies) < len(bodies):
            ready = dict(self._poller.poll(int(max(0.0, resend - time.monotonic()) * 1000) + 1))
            if self._bell.fileno() in ready:
                self._bell.recv(4096)
            if self._called_off():
                raise Interrupted("called off")
            for s in bodies:
                if self._sockets[s] in ready:
                    self._receive(s, replies)
            now = time.monotonic()
            if now >= resend:
                missing = [s for s in bodies if s not in replies]
                for s in missing:
                    self._sockets[s].send_multipart([header, *bodies[s]], copy=False)
                # Slower each time: a server that writes a checkpoint is not helped by more copies.
                wait = min(2 * wait, LAST_RESEND_SECONDS)
                resend = now + wait
                if now >= warn:
                    where = ", ".join(f"ps-{s} ({self._addresses[s]})" for s in missing)
                    log.warning("No answer to %s for %.0f s from %s", op.name, now - began, where)
                    warn = now + WARN_SECONDS
        return replies

    def _receive(self, server: int, replies: dict[int, Reply]) -> None:
        while True:
            try:
                frames = self._sockets[server].recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            header = Header.unpack(frames[0].buffer)
            if header.request != self._request:
                continue  # an answer to something sent twice
            body = [f.buffer for f in frames[1:]]
            if header.answer in (Answer.REFUSED, Answer.OVER):
                reason = bytes(body[0]).decode("utf-8", "replace") if body else "no reason given"
                if header.answer is Answer.OVER:
                    raise TimelineOver(server, reason)
                raise Refused(f"ps-{server} refused {header.op.name}: {reason}")
            if header.answer is Answer.RESEND:
                raise Resend(server, header.batch)
            replies[server] = Reply(header, body)
