"""The batches that a server has applied, and the decision what to do with a push, without any I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from elasticdl.core.plan import Kind, ShardId
from elasticdl.wire import control_pb2 as pb


class Verdict(Enum):
    APPLY = "apply"
    REPEAT = "repeat"
    RESEND = "resend"
    WAIT = "wait"
    REFUSE = "refuse"
    OVER = "over"
    KEEP = "keep"  # in synchronous training: until its round is complete
    STALE = "stale"  # computed on too old a version: the worker pulls and computes again


@dataclass(frozen=True)
class Push:
    """The batch that a worker pushes, and the lease it has."""

    timeline: int
    epoch: int
    index: int
    attempt: int
    batch: int
    computed_on: int = 0  # the version

    @property
    def shard(self) -> str:
        return str(ShardId(Kind.TRAIN, self.epoch, self.index))


@dataclass(frozen=True)
class Ruling:
    verdict: Verdict
    next_batch: int = 0
    reason: str = ""


@dataclass
class Entry:
    attempt: int
    next_batch: int
    batches: int


@dataclass
class Barrier:
    """A cut in progress: pushes wait from version `at` on, except batches that another server has (`limits`)."""

    cut: int
    at: int
    limits: dict[str, int] = field(default_factory=dict)
    reported: bool = False
    until: int = 0  # in synchronous training: the version at which pushes stop


@dataclass
class Ledger:
    timeline: int = 0  # 0: none has begun
    version: int = 0  # updates of this server
    entries: dict[str, Entry] = field(default_factory=dict)
    closed: dict[int, set[int]] = field(default_factory=dict)  # epoch -> shards
    first_epoch: int = 0  # everything before it is closed
    barrier: Barrier | None = None

    def judge(self, push: Push) -> Ruling:
        """What to do with a push; the caller reports one that it applied with `applied`."""
        if push.timeline != self.timeline:
            return Ruling(Verdict.OVER, reason=self.over(push.timeline))
        if push.epoch < self.first_epoch or push.index in self.closed.get(push.epoch, ()):
            return Ruling(Verdict.REFUSE, reason=f"shard {push.shard} is closed")
        entry = self.entries.get(push.shard)
        if entry is None or push.attempt > entry.attempt:
            return Ruling(Verdict.WAIT, reason=f"this server does not know lease {push.attempt} of {push.shard} yet")
        if push.attempt < entry.attempt:
            return Ruling(Verdict.REFUSE, reason=f"lease {push.attempt} of {push.shard} was revoked")
        if push.batch < entry.next_batch:
            return Ruling(Verdict.REPEAT, entry.next_batch)
        if push.batch > entry.next_batch:
            return Ruling(Verdict.RESEND, entry.next_batch)
        if push.batch >= entry.batches:
            return Ruling(Verdict.REFUSE, reason=f"shard {push.shard} has only {entry.batches} batches")
        if self.holding and push.batch >= self._limit(push.shard):
            return Ruling(Verdict.WAIT, entry.next_batch, "waiting for the cut")
        return Ruling(Verdict.APPLY, entry.next_batch)

    def applied(self, push: Push) -> None:
        self.entries[push.shard].next_batch += 1
        self.version += 1
        if self.barrier is not None:
            self.barrier.reported = False

    def over(self, timeline: int) -> str:
        """Why a message of another timeline is rejected."""
        if not self.timeline:
            return "this server has not begun a timeline yet"
        return f"timeline {timeline} is over; the current one is {self.timeline}"

    @classmethod
    def restored(cls, m: pb.Restore, **more: Any) -> Self:
        """As a checkpoint left it. A shard that was not open there is done or has no lease yet."""
        entries = {o.shard: Entry(o.attempt, o.next_batch, o.batches) for o in m.open}
        return cls(m.timeline, m.version, entries, **more)

    # Directives of the master.

    def direct(self, m: pb.ToReplica) -> None:
        """Follow a directive, as far as it concerns the ledger."""
        match m.WhichOneof("body"):
            case "opened":
                self.opened(m.opened.shard, m.opened.attempt, m.opened.next_batch, m.opened.batches)
            case "open_shards":
                for o in m.open_shards.open:
                    self.opened(o.shard, o.attempt, o.next_batch, o.batches)
                self.open_only({o.shard for o in m.open_shards.open})
            case "close_shard":
                self.close(m.close_shard.shard)
            case "close_epoch":
                self.close_epoch(m.close_epoch.epoch)
            case "hold":
                self.hold(m.hold.cut, m.hold.at)
            case "advance":
                self.advance(m.advance.cut, {c.shard: c.next_batch for c in m.advance.counters})
            case "release":
                self.release(m.release.cut)

    def opened(self, shard: str, attempt: int, next_batch: int, batches: int) -> None:
        at = ShardId.parse(shard)
        if at.round < self.first_epoch or at.index in self.closed.get(at.round, ()):
            return
        entry = self.entries.get(shard)
        if entry is None:
            if next_batch:
                raise ValueError(f"shard {shard} is at batch {next_batch}, but this server has none of its batches")
            self.entries[shard] = Entry(attempt, 0, batches)
        else:
            entry.attempt = max(entry.attempt, attempt)

    def open_only(self, shards: set[str]) -> None:
        for shard in [s for s in self.entries if s not in shards]:
            self.close(shard)

    def close(self, shard: str) -> None:
        self.entries.pop(shard, None)
        at = ShardId.parse(shard)
        if at.round >= self.first_epoch:
            self.closed.setdefault(at.round, set()).add(at.index)

    def close_epoch(self, epoch: int) -> None:
        """Every shard up to this epoch is closed; one number records that."""
        if any(ShardId.parse(s).round <= epoch for s in self.entries):
            return
        self.first_epoch = max(self.first_epoch, epoch + 1)
        self.closed = {e: s for e, s in self.closed.items() if e >= self.first_epoch}

    def hold(self, cut: int, at: int) -> None:
        if self.barrier is None or cut > self.barrier.cut:
            self.barrier = Barrier(cut, at)
        elif cut == self.barrier.cut:
            self.barrier.reported = False

    def advance(self, cut: int, limits: dict[str, int]) -> None:
        if self.barrier is None or cut > self.barrier.cut:
            self.barrier = Barrier(cut, 0)
        if cut == self.barrier.cut:
            self.barrier.limits, self.barrier.reported = limits, False

    def release(self, cut: int) -> None:
        if self.barrier is not None and cut >= self.barrier.cut:
            self.barrier = None

    # Questions.

    @property
    def holding(self) -> bool:
        return self.barrier is not None and self.version >= self.barrier.at

    @property
    def holds_at(self) -> int:
        """In synchronous training: the version at which this server holds pushes, now or later."""
        return 0

    def report(self) -> tuple[int, dict[str, int]] | None:
        """The cut and the counters, if they were not reported yet."""
        b = self.barrier
        if b is None or b.reported or not self.holding:
            return None
        if any(s in self.entries and self.entries[s].next_batch < n for s, n in b.limits.items()):
            return None
        b.reported = True
        return b.cut, {s: e.next_batch for s, e in self.entries.items()}

    def _limit(self, shard: str) -> int:
        assert self.barrier is not None
        return self.barrier.limits.get(shard, 0)
