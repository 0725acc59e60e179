"""Which faults hit which roles, and when: the same for the same seed on every machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from elasticdl.job.names import MASTER, PS, WORKER

ROLES = (WORKER, PS, MASTER)
_ROLE_WEIGHTS = (5.0, 3.5, 1.5)  # a job has most workers, and one master
LAST_SHARE = 0.85  # of the records: what comes later would hit the end of the job and not its training
SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 4.0  # seconds


class Kind(StrEnum):
    """What is done to a replica."""

    KILL = "kill"  # SIGKILL
    PAUSE = "pause"  # SIGSTOP, and SIGCONT some seconds later
    TERMINATE = "terminate"  # SIGTERM
    CUT = "cut"  # one of its connections to another replica is shut down


_AFTERSHOCKS = 0.2  # the share of faults that come right after the one before, while the job still recovers from it
_KIND_WEIGHTS = {Kind.KILL: 4.0, Kind.PAUSE: 2.0, Kind.TERMINATE: 2.0, Kind.CUT: 2.5}


@dataclass(frozen=True)
class Fault:
    """One fault. `pick` decides which replica of the role it hits, among those that run then."""

    number: int
    role: str
    kind: Kind
    pick: float  # 0 to 1: the place among the candidates
    pick_connection: float  # the same among the replica's connections
    pause_seconds: float
    aftershock: bool = False  # waits for no progress


@dataclass(frozen=True)
class Timing:
    """When faults come: spread over the records that are left to train, or by the clock."""

    events: int | None = None
    every_seconds: float | None = None  # mean pause; None: by the job's progress
    seconds: float | None = None  # no fault later than this

    @property
    def by_progress(self) -> bool:
        return self.every_seconds is None


@dataclass(frozen=True)
class Plan:
    """A schedule. The nature of fault n depends on the seed and on what is allowed, not on the timing."""

    seed: int
    timing: Timing
    roles: Sequence[str] = ROLES
    kinds: Sequence[Kind] = tuple(Kind)
    longest_pause: float = LONGEST_PAUSE

    def fault(self, number: int) -> Fault:
        random = Random(f"{self.seed}/event/{number}")
        weights = [w if role in self.roles else 0.0 for role, w in zip(ROLES, _ROLE_WEIGHTS, strict=True)]
        role = random.choices(ROLES, weights)[0]
        kind = random.choices(list(Kind), [_KIND_WEIGHTS[k] if k in self.kinds else 0.0 for k in Kind])[0]
        pause = SHORTEST_PAUSE + random.random() * max(0.0, self.longest_pause - SHORTEST_PAUSE)
        return Fault(number, role, kind, random.random(), random.random(), round(pause, 1))

    def by_records(self, done: int, total: int) -> Iterator[tuple[int, Fault]]:
        """(records trained, fault): one in each of equal parts of what is left."""
        count = self.timing.events or 0
        last = max(done, int(LAST_SHARE * total))
        for number in range(count):
            random = Random(f"{self.seed}/share/{number}")
            share = (number + random.random()) / count
            aftershock = number > 0 and random.random() < _AFTERSHOCKS
            yield done + int(share * (last - done)), replace(self.fault(number), aftershock=aftershock)

    def by_clock(self) -> Iterator[tuple[float, Fault]]:
        """(seconds from the start, fault)."""
        assert self.timing.every_seconds is not None
        at = 0.0
        for number in itertools.count():
            at += Random(f"{self.seed}/wait/{number}").expovariate(1 / self.timing.every_seconds)
            if self.timing.events is not None and number >= self.timing.events:
                return
            if self.timing.seconds is not None and at > self.timing.seconds:
                return
            yield at, self.fault(number)
