"""Which records belong to which step and virtual worker of an all-reduce job: pure arithmetic, no state.

A step's batch is fixed at submission and cut into parts, one per virtual worker. The workers alive share the parts, so
what is computed does not depend on how many there are. Where the batch follows the number of workers instead, a step
is described by the position at which it starts and by that number.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from elasticdl.job.spec import JobSpec


def default_virtual_workers(num_workers: int, max_workers: int | None) -> int:
    """The power of two that is not below what the job may grow to, nor below twice what it starts with."""
    wanted = max(max_workers or 0, 2 * num_workers)
    return 1 << (wanted - 1).bit_length()


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
class Step:
    """One step: the positions [start, stop) of an epoch that it trains, cut into parts."""

    number: int
    epoch: int
    start: int
    stop: int
    parts: int  # one for each virtual worker
    busy: int  # how many of them have records: fewer in a short step
    rate_scale: float = 1.0  # what the learning rate is multiplied by

    @property
    def records(self) -> int:
        return self.stop - self.start

    def part(self, virtual: int) -> Part:
        """The share of a virtual worker: as even as whole records allow."""
        first, last = (self.records * (v * self.busy // self.parts) // self.busy for v in (virtual, virtual + 1))
        return Part(self.number, virtual, self.epoch, self.start + first, self.start + last)

    def weight(self, virtual: int) -> float:
        """What a part counts in the mean over all parts: 1 where they are equally large."""
        return self.part(virtual).records * self.parts / self.records


@dataclass(frozen=True)
class StepPlan:
    """All steps of a job, without storing them."""

    records: int  # of an epoch
    batch: int  # of a step, over all workers as submitted
    virtual: int
    epochs: int
    max_step: int = 0  # 0: no limit
    share: int = 0  # records of a step for each worker alive; 0: the batch stays what it is
    lr_scaling: str = "none"  # how the rate follows the number of workers, where the batch does

    @classmethod
    def of(cls, spec: JobSpec, records: int) -> StepPlan:
        batch, virtual = spec.minibatch_size * spec.num_workers, spec.virtual_workers
        usual = default_virtual_workers(spec.num_workers, spec.max_workers)
        if spec.batch_policy == "fixed":
            return cls(records, batch, virtual or usual, spec.num_epochs, spec.max_step)
        return cls(records, batch, usual, spec.num_epochs, spec.max_step, spec.minibatch_size, spec.lr_scaling)

    # Whatever the batch.

    def step(self, number: int, trained: int, workers: int) -> Step:
        """The step after so many steps, which trained so many records, as so many workers take it."""
        if not self.share:
            start, stop = self.span(number)
            busy = min(self.virtual, max(1, (stop - start) // max(1, self.batch // self.virtual)))
            return Step(number, self.epoch_of(number), start, stop, self.virtual, busy)
        epoch, start = divmod(trained, self.records)
        stop = min(start + self.share * workers, self.records)
        # No part is larger than a share: that is what the workers' memory was chosen for.
        return Step(number, epoch, start, stop, workers, -(-(stop - start) // self.share), self.rate_scale(workers))

    def parts(self, workers: int) -> int:
        """Into how many parts a step is cut."""
        return workers if self.share else self.virtual

    def rate_scale(self, workers: int) -> float:
        """What so many workers multiply the learning rate by, which was chosen for as many as were asked for."""
        times = workers * self.share / self.batch if self.share else 1.0
        return {"none": 1.0, "linear": times, "sqrt": math.sqrt(times)}[self.lr_scaling]

    def trained(self, steps: int, counted: int) -> int:
        """How many records so many steps trained: those that were `counted`, where the batch follows the workers."""
        return counted if self.share else self.records_before(steps)

    def over(self, steps: int, trained: int) -> bool:
        """Whether nothing is left to train."""
        return trained >= self.epochs * self.records or 0 < self.max_step <= steps

    # Where the batch is fixed.

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.records // self.batch)

    @property
    def total_steps(self) -> int:
        """0: not known beforehand, since the batch follows the workers."""
        if self.share:
            return 0
        every = self.epochs * self.steps_per_epoch
        return min(every, self.max_step) if self.max_step else every

    @property
    def total_records(self) -> int:
        """At most, where the batch follows the workers and a limit of steps ends the job before."""
        return self.epochs * self.records if self.share else self.records_before(self.total_steps)

    def epoch_of(self, step: int) -> int:
        return step // self.steps_per_epoch

    def span(self, step: int) -> tuple[int, int]:
        """Positions of the epoch that a step trains; the last of an epoch may be short."""
        start = step % self.steps_per_epoch * self.batch
        return start, min(start + self.batch, self.records)

    def part(self, step: int, virtual: int) -> Part:
        """The share of a virtual worker.

        In a short step some are empty, so that none is smaller than usual: batch normalization over one record fails,
        and over a few is worth little.
        """
        return self.step(step, 0, 0).part(virtual)

    def records_before(self, step: int) -> int:
        """How many records are trained once this many steps are."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.records + min(rest * self.batch, self.records)

    def steps_in(self, epoch: int, step: int) -> int:
        """How many steps of an epoch are among the first so many."""
        return max(0, min(step - epoch * self.steps_per_epoch, self.steps_per_epoch))


def part_seed(seed: int, step: int, virtual: int) -> int:
    """What random numbers of one part start from: the same wherever it is computed. 63 bits."""
    digest = hashlib.blake2b(f"{seed}/{step}/{virtual}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
