"""The search for the record of a batch that fails, by halves: probes compute a part of it and push nothing.

After `STRIKES` failures of a batch its records are searched until one is to blame. What is under suspicion has a worker
to itself: of a dead worker's leases only the last report shows which one it was at.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl.core.commands import Announce, Command, FinishJob, IdentifyRecord
from elasticdl.core.plan import BadRecord, Kind, Plan, Shard, put
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
class Searches:
    """Shards taken out of the line because a batch of theirs fails, and what was found. `line` is where they wait."""

    max_bad_records: int = 0
    open: dict[str, Search] = field(default_factory=dict)
    bad_records: list[BadRecord] = field(default_factory=list)
    probes: int = 0

    def unanswered(self) -> list[Command]:
        """Questions to the shell that a restart may have lost."""
        return [s.question for s in self.open.values() if s.over]

    def strike(
        self, s: Shard, error: str, plan: Plan, first: bool, line: list[Shard], out: list[Command], hung: bool = False
    ) -> None:
        """A shard in the line failed; `first`: the model has not moved yet."""
        if s.kind is Kind.PROBE:
            line.remove(s)
            self.probed(s, True, error, line, out)
            return
        s.strikes += 1
        if s.kind is not Kind.TRAIN:
            if s.strikes > STRIKES:
                out.append(FinishJob(Outcome.FAILED, f"{s.kind} failed {s.strikes} times:\n{error}"))
            return
        if first and not self.max_bad_records and not hung:
            out.append(FinishJob(Outcome.FAILED, f"the first batch failed:\n{error}"))
            return
        out.append(Announce(f"Batch {s.next_batch} of shard {s.id} failed ({s.strikes} of {STRIKES} times)"))
        if s.strikes >= STRIKES:
            line.remove(s)
            # The report of a batch may die with the worker that crashes in the next: search that one second.
            batch = min(s.next_batch + s.searched % 2, s.batches - 1)
            start = s.start + batch * plan.minibatch
            self.open[s.id] = Search(s, start, start + plan.batch_records(s, batch), error)
            self._probe(s.id, line, out)

    def _probe(self, shard_id: str, line: list[Shard], out: list[Command]) -> None:
        search = self.open[shard_id]
        size = search.high - search.low
        search.probing = search.low + max(1, size // 2) if size > 1 else search.high
        self.probes += 1
        search.probe = self.probes
        probe = Shard(Kind.PROBE, search.shard.round, self.probes, search.low, search.probing, 1, payload=shard_id)
        put(line, probe)
        out.append(Announce(f"Searching shard {shard_id} for a bad record (candidates: {size})"))

    def probed(self, probe: Shard, crashed: bool, error: str, line: list[Shard], out: list[Command]) -> None:
        search = self.open.get(probe.payload)
        if search is None or search.probe != probe.index:
            return
        single = search.high - search.low == 1
        if crashed:
            search.high, search.confirmed, search.error = search.probing, True, error or search.error
        elif single:
            # A dying worker may have been at another batch than the one it last reported, and a record found
            # meanwhile may have been the one: try the batch again before calling it hopeless.
            self._give_up(probe.payload, line)
            search.shard.searched += 1
            if search.shard.searched > STRIKES:
                what = f"a batch of shard {probe.payload} fails, but none of its records fails alone"
                out.append(FinishJob(Outcome.FAILED, f"{what}:\n{search.error}"))
            return
        else:
            search.low, search.confirmed = search.probing, False
        if search.over:
            out.append(search.question)
        else:
            self._probe(probe.payload, line, out)

    def _give_up(self, shard_id: str, line: list[Shard]) -> Search:
        search = self.open.pop(shard_id)
        search.shard.strikes = 0
        put(line, search.shard)
        return search

    def identified(
        self, shard_id: str, position: int, record: int, name: str, line: list[Shard], out: list[Command]
    ) -> None:
        found = self.open.get(shard_id)
        if found is None or not found.over or found.low != position:
            return  # the answer to an older search
        search = self._give_up(shard_id, line)
        if any(b.record == record for b in self.bad_records):
            return
        bad = BadRecord(record, name, search.error)
        self.bad_records.append(bad)
        if len(self.bad_records) > self.max_bad_records:
            out.append(FinishJob(Outcome.FAILED, bad.one_too_many(self.max_bad_records)))
            return
        out.append(Announce(f"Skipping {name}: it cannot be trained ({len(self.bad_records)} so far)"))
