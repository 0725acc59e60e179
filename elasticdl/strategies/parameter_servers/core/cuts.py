"""A cut: one moment at which every server holds the same batches of every shard.

The barrier is on the servers: all hold their pushes and report their counters. Equal: all freeze, then go on. Unequal:
each lets through what another one already has. Where that can't come, because its worker died in between or stands
before the barrier with another shard, all are released, the batch is trained, and the cut is tried again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from elasticdl.core import commands as c

VIEW, SAVE = "view", "save"


class Phase(StrEnum):
    HOLDING = "holding"
    ADVANCING = "advancing"
    CUTTING = "cutting"
    REPAIRING = "repairing"  # released; waits until the torn batches are trained


@dataclass
class Cut:
    number: int
    purpose: str
    at: int
    lasting: bool = False  # of a saved cut: its checkpoint is one the user asked for
    begun: bool = False  # synchronous training: all go to the end of a round that one of them has begun
    phase: Phase = Phase.HOLDING
    held: dict[str, dict[str, int]] = field(default_factory=dict)  # server -> shard -> next batch
    frozen: set[str] = field(default_factory=set)  # servers
    early: dict[str, tuple[str, str]] = field(default_factory=dict)  # parts written before all are frozen, and errors
    counters: dict[str, int] = field(default_factory=dict)  # what the cut contains, once all are equal
    limits: dict[str, int] = field(default_factory=dict)  # how far servers may go on to become equal


@dataclass
class Cuts:
    servers: tuple[str, ...]
    active: Cut | None = None
    numbers: int = 0

    def start(self, purpose: str, at: int, lasting: bool = False) -> list[c.Command]:
        self.numbers += 1
        self.active = Cut(self.numbers, purpose, at, lasting)
        return [c.HoldServers(self.numbers, at)]

    def cancel(self) -> list[c.Command]:
        """Give up the cut that is under way."""
        cut, self.active = self.active, None
        return [c.ReleaseServers(cut.number)] if cut is not None else []

    def held(
        self, server: str, number: int, counters: Mapping[str, int], unclosed: Collection[str], moving: Collection[str],
        at: int | None = None, coming: bool = False,
    ) -> list[c.Command]:  # fmt: skip
        """A server reports the next batch of each shard it has open; `moving` are the shards that workers are at.

        In synchronous training servers hold between two rounds, at a version each. A server that has begun a later
        round than the cut asked for reports where it ends, and all go there: so they are never unequal.
        """
        cut = self.active
        if cut is None or cut.number != number:
            return [c.ReleaseServers(number, server)]
        if cut.phase not in (Phase.HOLDING, Phase.ADVANCING) or server not in self.servers:
            return []
        if at is not None and at > cut.at:
            cut.at, cut.begun = at, True
            cut.held.clear()
            return [c.HoldServers(cut.number, at)]
        if coming or (at is not None and at < cut.at):
            return []  # it goes on, and will report again
        cut.held[server] = dict(counters)
        if set(cut.held) != set(self.servers):
            return []
        return self._compare(unclosed, moving)

    def check(self, unclosed: Collection[str], moving: Collection[str]) -> list[c.Command]:
        """Leases may have ended: see whether what is missing can still come."""
        cut = self.active
        if cut is None or cut.phase is not Phase.ADVANCING:
            return []
        return self._compare(unclosed, moving)

    def give_way(self) -> list[c.Command]:
        """Nothing moved for too long under the barrier: lift it until what servers have is committed."""
        cut = self.active
        if cut is None or not cut.held or cut.phase not in (Phase.HOLDING, Phase.ADVANCING):
            return []
        cut.phase = Phase.REPAIRING
        cut.counters = {s: max(h.get(s, 0) for h in cut.held.values()) for k in cut.held.values() for s in k}
        return [
            c.ReleaseServers(cut.number),
            c.Announce(f"Postponed cut {cut.number}: no batch finished while pushes were held"),
        ]

    def _compare(self, unclosed: Collection[str], moving: Collection[str]) -> list[c.Command]:
        cut = self.active
        assert cut is not None
        # A shard may close between two servers' reports: it stands equal everywhere.
        shards = {s for counters in cut.held.values() for s in counters if s in unclosed}
        most = {s: max(h.get(s, 0) for h in cut.held.values()) for s in shards}
        torn = {s for s in shards if any(h.get(s, 0) < most[s] for h in cut.held.values())}
        if not torn:
            cut.phase, cut.counters = Phase.CUTTING, most
            return [c.CutServers(cut.number, cut.purpose)]
        if not torn <= set(moving):
            cut.phase, cut.counters = Phase.REPAIRING, {s: most[s] for s in torn}
            names = ", ".join(sorted(torn))
            return [
                c.ReleaseServers(cut.number),
                c.Announce(
                    f"Postponed cut {cut.number}: a batch of {names} reached only some servers and is trained again"
                ),
            ]
        if cut.phase is Phase.ADVANCING and cut.limits == most:
            return []  # they know it already
        cut.phase, cut.limits = Phase.ADVANCING, most
        return [c.AdvanceServers(cut.number, tuple(sorted(most.items())))]

    def repaired(self, committed: Mapping[str, int]) -> list[c.Command]:
        """Try again once every torn batch is trained; `committed` holds the open shards' next batches."""
        cut = self.active
        if cut is None or cut.phase is not Phase.REPAIRING:
            return []
        if any(s in committed and committed[s] < n for s, n in cut.counters.items()):
            return []
        return self.start(cut.purpose, 0, cut.lasting)

    def gives_way_to(self, at: int, version: int) -> bool:
        """Whether the cut under way has not begun, and waits for a later version than `at`."""
        cut = self.active
        waits = cut is not None and cut.phase is Phase.HOLDING and not cut.held and not cut.begun
        return cut is not None and waits and cut.at > max(at, version)

    def frozen(self, server: str, number: int) -> Cut | None:
        """A server froze its part; the finished cut when it was the last one."""
        cut = self.active
        if cut is None or cut.number != number or cut.phase is not Phase.CUTTING or server not in self.servers:
            return None
        cut.frozen.add(server)
        if cut.frozen != set(self.servers):
            return None
        self.active = None
        return cut

    def joined(self, server: str) -> list[c.Command]:
        """A server connected: send it where the cut stands."""
        cut = self.active
        if cut is None or cut.phase is Phase.REPAIRING:
            return [c.ReleaseServers(self.numbers, server)]
        if cut.phase is Phase.CUTTING:
            return [] if server in cut.frozen else [c.CutServers(cut.number, cut.purpose, server)]
        if cut.phase is Phase.ADVANCING:
            return [c.AdvanceServers(cut.number, tuple(sorted(cut.limits.items())), server)]
        return [c.HoldServers(cut.number, cut.at, server)]
