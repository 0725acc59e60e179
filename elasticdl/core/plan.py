"""How an epoch's records are cut into shards: pure arithmetic, no state."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a worker is asked to do with a shard; the order is the order of urgency."""

    AUDIT = "audit"
    EXPORT = "export"
    SUMMARIZE = "summarize"
    EVALUATE = "evaluate"
    PROBE = "probe"
    TRAIN = "train"


URGENCY = {kind: place for place, kind in enumerate(Kind)}


@dataclass
class Shard:
    """A range of positions [start, stop) of one epoch (or of one evaluation round), and how far it got."""

    kind: Kind
    round: int  # the epoch, or the number of the evaluation round
    index: int
    start: int
    stop: int
    batches: int
    next_batch: int = 0
    attempt: int = 0  # grows with each lease; a message with an older one is refused
    worker: str = ""  # who holds the lease
    since: float = 0.0  # when the lease last moved
    turn: int = 0  # leases are worked on in the order of their turns
    strikes: int = 0  # how often its next batch crashed a worker
    refusals: int = 0  # how often in a row it was given back because a server refused it
    searched: int = 0  # how often its next batch was searched in vain
    careful: bool = False  # a worker died holding it: nobody reads it ahead any more, so that blame is exact
    payload: str = ""  # what the worker needs besides the range

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.round}/{self.index}"

    @property
    def alone(self) -> bool:
        """Whether its worker should hold nothing else: it may crash, and must be the only one to blame."""
        return self.kind is Kind.PROBE or self.careful or self.strikes > 0 or self.searched > 0

    @property
    def order(self) -> tuple[int, int, int]:
        return (URGENCY[self.kind], self.round, self.index)


@dataclass(frozen=True)
class Plan:
    """All training shards of a job, without storing them."""

    records: int
    minibatch: int
    batches_per_shard: int
    epochs: int
    max_step: int = 0  # 0: no limit

    @property
    def shard_records(self) -> int:
        return self.minibatch * self.batches_per_shard

    @property
    def shards_per_epoch(self) -> int:
        return -(-self.records // self.shard_records)

    @property
    def batches_per_epoch(self) -> int:
        return -(-self.records // self.minibatch)

    @property
    def total_batches(self) -> int:
        every = self.epochs * self.batches_per_epoch
        return min(every, self.max_step) if self.max_step else every

    @property
    def total_records(self) -> int:
        epochs, rest = divmod(self.total_batches, self.batches_per_epoch)
        return epochs * self.records + min(rest * self.minibatch, self.records)

    def epoch_records(self, epoch: int) -> int:
        """How many records of this epoch are trained: all of them, unless `max_step` ends the job before."""
        rest = self.total_batches - epoch * self.batches_per_epoch
        return max(0, min(rest * self.minibatch, self.records))

    def batch_records(self, shard: Shard, batch: int) -> int:
        start = shard.start + batch * self.minibatch
        return max(0, min(self.minibatch, shard.stop - start))

    def shard(self, epoch: int, index: int) -> Shard | None:
        """Shard `index` of an epoch; None past the end of the job."""
        if epoch >= self.epochs or index >= self.shards_per_epoch:
            return None
        before = epoch * self.batches_per_epoch + index * self.batches_per_shard
        start = index * self.shard_records
        stop = min(start + self.shard_records, self.records)
        batches = min(-(-(stop - start) // self.minibatch), self.total_batches - before)
        if batches <= 0:
            return None
        return Shard(Kind.TRAIN, epoch, index, start, min(stop, start + batches * self.minibatch), batches)

    def named(self, shard_id: str) -> Shard:
        """A training shard by its name."""
        kind, epoch, index = shard_id.split("/")
        found = self.shard(int(epoch), int(index)) if kind == Kind.TRAIN else None
        if found is None:
            raise ValueError(f"there is no shard {shard_id} in this job")
        return found


@dataclass
class EpochDone:
    """What of one epoch is committed."""

    batches: int = 0
    records: int = 0


@dataclass
class Position:
    """Where in the data a cut stands."""

    version: int = 0
    next: tuple[int, int] = (0, 0)  # epoch and index of the next fresh shard
    open: dict[str, tuple[int, int]] = field(default_factory=dict)  # shard -> next batch, batches
    done: dict[int, EpochDone] = field(default_factory=dict)


@dataclass
class BadRecord:
    """A record that was set aside because it crashes workers."""

    record: int
    name: str
    error: str = field(default="")
