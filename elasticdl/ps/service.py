"""A server's data plane: one thread owns the parameters, answers requests and follows the master's directives."""

from __future__ import annotations

import contextlib
import hmac
import logging
import queue
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from elasticdl.errors import DataError, WireError
from elasticdl.job.parameters import ParametersSpec
from elasticdl.ps.checkpoints import Checkpoints
from elasticdl.ps.endpoint import LOCAL_HOST, Endpoint, Request
from elasticdl.ps.gradients import Gradients, average
from elasticdl.ps.ledger import Ledger, Push, Verdict
from elasticdl.ps.parameters import Parameters
from elasticdl.ps.placement import place
from elasticdl.ps.rounds import Rounds, ledger_of
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire import frames
from elasticdl.wire.auth import Keys
from elasticdl.wire.frames import BadFrame, floats, ids

log = logging.getLogger(__name__)

UNKNOWN_SECONDS = 10.0  # how long a push of a lease that is not known here may wait
MAX_DIM = 1 << 20  # of a table's rows
REQUESTS_AT_ONCE = 64  # between two looks at the directives


class _Over(WireError):
    """The client has to greet this server first, or to move to another timeline."""


@dataclass
class Waiting:
    """A push that waits: for its lease, or for the end of a cut."""

    request: Request
    message: frames.Push
    push: Push
    since: float


