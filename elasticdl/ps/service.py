"""A server's data plane: one thread owns the parameters, answers requests and obeys the master's directives."""

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

from elasticdl import faults, files
from elasticdl.core.plan import Kind, ShardId
from elasticdl.errors import DataError, WireError
from elasticdl.job.parameters import ParametersSpec
from elasticdl.ps import snapshot
from elasticdl.ps.endpoint import LOCAL_HOST, Endpoint
from elasticdl.ps.gradients import Gradients, average
from elasticdl.ps.ledger import Ledger, Push, Verdict
from elasticdl.ps.parameters import Parameters
from elasticdl.ps.placement import place
from elasticdl.ps.rounds import Rounds, ledger_of
from elasticdl.ps.saving import Chain, Saving
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.auth import Keys
from elasticdl.wire.frames import Answer, BadFrame, Header, Op, cut, floats, ids, joined

log = logging.getLogger(__name__)

UNKNOWN_SECONDS = 10.0  # how long a push of a lease not heard of may wait
MAX_DIM = 1 << 20  # of a table's rows
Frames = Sequence[memoryview]
ANSWERS = {Verdict.REPEAT: Answer.REPEAT, Verdict.RESEND: Answer.RESEND, Verdict.STALE: Answer.STALE}


class _Over(WireError):
    """The asker has to come again: greeting this server, or on another timeline."""


