"""The search for the record of a batch that fails, by halves: probes compute a part of it and push nothing.

After `STRIKES` failures of a batch its records are searched until one is to blame. What is under suspicion has a worker
to itself: of a dead worker's leases only the last report says which one it was at.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from elasticdl.core.commands import Announce, Command, FinishJob, IdentifyRecord
from elasticdl.core.plan import BadRecord, Kind, Plan, Shard
from elasticdl.job.outcome import Outcome

STRIKES = 2


@dataclass
class Search:
    """The hunt for the record of a batch that crashes workers: it is in [low, high)."""

    shard: Shard
    low: int
    high: int
    error: str
    probe: int = 0  # the index of the probe that is out
    probing: int = 0  # the probe covers [low, probing)
    confirmed: bool = False  # the range itself was seen to crash

    @property
    def over(self) -> bool:
        return self.confirmed and self.high - self.low == 1

    @property
    def question(self) -> IdentifyRecord:
        """Which record stands there?"""
        return IdentifyRecord(self.shard.id, self.shard.round, self.low)


@dataclass
class SearchedShards:
    """Shards that wait, and those taken out of the line because a batch of theirs fails."""

    plan: Plan
    max_bad_records: int = 0
    waiting: list[Shard] = field(default_factory=list)  # given back or added, by urgency
    version: int = 0  # updates of the model that every server has made
    searches: dict[str, Search] = field(default_factory=dict)
    bad_records: list[BadRecord] = field(default_factory=list)
    probes: int = 0

    def wait(self, s: Shard) -> None:
        insort(self.waiting, s, key=lambda s: s.order)

    def unanswered(self) -> list[Command]:
        """Questions to the shell that a restart may have lost."""
        return [s.question for s in self.searches.values() if s.over]

    def _strike(self, s: Shard, error: str, out: list[Command], hung: bool = False) -> None:
        if s.kind is Kind.PROBE:
            self.waiting.remove(s)
            self._probed(s, True, error, out)
            return
        s.strikes += 1
        if s.kind is not Kind.TRAIN:
            if s.strikes > STRIKES:
                out.append(FinishJob(Outcome.FAILED, f"{s.kind} failed {s.strikes} times:\n{error}"))
            return
        if self.version == 0 and not self.max_bad_records and not hung:
            out.append(FinishJob(Outcome.FAILED, f"the first batch failed:\n{error}"))
            return
        out.append(Announce(f"batch {s.next_batch} of shard {s.id} failed ({s.strikes} of {STRIKES} times)"))
        if s.strikes >= STRIKES:
            self.waiting.remove(s)
            # The report of a batch may die with the worker that crashes in the next: search that one second.
            batch = min(s.next_batch + s.searched % 2, s.batches - 1)
            start = s.start + batch * self.plan.minibatch
            self.searches[s.id] = Search(s, start, start + self.plan.batch_records(s, batch), error)
            self._probe(s.id, out)

    def _probe(self, shard_id: str, out: list[Command]) -> None:
        search = self.searches[shard_id]
        size = search.high - search.low
        search.probing = search.low + max(1, size // 2) if size > 1 else search.high
        self.probes += 1
        search.probe = self.probes
        probe = Shard(Kind.PROBE, search.shard.round, self.probes, search.low, search.probing, 1, payload=shard_id)
        self.wait(probe)
        out.append(Announce(f"looking for the record at fault in {search.high - search.low} of {shard_id}"))

    def _probed(self, probe: Shard, crashed: bool, error: str, out: list[Command]) -> None:
        search = self.searches.get(probe.payload)
        if search is None or search.probe != probe.index:
            return
        single = search.high - search.low == 1
        if crashed:
            search.high, search.confirmed, search.error = search.probing, True, error or search.error
        elif single:
            # A dying worker may have been at another batch than the one it last reported, and a record found
            # meanwhile may have been the one: try the batch again before calling it hopeless.
            self._give_up(probe.payload)
            search.shard.searched += 1
            if search.shard.searched > STRIKES:
                what = f"a batch of shard {probe.payload} fails, but none of its records alone does"
                out.append(FinishJob(Outcome.FAILED, f"{what}:\n{search.error}"))
            return
        else:
            search.low, search.confirmed = search.probing, False
        if search.over:
            out.append(search.question)
        else:
            self._probe(probe.payload, out)

    def _give_up(self, shard_id: str) -> Search:
        search = self.searches.pop(shard_id)
        search.shard.strikes = 0
        self.wait(search.shard)
        return search

    def _identified(self, shard_id: str, position: int, record: int, name: str, out: list[Command]) -> None:
        found = self.searches.get(shard_id)
        if found is None or not found.over or found.low != position:
            return  # the answer to an older search
        search = self._give_up(shard_id)
        if any(b.record == record for b in self.bad_records):
            return
        bad = BadRecord(record, name, search.error)
        self.bad_records.append(bad)
        if len(self.bad_records) > self.max_bad_records:
            out.append(FinishJob(Outcome.FAILED, bad.one_too_many(self.max_bad_records)))
            return
        out.append(Announce(f"{name} cannot be trained and is set aside ({len(self.bad_records)} so far)"))
