"""A worker's side of the control stream, without I/O: its leases, and results that the master has not confirmed.

A broken stream loses nothing: the next Hello repeats all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl.core.plan import ShardId
from elasticdl.wire import PROTOCOL
from elasticdl.wire import control_pb2 as pb


@dataclass
class Work:
    """A lease this worker holds."""

    shard: str
    attempt: int
    kind: str
    round: int
    start: int
    stop: int
    batches: int
    next_batch: int
    payload: str
    bad_records: tuple[int, ...] = ()
    careful: bool = False
    skipped: int = 0  # of its batches, how many moved nothing

    @property
    def index(self) -> int:
        return ShardId.parse(self.shard).index

    @property
    def order(self) -> tuple[bool, int, int]:
        """In synchronous training: what is not training first, then the earliest batch."""
        return self.kind == "train", self.round, self.index


@dataclass
class Session:
    replica: str
    incarnation: str
    capacity: int
    in_order: bool = False  # synchronous training: the earliest batch first, since later ones wait for it
    needs_servers: bool = True  # leases wait until the parameter servers are known
    queue: dict[str, Work] = field(default_factory=dict)  # in the order granted
    finished: dict[str, pb.Holding] = field(default_factory=dict)  # without an answer yet
    servers: tuple[str, ...] = ()
    timeline: int = 0
    master_epoch: int = 0
    shutdown: str = ""
    leaving: bool = False

    def hello(self) -> pb.FromReplica:
        holdings = [
            pb.Holding(shard=w.shard, attempt=w.attempt, next_batch=w.next_batch, skipped=w.skipped)
            for w in self.queue.values()
        ]
        holdings += self.finished.values()
        hello = pb.Hello(
            protocol=PROTOCOL,
            replica=self.replica,
            incarnation=self.incarnation,
            capacity=0 if self.leaving else self.capacity,
            holdings=holdings,
        )
        return pb.FromReplica(hello=hello)

    def receive(self, message: pb.ToReplica) -> None:
        kind = message.WhichOneof("body")
        if kind == "welcome":
            self.master_epoch = message.welcome.master_epoch
        elif kind == "members":
            self.servers, self.timeline = tuple(message.members.servers), message.members.timeline
        elif kind == "grant":
            self._granted(message.grant)
        elif kind == "revoke":
            self._drop(message.revoke.shard, message.revoke.attempt)
        elif kind == "close":
            self._drop(message.close.shard, message.close.attempt)
        elif kind == "shutdown":
            self.shutdown = message.shutdown.reason or "the job is over"

    def _granted(self, g: pb.Grant) -> None:
        held = self.queue.get(g.shard)
        done = self.finished.get(g.shard)
        if (held is not None and held.attempt >= g.attempt) or (done is not None and done.attempt >= g.attempt):
            return  # a repeat
        self.finished.pop(g.shard, None)
        self.queue.pop(g.shard, None)
        self.queue[g.shard] = Work(
            g.shard, g.attempt, g.kind, g.round, g.start, g.stop, g.batches, g.next_batch, g.payload,
            tuple(g.bad_records), g.careful,
        )  # fmt: skip

    def _drop(self, shard: str, attempt: int) -> None:
        held = self.queue.get(shard)
        if held is not None and held.attempt <= attempt:
            del self.queue[shard]
        done = self.finished.get(shard)
        if done is not None and done.attempt <= attempt:
            del self.finished[shard]

    # What the worker does.

    def current(self) -> Work | None:
        """The lease to work on: the oldest one, in synchronous training the first."""
        if self.in_order:
            return min(self.queue.values(), key=lambda w: w.order, default=None)
        return next(iter(self.queue.values()), None)

    @property
    def ready(self) -> bool:
        return bool(self.servers) or not self.needs_servers

    def preceded(self, work: Work) -> bool:
        """Whether a batch was leased in the meantime that this one waits for."""
        return self.in_order and any(w.kind == "train" and w.order < work.order for w in self.queue.values())

    def holds(self, work: Work) -> bool:
        held = self.queue.get(work.shard)
        return held is not None and held.attempt == work.attempt

    def committed(self, work: Work, next_batch: int, loss: float, skipped: bool = False) -> pb.FromReplica:
        """Every server has the batches below `next_batch`; of a shard that is not for training: they are computed."""
        work.skipped += skipped
        shard, attempt, so_far = work.shard, work.attempt, work.skipped
        if self.holds(work):
            work.next_batch = next_batch
            if next_batch >= work.batches and work.kind == "train":
                self._finish(work, pb.Holding(shard=shard, attempt=attempt, next_batch=next_batch, skipped=so_far))
        progress = pb.Progress(shard=shard, attempt=attempt, next_batch=next_batch, loss=loss, skipped=so_far)
        return pb.FromReplica(progress=progress)

    def completed(self, work: Work, result: str) -> pb.FromReplica:
        if self.holds(work):
            self._finish(
                work,
                pb.Holding(
                    shard=work.shard, attempt=work.attempt, next_batch=work.batches, completed=True, result=result
                ),
            )
        return pb.FromReplica(completed=pb.Completed(shard=work.shard, attempt=work.attempt, result=result))

    def failed(self, work: Work, error: str) -> pb.FromReplica:
        """The user's code raised; the lease goes back. If the message is lost, the next attempt repeats it."""
        self._drop(work.shard, work.attempt)
        failed = pb.Failed(shard=work.shard, attempt=work.attempt, batch=work.next_batch, error=error)
        return pb.FromReplica(failed=failed)

    def returned(self, work: Work, reason: str) -> pb.FromReplica:
        self._drop(work.shard, work.attempt)
        return pb.FromReplica(returned=pb.Returned(shard=work.shard, attempt=work.attempt, reason=reason))

    def unfit(self, error: str) -> pb.FromReplica:
        """The servers refuse this worker's model."""
        return pb.FromReplica(unfit=pb.Unfit(error=error))

    def leave(self) -> list[pb.FromReplica]:
        """On SIGTERM: return all leases but the one in work."""
        self.leaving = True
        current = self.current()
        out = [pb.FromReplica(leaving=pb.Leaving())]
        out += [self.returned(w, "the worker is leaving") for w in list(self.queue.values()) if w is not current]
        return out

    def _finish(self, work: Work, holding: pb.Holding) -> None:
        del self.queue[work.shard]
        self.finished[work.shard] = holding
