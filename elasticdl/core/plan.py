"""How an epoch's records are cut into shards, and shards put together to rounds: pure arithmetic, no state.

A version is one update of the model. In asynchronous training each batch is one; in synchronous training a round of
`round_batches` consecutive batches is, the last round of an epoch may be short, and every shard is one batch.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from enum import StrEnum

from elasticdl.job.spec import JobSpec


class Kind(StrEnum):
    """What a worker is asked to do with a shard; the order is the order of urgency."""

    AUDIT = "audit"
    EXPORT = "export"
    SUMMARIZE = "summarize"
    EVALUATE = "evaluate"
    PROBE = "probe"
    TRAIN = "train"


URGENCY = {kind: place for place, kind in enumerate(Kind)}


@dataclass(frozen=True)
class ShardId:
    """Which shard. Messages, the journal and checkpoints hold it as the string `kind/round/index`."""

    kind: Kind
    round: int
    index: int

    @classmethod
    def parse(cls, text: str) -> ShardId:
        kind, round_, index = text.split("/")
        return cls(Kind(kind), int(round_), int(index))

    def __str__(self) -> str:
        return f"{self.kind}/{self.round}/{self.index}"


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
    skipped: int = 0  # batches of the present lease that were skipped
    attempt: int = 0  # grows with each lease; a message with an older one is refused
    worker: str = ""  # the one that holds the lease
    since: float = 0.0  # when the lease last moved
    turn: int = 0  # leases are worked on in the order of their turns
    strikes: int = 0  # how often its next batch crashed a worker
    refusals: int = 0  # how often in a row it was given back because a server refused it
    searched: int = 0  # how often its next batch was searched in vain
    careful: bool = False  # a worker died holding it: not read ahead any more, so that blame is exact
    payload: str = ""  # what the worker needs besides the range

    @property
    def id(self) -> str:
        return str(ShardId(self.kind, self.round, self.index))

    @property
    def alone(self) -> bool:
        """Whether its worker should hold nothing else: it may crash, and must be the only one to blame."""
        return self.kind is Kind.PROBE or self.careful or self.strikes > 0 or self.searched > 0

    @property
    def order(self) -> tuple[int, int, int]:
        return (URGENCY[self.kind], self.round, self.index)


def put(line: list[Shard], s: Shard) -> None:
    """Into its place among shards that wait, by urgency."""
    insort(line, s, key=lambda s: s.order)


@dataclass(frozen=True)
class Plan:
    """All training shards of a job, without storing them."""

    records: int
    minibatch: int
    batches_per_shard: int
    epochs: int
    max_step: int = 0  # versions; 0: no limit
    round_batches: int = 0  # of synchronous training; 0: asynchronous
    tolerance: int = 0  # how many versions before its round's a batch may be computed on

    @classmethod
    def of(cls, spec: JobSpec, records: int) -> Plan:
        if spec.asynchronous:
            return cls(records, spec.minibatch_size, spec.num_minibatches_per_task, spec.num_epochs, spec.max_step)
        tolerance = spec.sync_version_tolerance or 0
        return cls(records, spec.minibatch_size, 1, spec.num_epochs, spec.max_step, spec.round_batches, tolerance)

    def __post_init__(self) -> None:
        if self.round_batches and self.batches_per_shard != 1:
            raise ValueError("in synchronous training every shard is one batch")

    @property
    def synchronous(self) -> bool:
        return self.round_batches > 0

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
    def versions_per_epoch(self) -> int:
        return -(-self.batches_per_epoch // max(1, self.round_batches))

    @property
    def total_versions(self) -> int:
        every = self.epochs * self.versions_per_epoch
        return min(every, self.max_step) if self.max_step else every

    @property
    def total_batches(self) -> int:
        epochs, rest = divmod(self.total_versions, self.versions_per_epoch)
        return epochs * self.batches_per_epoch + min(rest * max(1, self.round_batches), self.batches_per_epoch)

    def version_before(self, epoch: int, index: int) -> int:
        """In synchronous training: the version on which batch `index` of an epoch is computed, past the end the last.

        It is the number of the batch's round, too.
        """
        return min(epoch * self.versions_per_epoch + index // self.round_batches, self.total_versions)

    def version_needed(self, epoch: int, index: int) -> int:
        """The oldest version on which that batch may be computed."""
        return max(0, self.version_before(epoch, index) - self.tolerance)

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
        wanted = ShardId.parse(shard_id)
        found = self.shard(wanted.round, wanted.index) if wanted.kind is Kind.TRAIN else None
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
    records: int = 0  # all-reduce: trained by all steps so far


@dataclass
class BadRecord:
    """A record that was set aside because it cannot be trained."""

    record: int
    name: str
    error: str = field(default="")

    def one_too_many(self, most: int) -> str:
        """Why it ends the job."""
        what = f"{self.name} cannot be trained, and --max_bad_records={most} allows no more bad records"
        return f"{what}:\n{self.error}"