class Service:
    """Runs in one thread (`run`); `direct` and `stop` may be called from any."""

    def __init__(
        self, index: int, servers: int, seed: int, token: str, say: Callable[[pb.FromReplica], None],
        host: str = LOCAL_HOST, unknown_seconds: float = UNKNOWN_SECONDS,
        keys: Keys | None = None, directory: Path | None = None, staleness_modulation: bool = False,
    ) -> None:  # fmt: skip
        self.index, self.servers, self.seed, self.token, self.say = index, servers, seed, token, say
        self.unknown_seconds, self.staleness_modulation = unknown_seconds, staleness_modulation
        self.ledger = Ledger()
        self.parameters: Parameters | None = None
        self._checkpoints = Checkpoints(index, seed, self._ring)
        self._freeze_later: pb.Freeze | None = None
        self._greeted: set[bytes] = set()
        self._waiting: dict[tuple[bytes, str], Waiting] = {}
        self._early: dict[bytes, tuple[Request, frames.Pull]] = {}  # pulls of a later version, by sender
        self._kept: dict[tuple[int, int], Gradients] = {}  # synchronous training: (epoch, batch) of unfinished rounds
        self._directives: queue.SimpleQueue[pb.ToReplica | None] = queue.SimpleQueue()
        self._bell, self._rope = socket.socketpair()
        self._rope.setblocking(False)
        self._context = zmq.Context()
        self._endpoint = Endpoint(self._context, host, keys, directory)
        self.address = self._endpoint.address

    def direct(self, message: pb.ToReplica | None) -> None:
        """Pass a directive of the master to the thread; None stops it."""
        self._directives.put(message)
        self._ring()

    def stop(self) -> None:
        self.direct(None)

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # full: it rings already; closed: the thread has ended
            self._rope.send(b"!")

    def run(self) -> None:
        """Serve until stopped."""
        poller = zmq.Poller()
        poller.register(self._endpoint.socket, zmq.POLLIN)
        poller.register(self._bell, zmq.POLLIN)
        poller.register(self._endpoint.monitor, zmq.POLLIN)
        try:
            while True:
                feeding = self._checkpoints.feed()
                ready = dict(poller.poll(0 if feeding else int(min(1.0, self.unknown_seconds) * 1000)))
                if self._bell.fileno() in ready:
                    self._bell.recv(4096)
                    if not self._obey():
                        return
                if self._endpoint.monitor in ready:
                    self._endpoint.log_refused_connections()
                if self._endpoint.socket in ready:
                    self._serve()
                self._expire()
                if (wrote := self._checkpoints.written()) is not None:
                    self.say(pb.FromReplica(wrote=wrote))
        finally:
            self._checkpoints.give_up()
            self._endpoint.close()
            self._context.term()
            self._bell.close()
            self._rope.close()

    # Directives.

    def _obey(self) -> bool:
        while True:
            try:
                message = self._directives.get_nowait()
            except queue.Empty:
                return True
            if message is None:
                return False
            self._directive(message)
            self._settle()

    def _directive(self, m: pb.ToReplica) -> None:
        self.ledger.direct(m)
        match m.WhichOneof("body"):
            case "freeze":
                self._freeze(m.freeze)
            case "settle":
                self._checkpoints.settle(m.settle)
            case "restore":
                self._restore(m.restore)
            case "drop_view" if self.parameters is not None:
                self.parameters.release(m.drop_view.cut)

    def _freeze(self, freeze: pb.Freeze) -> None:
        if self.parameters is None:
            self._freeze_later = freeze  # in a job from a checkpoint, a cut may come before the first worker
            return
        if freeze.purpose == "view":
            self.parameters.pin(freeze.cut)
        else:
            self._checkpoints.save(self.parameters, freeze, self.ledger.version)
        self.say(pb.FromReplica(frozen=pb.Frozen(cut=freeze.cut)))

    def _restore(self, restore: pb.Restore) -> None:
        """Begin a timeline. A checkpoint is checked now, and read once a worker has declared the model."""
        restored = pb.Restored(timeline=restore.timeline)
        if restore.timeline != self.ledger.timeline:
            held, self.parameters = self.parameters, None
            self._freeze_later = None
            self._waiting.clear()
            self._early.clear()
            self._kept.clear()
            self.servers = restore.servers or self.servers
            try:
                self.parameters = self._checkpoints.begin(restore, self.servers, held, self.ledger.version)
                self.ledger = ledger_of(restore)
                log.info("Started timeline %d at version %d", restore.timeline, restore.version)
            except DataError as error:
                restored.error = f"{error.path}: {error.what}"
        self.say(pb.FromReplica(restored=restored))

    # Requests.

    def _serve(self) -> None:
        for request in self._endpoint.receive(REQUESTS_AT_ONCE):
            try:
                self._request(request)
            except _Over as over:
                self._endpoint.answer(request, frames.Over(), str(over).encode())
                continue
            except (DataError, KeyError, ValueError, OverflowError, MemoryError) as error:
                text = str(error.args[0]) if isinstance(error, KeyError) else str(error)
                log.warning("Refused %s: %s", type(request.header.message).__name__, text)
                self._refuse(request, text)
                continue
            # Outside of `try`: an error while gradients are applied is no refusal.
            message = request.header.message
            if isinstance(message, frames.Confirm):
                self._apply_rounds()
                self._done(request)  # with the new version
            if isinstance(message, frames.Push | frames.Confirm):
                self._settle()

    def _request(self, request: Request) -> None:
        header, body = request.header, request.body
        message = header.message
        if isinstance(message, frames.Greet):
            if len(body) != 1 or not hmac.compare_digest(bytes(body[0]), self.token.encode()):
                raise BadFrame("not the token of this job")
            self._greeted.add(request.sender)
            return self._done(request)
        if request.sender not in self._greeted:  # it may have greeted the process before this one
            raise _Over("this connection has not sent the job's token")
        if header.timeline != self.ledger.timeline:
            raise _Over(self.ledger.over(header.timeline))
        if isinstance(message, frames.Declare):
            return self._declare(request)
        parameters = self._declared()
        match message:
            case frames.Push():
                self._wait(request, message)
            case frames.Confirm(epoch, index):
                if isinstance(self.ledger, Rounds):
                    self.ledger.confirm(epoch, index)
            case frames.Pull():
                self._pull(request, message)
            case frames.Rows(table, view, create):
                if len(body) != 1:
                    raise BadFrame(f"the request has {len(body)} parts, expected 1")
                self._done(request, parameters.rows(self._table(table), ids(body[0], "ids"), view, create))
            case frames.Export(table, start):
                self._done(request, *parameters.export(self._table(table), start))
        return None

    def _declare(self, request: Request) -> None:
        body = request.body
        if len(body) != 3:
            raise BadFrame(f"the declaration has {len(body)} parts, expected 3")
        spec = ParametersSpec.model_validate_json(bytes(body[0]))
        if self.parameters is None:
            self._check_sizes(spec, body)
            parameters = Parameters(spec, self.index, self.servers, self.seed)
            if not self._checkpoints.fill(parameters):
                parameters.weights[:] = floats(body[1], len(parameters.weights), "initial values")
                parameters.state[:] = floats(body[2], len(parameters.state), "initial state")
            self.parameters = parameters
            if self._freeze_later is not None:
                self._freeze(self._freeze_later)
            log.info(
                "Holding %d dense values and %d tables, optimizer %s",
                len(parameters.weights), len(spec.tables), spec.optimizer.kind,
            )  # fmt: skip
        elif spec != self.parameters.spec:
            raise BadFrame("another worker declared a different model: did the model file change during the job?")
        self._done(request)

    def _check_sizes(self, spec: ParametersSpec, body: Sequence[memoryview]) -> None:
        """Before memory is allocated: the shapes have as many values as were sent."""
        if any(d < 0 for v in spec.variables for d in v.shape) or any(t.dim > MAX_DIM for t in spec.tables):
            raise BadFrame("the declaration has impossible shapes")
        for trainable, frame, what in ((True, body[1], "initial values"), (False, body[2], "initial state")):
            pieces = place(tuple(v for v in spec.variables if v.trainable is trainable), self.servers)[self.index]
            count = sum(map(len, pieces))
            if len(frame) != 4 * count:
                raise BadFrame(f"{what}: {len(frame)} bytes, expected {count} float32 values ({4 * count} bytes)")

    def _declared(self) -> Parameters:
        if self.parameters is None:
            raise BadFrame("no worker has declared the model yet")
        return self.parameters

    def _table(self, number: int) -> int:
        if number >= len(self._declared().tables):
            raise BadFrame(f"there is no table {number}")
        return number

    # Pushes.

    def _wait(self, request: Request, m: frames.Push) -> None:
        push = Push(request.header.timeline, m.epoch, m.index, m.attempt, m.batch, m.computed_on)
        key = (request.sender, push.shard)
        before = self._waiting.get(key)
        again = before is not None and before.request.header == request.header
        self._waiting[key] = Waiting(request, m, push, before.since if before and again else time.monotonic())

    def _settle(self) -> None:
        """Judge the pushes that wait, again after each applied one, and report to the master."""
        moved = True
        while moved:
            moved = False
            for key, w in list(self._waiting.items()):
                moved |= self._judge(key, w)
        early, self._early = self._early, {}
        for request, pull in early.values():
            self._pull(request, pull)
        report = self.ledger.report()
        if report is not None:
            counters = [pb.Counter(shard=s, next_batch=n) for s, n in report[1].items()]
            held = pb.Held(cut=report[0], counters=counters, at=self.ledger.holds_at, coming=not self.ledger.holding)
            self.say(pb.FromReplica(held=held))

    def _judge(self, key: tuple[bytes, str], w: Waiting) -> bool:
        ruling = self.ledger.judge(w.push)
        if ruling.verdict is Verdict.WAIT:
            return False
        del self._waiting[key]
        match ruling.verdict:
            case Verdict.REFUSE:
                self._refuse(w.request, ruling.reason)
            case Verdict.OVER:
                self._endpoint.answer(w.request, frames.Over(), ruling.reason.encode())
            case Verdict.RESEND:
                self._endpoint.answer(w.request, frames.Resend(ruling.next_batch))
            case Verdict.STALE:
                self._endpoint.answer(w.request, frames.Stale(self.ledger.version))
            case Verdict.REPEAT:
                self._pushed(w)
            case Verdict.APPLY | Verdict.KEEP:
                try:
                    gradients = Gradients.read(self._declared(), w.message, w.request.body)
                except BadFrame as error:
                    log.warning("Refused a push of %s: %s", w.push.shard, error)
                    self._refuse(w.request, str(error))
                    return False
                self._take(w.push, gradients)
                self._pushed(w)
                return True
        return False

    def _pushed(self, w: Waiting) -> None:
        unconfirmed = isinstance(self.ledger, Rounds) and self.ledger.unconfirmed(w.push.epoch, w.push.index)
        self._endpoint.answer(w.request, frames.Pushed(self.ledger.version, unconfirmed))

    def _take(self, push: Push, gradients: Gradients) -> None:
        """Apply a batch; in synchronous training, its round as soon as it is complete."""
        parameters, ledger = self._declared(), self.ledger
        if not isinstance(ledger, Rounds):
            age = max(1, ledger.version - push.computed_on) if self.staleness_modulation else 1
            gradients.apply(parameters, ledger.version + 1, 1 / age)
            return ledger.applied(push)
        self._kept[push.epoch, push.index] = gradients
        ledger.keep(push)
        if self.servers == 1:
            ledger.confirm(push.epoch, push.index)
            self._apply_rounds()
        return None

    def _apply_rounds(self) -> None:
        ledger = self.ledger
        while isinstance(ledger, Rounds) and ledger.whole():
            parameters = self._declared()
            batches = sorted(k for k in self._kept if ledger.round_of(*k) == ledger.version)
            average(parameters, [self._kept.pop(k) for k in batches]).apply(parameters, ledger.version + 1)
            ledger.round_applied()

    def _pull(self, request: Request, pull: frames.Pull) -> None:
        if pull.at_least > self.ledger.version and not pull.view:  # a pinned view does not wait
            self._early[request.sender] = request, pull
            return
        parameters = self._declared()
        slots = [parameters.slots.copy()] if pull.slots and not pull.view else []
        self._done(request, *parameters.pull(pull.view), *slots)

    def _expire(self) -> None:
        now = time.monotonic()
        for key, w in list(self._waiting.items()):
            if now - w.since > self.unknown_seconds and key[1] not in self.ledger.entries:
                del self._waiting[key]
                self._refuse(w.request, f"shard {key[1]} is not open on this server")

    def _done(self, request: Request, *body: Any) -> None:
        self._endpoint.answer(request, frames.Done(self.ledger.version), *body)

    def _refuse(self, request: Request, reason: str) -> None:
        self._endpoint.answer(request, frames.Refused(), reason.encode())
