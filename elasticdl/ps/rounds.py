"""Which batches a server has in synchronous training: a round is kept until it is whole, then applied at once.

Batch `index` of an epoch belongs to round `index // size`. The version is the number of rounds applied, so that it is
the number of the present round as well, on which its batches are to be computed. The first gradient of each batch is
kept; one of a batch that is kept or applied is a repeat; one computed on a version that is too old is rejected.

A worker may die when only some of the servers have its batch. No server may then go on to the next version: whoever
computes the batch again, for the others, needs the values of this one from all. So a round is whole when every batch of
it is confirmed: whoever has pushed one says so once all servers have it.
Servers are cut between two rounds: a round that has begun when a cut is asked for is finished first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from elasticdl.core.plan import ShardId
from elasticdl.ps.ledger import Barrier, Entry, Ledger, Push, Ruling, Verdict
from elasticdl.wire import control_pb2 as pb


@dataclass
class Rounds(Ledger):
    size: int = 1  # batches of a round
    epoch_batches: int = 1  # the epoch's last round may be short
    tolerance: int = 0  # how many versions before its round's a batch may be computed on
    kept: dict[int, set[int]] = field(default_factory=dict)  # round -> batches that are here and not applied
    confirmed: dict[int, set[int]] = field(default_factory=dict)  # those of them that every server has

    @classmethod
    def restored(cls, m: pb.Restore) -> Self:
        entries = {o.shard: Entry(o.attempt, o.next_batch, o.batches) for o in m.open}
        return cls(
            m.timeline, m.version, entries, size=m.round_batches, epoch_batches=int(m.epoch_batches),
            tolerance=m.tolerance,
        )  # fmt: skip

    def round_of(self, epoch: int, index: int) -> int:
        return epoch * self._rounds_per_epoch + index // self.size

    @property
    def _rounds_per_epoch(self) -> int:
        return -(-self.epoch_batches // self.size)

    def judge(self, push: Push) -> Ruling:
        """What to do with a push; the caller keeps it and then says so with `keep`."""
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
        """Whether a batch is here, and somebody has yet to say that it is everywhere."""
        round_ = self.round_of(epoch, index)
        return index in self.kept.get(round_, ()) and index not in self.confirmed.get(round_, ())

    def confirm(self, epoch: int, index: int) -> None:
        round_ = self.round_of(epoch, index)
        if index in self.kept.get(round_, ()):
            self.confirmed.setdefault(round_, set()).add(index)
        elif round_ >= self.version:
            raise ValueError(f"this server does not have batch {index} of epoch {epoch}")

    def whole(self) -> bool:
        """Whether every batch of the present round is on every server: the caller applies it and then says so."""
        first = self.version % self._rounds_per_epoch * self.size
        return len(self.confirmed.get(self.version, ())) == min(self.size, self.epoch_batches - first)

    def round_applied(self) -> None:
        del self.kept[self.version]
        self.confirmed.pop(self.version, None)
        self.version += 1
        if self.barrier is not None and self.version >= self.barrier.until:
            self.barrier.reported = False

    # What the master says.

    def opened(self, shard: str, attempt: int, next_batch: int, batches: int) -> None:
        at = ShardId.parse(shard)
        round_ = self.round_of(at.round, at.index)
        here = round_ < self.version or at.index in self.kept.get(round_, ())
        entry = self.entries.setdefault(shard, Entry(attempt, int(here), batches))
        entry.attempt = max(entry.attempt, attempt)

    def close(self, shard: str) -> None:
        self.entries.pop(shard, None)  # that it was applied, the version says

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
        """The cut and the counters, when there is something new to say: it holds, or will later than was asked."""
        b = self.barrier
        if b is None or b.reported or (not self.holding and b.until <= b.at):
            return None
        b.reported = True
        return b.cut, {s: e.next_batch for s, e in self.entries.items()} if self.holding else {}


def ledger_of(m: pb.Restore, ledger: type[Ledger] = Ledger, rounds: type[Rounds] = Rounds) -> Ledger:
    """The ledger of a timeline, asynchronous or synchronous as the master says."""
    return rounds.restored(m) if m.round_batches else ledger.restored(m)
