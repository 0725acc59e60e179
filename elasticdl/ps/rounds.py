"""The batches of a server in synchronous training: it keeps a round until it is complete, then applies it at once.

Batch `index` of an epoch belongs to round `index // size`. The version is the number of applied rounds, and so the
number of the present round. The server keeps the first gradients of each batch; later ones are repeats.

A worker may die when only some servers have its batch. Then no server may go on to the next version, since the worker
that computes the batch again needs the values of this version from all servers. So every batch has to be confirmed by
its worker once all servers have it. A cut waits for the end of a round that has begun.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl.core.plan import ShardId
from elasticdl.ps.ledger import Barrier, Entry, Ledger, Push, Ruling, Verdict
from elasticdl.wire import control_pb2 as pb


@dataclass
class Rounds(Ledger):
    size: int = 1  # batches of a round
    epoch_batches: int = 1  # the epoch's last round may be short
    tolerance: int = 0  # a batch may be computed on a version that is so much older than its round
    kept: dict[int, set[int]] = field(default_factory=dict)  # round -> batches that are not applied
    confirmed: dict[int, set[int]] = field(default_factory=dict)  # those that every server has

    def round_of(self, epoch: int, index: int) -> int:
        return epoch * self._rounds_per_epoch + index // self.size

    @property
    def _rounds_per_epoch(self) -> int:
        return -(-self.epoch_batches // self.size)

    def judge(self, push: Push) -> Ruling:
        """What to do with a push; the caller reports one that it kept with `keep`."""
        if push.timeline != self.timeline:
            return Ruling(Verdict.OVER, reason=self.over(push.timeline))
        if push.batch or push.index >= self.epoch_batches:
            return Ruling(Verdict.REFUSE, reason=f"there is no batch {push.batch} of {push.shard}")
        round_ = self.round_of(push.epoch, push.index)
        if round_ < self.version or push.index in self.kept.get(round_, ()):
            return Ruling(Verdict.REPEAT, 1)
        entry = self.entries.get(push.shard)
        if entry is None or push.attempt > entry.attempt:
            return Ruling(Verdict.WAIT, reason=f"this server does not know lease {push.attempt} of {push.shard} yet")
        if push.attempt < entry.attempt:
            return Ruling(Verdict.REFUSE, reason=f"lease {push.attempt} of {push.shard} was revoked")
        if push.computed_on < round_ - self.tolerance:
            return Ruling(Verdict.STALE, reason=f"computed on version {push.computed_on} for round {round_}")
        if self.barrier is not None and round_ >= self.barrier.until:
            return Ruling(Verdict.WAIT, reason="waiting for the cut")
        return Ruling(Verdict.KEEP)

    def keep(self, push: Push) -> None:
        self.kept.setdefault(self.round_of(push.epoch, push.index), set()).add(push.index)
        self.entries[push.shard].next_batch = 1

    def unconfirmed(self, epoch: int, index: int) -> bool:
        """Whether this server has a batch that its worker has not confirmed."""
        round_ = self.round_of(epoch, index)
        return index in self.kept.get(round_, ()) and index not in self.confirmed.get(round_, ())

    def confirm(self, epoch: int, index: int) -> None:
        round_ = self.round_of(epoch, index)
        if index in self.kept.get(round_, ()):
            self.confirmed.setdefault(round_, set()).add(index)
        elif round_ >= self.version:
            raise ValueError(f"this server does not have batch {index} of epoch {epoch}")

    def whole(self) -> bool:
        """Whether every batch of the present round is confirmed; the caller applies it and calls `round_applied`."""
        first = self.version % self._rounds_per_epoch * self.size
        return len(self.confirmed.get(self.version, ())) == min(self.size, self.epoch_batches - first)

    def round_applied(self) -> None:
        del self.kept[self.version]
        self.confirmed.pop(self.version, None)
        self.version += 1
        if self.barrier is not None and self.version >= self.barrier.until:
            self.barrier.reported = False

    # Directives of the master.

    def opened(self, shard: str, attempt: int, next_batch: int, batches: int) -> None:
        at = ShardId.parse(shard)
        round_ = self.round_of(at.round, at.index)
        here = round_ < self.version or at.index in self.kept.get(round_, ())
        entry = self.entries.setdefault(shard, Entry(attempt, int(here), batches))
        entry.attempt = max(entry.attempt, attempt)

    def close(self, shard: str) -> None:
        self.entries.pop(shard, None)  # the version tells that it was applied

    def close_epoch(self, epoch: int) -> None:
        pass  # likewise

    def hold(self, cut: int, at: int) -> None:
        if self.barrier is None or cut > self.barrier.cut:
            begun = max(self.kept) + 1 if self.kept else self.version
            self.barrier = Barrier(cut, at, until=max(at, begun))
        elif cut == self.barrier.cut:
            self.barrier.at = max(self.barrier.at, at)
            self.barrier.until = max(self.barrier.until, at)
            self.barrier.reported = False

    def advance(self, cut: int, limits: dict[str, int]) -> None:
        stands = [ShardId.parse(s) for s, n in limits.items() if n]
        ends = [self.round_of(at.round, at.index) + 1 for at in stands]
        self.hold(cut, max(ends, default=0))

    # Questions.

    @property
    def holding(self) -> bool:
        return self.barrier is not None and self.version >= self.barrier.until

    @property
    def holds_at(self) -> int:
        return self.barrier.until if self.barrier is not None else 0

    def report(self) -> tuple[int, dict[str, int]] | None:
        """The same, also if the server holds pushes later than the master wants: at the end of a round."""
        b = self.barrier
        if b is None or b.reported or (not self.holding and b.until <= b.at):
            return None
        b.reported = True
        return b.cut, {s: e.next_batch for s, e in self.entries.items()} if self.holding else {}


def ledger_of(m: pb.Restore, ledger: type[Ledger] = Ledger, rounds: type[Rounds] = Rounds) -> Ledger:
    """The ledger of a new timeline, asynchronous or synchronous."""
    if not m.round_batches:
        return ledger.restored(m)
    return rounds.restored(m, size=m.round_batches, epoch_batches=m.epoch_batches, tolerance=m.tolerance)