@dataclass
class Waiting:
    """A push that cannot be judged yet."""

    sender: bytes
    header: Header
    body: Frames
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
        self._begin_from: tuple[Path, list[list[files.File]]] | None = None
        self._chain = Chain()
        self._saving: Saving | None = None
        self._told_saved = False
        self._saved_as = ("", 0)  # the last checkpoint written here, and the version it holds
        self._freeze_later: pb.Freeze | None = None
        self._greeted: set[bytes] = set()
        self._waiting: dict[tuple[bytes, str], Waiting] = {}
        self._early: dict[bytes, Header] = {}  # who pulls a version that is yet to come
        self._kept: dict[tuple[int, int], Gradients] = {}  # synchronous training: (epoch, batch) of unfinished rounds
        self._directives: queue.SimpleQueue[pb.ToReplica | None] = queue.SimpleQueue()
        self._bell, self._rope = socket.socketpair()
        self._rope.setblocking(False)
        self._context = zmq.Context()
        self._endpoint = Endpoint(self._context, host, keys, directory)
        self._socket = self._endpoint.socket
        self.address = self._endpoint.address

    def direct(self, message: pb.ToReplica) -> None:
        """Hand a directive of the master to the thread."""
        self._directives.put(message)
        self._ring()

    def stop(self) -> None:
        self._directives.put(None)
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # full: it rings already; closed: nobody is there any more
            self._rope.send(b"!")

    def run(self) -> None:
        """Serve until told to stop."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell, zmq.POLLIN)
        poller.register(self._endpoint.monitor, zmq.POLLIN)
        try:
            while True:
                feeding = self._saving is not None and self._saving.feed()
                ready = dict(poller.poll(0 if feeding else int(min(1.0, self.unknown_seconds) * 1000)))
                if self._bell.fileno() in ready:
                    self._bell.recv(4096)
                    if not self._obey():
                        return
                if self._endpoint.monitor in ready:
                    self._endpoint.hear_of_strangers()
                if self._socket in ready:
                    self._serve()
                self._expire()
                self._saved()
        finally:
            self._give_up_saving()
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
                self._settle_save(m.settle)
            case "restore":
                self._restore(m.restore)
            case "drop_view" if self.parameters is not None:
                self.parameters.release(m.drop_view.cut)

    def _freeze(self, freeze: pb.Freeze) -> None:
        if self.parameters is None:
            self._freeze_later = freeze  # a job that starts from a checkpoint may be cut before a worker is there
            return
        if freeze.purpose == "view":
            self.parameters.pin(freeze.cut)
        elif self._saving is None or self._saving.cut != freeze.cut:
            self._give_up_saving()
            faults.point("server.before_freeze")
            self._saving = Saving(
                self.parameters, freeze.cut, self.ledger.version, Path(freeze.directory), self._chain, self._ring
            )
            self._told_saved = False
        else:
            self._told_saved = False  # asked again: what was said got lost
        self.say(pb.FromReplica(frozen=pb.Frozen(cut=freeze.cut)))

    def _saved(self) -> None:
        """Tell the master once a part is on disk."""
        saving = self._saving
        if saving is not None and saving.finished and not self._told_saved:
            self._told_saved = True
            part = "" if saving.error else saving.part()
            self.say(pb.FromReplica(wrote=pb.Wrote(cut=saving.cut, part=part, error=saving.error)))

    def _settle_save(self, settle: pb.Settle) -> None:
        saving = self._saving
        if saving is None or saving.cut != settle.cut:
            return
        self._saving = None
        saving.settle(settle.published)
        if settle.published:
            self._chain = Chain(Path(settle.directory), saving.files)
            self._saved_as = (settle.directory, saving.version)

    def _give_up_saving(self) -> None:
        if self._saving is not None:
            self._saving.settle(False)
            self._saving = None

    def _restore(self, restore: pb.Restore) -> None:
        """Begin a timeline. A checkpoint is checked now, and read when the first worker says what it is for."""
        restored = pb.Restored(timeline=restore.timeline)
        if restore.timeline != self.ledger.timeline:
            # Who wrote the checkpoint and has moved no further holds it in memory still.
            here = self._saved_as == (restore.directory, restore.version) and self.ledger.version == restore.version
            held, self.parameters = self.parameters if here else None, None
            self._give_up_saving()
            self._chain, self._freeze_later, self._begin_from = Chain(), None, None
            self._waiting.clear()
            self._early.clear()
            self._kept.clear()
            self.servers = restore.servers or self.servers
            try:
                if restore.directory:
                    self._check_out(Path(restore.directory), held)
                self.ledger = ledger_of(restore)
                log.info("Timeline %d begins at version %d", restore.timeline, restore.version)
            except DataError as error:
                restored.error = f"{error.path}: {error.what}"
        self.say(pb.FromReplica(restored=restored))

    def _check_out(self, directory: Path, held: Parameters | None) -> None:
        """See that what has to be read of a checkpoint is good; what is held of it already need not be read."""
        manifest = snapshot.read_manifest(directory)
        parts = snapshot.needed(manifest, self.index, self.servers)
        if held is not None and held.servers == self.servers:
            self.parameters, self._chain = held, self._own_chain(directory, parts)
            held.forget_views()
            return
        files.verify(directory, [f for p in parts for f in p])
        faults.point("server.restoring")
        if held is not None:
            self.parameters = snapshot.resized(held, self.servers, directory, parts, self.seed)
        else:
            self._begin_from = directory, parts

    # Requests.

    def _serve(self) -> None:
        """Answer what has come, but look at the directives in between."""
        for _ in range(64):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            sender = bytes(parts[0].buffer)
            frames = [p.buffer for p in parts[1:]]
            try:
                if not frames:
                    raise BadFrame("a message without frames")
                header = Header.unpack(frames[0])
                body = joined(frames[1:])
            except BadFrame as error:
                log.warning("Refused a message: %s", error)
                continue
            try:
                self._request(sender, header, body)
            except _Over as over:
                self._over(sender, header, str(over))
                continue
            except (DataError, KeyError, ValueError, OverflowError, MemoryError) as error:
                text = str(error.args[0]) if isinstance(error, KeyError) else str(error)
                log.warning("Refused %s: %s", header.op.name, text)
                self._refuse(sender, header, text)
                continue
            # Apart: what fails while it is applied must not be taken for a refusal.
            if header.op is Op.CONFIRM:
                self._apply_rounds()
                self._answer(sender, header, Answer.OK)  # with the version that it made
            if header.op in (Op.PUSH, Op.CONFIRM):
                self._settle()

    def _request(self, sender: bytes, header: Header, body: Frames) -> None:
        if header.op is Op.GREET:
            if len(body) != 1 or not hmac.compare_digest(bytes(body[0]), self.token.encode()):
                raise BadFrame("not the token of this job")
            self._greeted.add(sender)
            return self._answer(sender, header, Answer.OK)
        if sender not in self._greeted:  # perhaps it greeted this server's predecessor
            raise _Over("the job's token was not given")
        if header.timeline != self.ledger.timeline:
            raise _Over(self.ledger.over(header.timeline))
        if header.op is Op.DECLARE:
            return self._declare(sender, header, body)
        parameters = self._declared()
        if header.op is Op.PUSH:
            key = (sender, str(ShardId(Kind.TRAIN, header.epoch, header.index)))
            said = self._waiting.get(key)
            since = said.since if said is not None and said.header == header else time.monotonic()
            self._waiting[key] = Waiting(sender, header, body, since)
            return None
        if header.op is Op.CONFIRM:
            if isinstance(self.ledger, Rounds):
                self.ledger.confirm(header.epoch, header.index)
            return None
        if header.op is Op.PULL:
            if header.start > self.ledger.version and not header.view:  # what is pinned is there, or never will be
                self._early[sender] = header
                return None
            return self._pull(sender, header)
        if not 0 <= header.table < len(parameters.tables):
            raise BadFrame(f"there is no table {header.table}")
        if header.op is Op.ROWS:
            if len(body) != 1:
                raise BadFrame(f"{len(body)} frames of ids, expected 1")
            rows = parameters.rows(header.table, ids(body[0], "ids"), header.view, create=header.start == 0)
            return self._answer(sender, header, Answer.OK, rows)
        found = parameters.export(header.table, header.start)
        return self._answer(sender, header, Answer.OK, *found)

    def _declare(self, sender: bytes, header: Header, body: Frames) -> None:
        if len(body) != 3:
            raise BadFrame(f"{len(body)} frames in a declaration, expected 3")
        spec = ParametersSpec.model_validate_json(bytes(body[0]))
        if self.parameters is None:
            self._check_sizes(spec, body)
            parameters = Parameters(spec, self.index, self.servers, self.seed)
            if self._begin_from is not None:
                snapshot.restore(parameters, *self._begin_from)
                self._continue_chain(parameters, *self._begin_from)
            else:
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
        self._answer(sender, header, Answer.OK)

    def _continue_chain(self, parameters: Parameters, directory: Path, parts: list[list[files.File]]) -> None:
        """What was read need not be written again, where it is this server's own part."""
        for store in parameters.stores:
            store.release(store.mark())
        self._chain = self._own_chain(directory, parts)

    def _own_chain(self, directory: Path, parts: list[list[files.File]]) -> Chain:
        """What the next part may stand on: nothing, where another number of servers wrote the checkpoint."""
        own = len(parts) == 1 and parts[0][-1]["name"].startswith(f"ps-{self.index}-of-{self.servers}.")
        return Chain(directory, parts[0]) if own else Chain()

    def _check_sizes(self, spec: ParametersSpec, body: Frames) -> None:
        """Before anything is allocated: the values sent are as many as the shapes say."""
        if any(d < 0 for v in spec.variables for d in v.shape) or any(t.dim > MAX_DIM for t in spec.tables):
            raise BadFrame("a declaration with impossible shapes")
        for trainable, frame, what in ((True, body[1], "initial values"), (False, body[2], "initial state")):
            pieces = place(tuple(v for v in spec.variables if v.trainable is trainable), self.servers)[self.index]
            count = sum(p.stop - p.start for p in pieces)
            if len(frame) != 4 * count:
                raise BadFrame(f"{what}: {len(frame)} bytes, expected {count} float32 values ({4 * count} bytes)")

    def _declared(self) -> Parameters:
        if self.parameters is None:
            raise BadFrame("no worker has declared the model yet")
        return self.parameters

    # Pushes.

    def _settle(self) -> None:
        """Judge the pushes that wait, again after each one applied, and tell the master where this server stands."""
        moved = True
        while moved:
            moved = False
            for key, w in list(self._waiting.items()):
                moved |= self._judge(key, w)
        for sender, header in list(self._early.items()):
            if header.start <= self.ledger.version:
                del self._early[sender]
                self._pull(sender, header)
        report = self.ledger.report()
        if report is not None:
            counters = [pb.Counter(shard=s, next_batch=n) for s, n in report[1].items()]
            held = pb.Held(cut=report[0], counters=counters, at=self.ledger.holds_at, coming=not self.ledger.holding)
            self.say(pb.FromReplica(held=held))

    def _judge(self, key: tuple[bytes, str], w: Waiting) -> bool:
        h = w.header
        push = Push(h.timeline, h.epoch, h.index, h.attempt, h.batch, h.view)
        ruling = self.ledger.judge(push)
        if ruling.verdict is Verdict.WAIT:
            return False
        del self._waiting[key]
        if ruling.verdict is Verdict.REFUSE:
            self._refuse(w.sender, h, ruling.reason)
            return False
        if ruling.verdict is Verdict.OVER:
            self._over(w.sender, h, ruling.reason)
            return False
        if ruling.verdict in (Verdict.APPLY, Verdict.KEEP):
            try:
                gradients = Gradients.read(self._declared(), h, w.body)
            except BadFrame as error:
                log.warning("Refused a push of %s: %s", push.shard, error)
                self._refuse(w.sender, h, str(error))
                return False
            self._take(push, gradients)
            self._answer(w.sender, h, Answer.OK, batch=push.batch + 1, start=self._to_be_confirmed(push))
            return True
        self._answer(w.sender, h, ANSWERS[ruling.verdict], batch=ruling.next_batch, start=self._to_be_confirmed(push))
        return False

    def _to_be_confirmed(self, push: Push) -> int:
        """1 where its round waits to hear that every server has the batch."""
        return int(isinstance(self.ledger, Rounds) and self.ledger.unconfirmed(push.epoch, push.index))

    def _take(self, push: Push, gradients: Gradients) -> None:
        """Apply a batch; in synchronous training, its round as soon as it is whole."""
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

    def _pull(self, sender: bytes, header: Header) -> None:
        parameters = self._declared()
        weights, state = parameters.pull(header.view)
        slots = [parameters.slots.copy()] if header.batch and not header.view else []
        self._answer(sender, header, Answer.OK, weights, state, *slots)

    def _expire(self) -> None:
        now = time.monotonic()
        for key, w in list(self._waiting.items()):
            if now - w.since > self.unknown_seconds and key[1] not in self.ledger.entries:
                del self._waiting[key]
                self._refuse(w.sender, w.header, f"shard {key[1]} is not open here")

    def _answer(self, sender: bytes, h: Header, answer: Answer, *body: Any, batch: int = 0, start: int = 0) -> None:
        reply = Header(h.op, h.request, h.timeline, answer, batch=batch, view=self.ledger.version, start=start)
        self._socket.send_multipart([sender, reply.pack(), *cut(body)], copy=False)

    def _over(self, sender: bytes, h: Header, reason: str) -> None:
        self._answer(sender, h, Answer.OVER, reason.encode())

    def _refuse(self, sender: bytes, h: Header, reason: str) -> None:
        self._answer(sender, h, Answer.REFUSED, reason.encode())
