"""Which records belong to which step and virtual worker of an all-reduce job: pure arithmetic, no state.

A step's batch is fixed at submission and cut into parts, one per virtual worker. The workers alive share the parts, so
what is computed does not depend on how many there are. Where the batch follows the number of workers instead, a step
is described by the position at which it starts and by that number.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from elasticdl.job.modes import default_virtual_workers
from elasticdl.job.spec import JobSpec


@dataclass(frozen=True)
class Part:
    """What one virtual worker computes in one step: positions [start, stop) of an epoch's order."""

    step: int
    virtual: int
    epoch: int
    start: int
    stop: int

    @property
    def records(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class StepPlan:
    """All steps of a job, without storing them."""

    records: int  # of an epoch
    batch: int  # of a step, over all workers
    virtual: int
    epochs: int
    max_step: int = 0  # 0: no limit

    @classmethod
    def of(cls, spec: JobSpec, records: int) -> StepPlan:
        virtual = spec.virtual_workers or default_virtual_workers(spec.num_workers, spec.max_workers)
        return cls(records, spec.minibatch_size * spec.num_workers, virtual, spec.num_epochs, spec.max_step)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.records // self.batch)

    @property
    def total_steps(self) -> int:
        every = self.epochs * self.steps_per_epoch
        return min(every, self.max_step) if self.max_step else every

    @property
    def total_records(self) -> int:
        return self.records_before(self.total_steps)

    def epoch_of(self, step: int) -> int:
        return step // self.steps_per_epoch

    def span(self, step: int) -> tuple[int, int]:
        """Positions of the epoch that a step trains; the last of an epoch may be short."""
        start = step % self.steps_per_epoch * self.batch
        return start, min(start + self.batch, self.records)

    def part(self, step: int, virtual: int) -> Part:
        """The share of a virtual worker: as even as whole records allow.

        In a short step some are empty, so that none is smaller than usual: batch normalization over one record fails,
        and over a few is worth little.
        """
        start, stop = self.span(step)
        size, usual = stop - start, max(1, self.batch // self.virtual)
        busy = min(self.virtual, max(1, size // usual))
        first, last = (size * (v * busy // self.virtual) // busy for v in (virtual, virtual + 1))
        return Part(step, virtual, self.epoch_of(step), start + first, start + last)

    def weight(self, step: int, virtual: int) -> float:
        """What a part counts in the mean over all parts: 1 where they are equally large."""
        start, stop = self.span(step)
        return self.part(step, virtual).records * self.virtual / (stop - start)

    def records_before(self, step: int) -> int:
        """How many records are trained once this many steps are."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.records + min(rest * self.batch, self.records)

    def steps_in(self, epoch: int, step: int) -> int:
        """How many steps of an epoch are among the first so many."""
        return max(0, min(step - epoch * self.steps_per_epoch, self.steps_per_epoch))

    def records_in(self, epoch: int, step: int) -> int:
        """How many records of an epoch are trained once this many steps are."""
        return min(self.steps_in(epoch, step) * self.batch, self.records)


def part_seed(seed: int, step: int, virtual: int) -> int:
    """What random numbers of one part start from: the same wherever it is computed. 63 bits."""
    digest = hashlib.blake2b(f"{seed}/{step}/{virtual}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
