"""Evaluation rounds: each pinned to one version of the model, spread over the workers, summed up by one of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from elasticdl.core.plan import Kind, Shard


@dataclass
class Round:
    number: int
    cut: int  # the view it reads
    version: int
    missing: int  # evaluation shards not finished
    results: list[str] = field(default_factory=list)


@dataclass
class Evaluation:
    records: int  # of the validation data; 0: none
    every: int  # versions between rounds; 0: only at the end
    minibatch: int
    shard_records: int
    next_at: int = 0
    rounds: int = 0
    current: Round | None = None
    done: list[tuple[int, str]] = field(default_factory=list)  # version, metrics as JSON

    @classmethod
    def planned(cls, records: int, every: int, minibatch: int, workers: int) -> Evaluation:
        """Shards small enough that no worker waits long for the last one: about eight for each worker."""
        share = -(-records // (8 * workers)) if records else minibatch
        return cls(records, every, minibatch, -(-share // minibatch) * minibatch, next_at=every)

    def wanted_at(self, version: int, total: int, trained_out: bool) -> int | None:
        """At which version the next round should be pinned; None: none is due."""
        if not self.records or self.current is not None:
            return None
        if trained_out:
            return None if self.done and self.done[-1][0] == version else 0
        if self.every and self.next_at <= total:
            return self.next_at
        return None

    def over(self, version: int) -> bool:
        """Nothing is left to evaluate once training is over at this version."""
        return not self.records or (self.current is None and bool(self.done) and self.done[-1][0] == version)

    def go_back(self, version: int) -> None:
        """Versions above this one never were: forget their metrics, and the view of the round that is under way."""
        interrupted = self.current is not None and self.current.version <= version
        self.current = None
        self.done = [d for d in self.done if d[0] <= version]
        if self.every:
            self.next_at = version if interrupted else (version // self.every + 1) * self.every

    def opened(self, cut: int, version: int) -> tuple[Shard, ...]:
        """A view is pinned: the shards of its round."""
        self.rounds += 1
        if self.every:
            self.next_at = (version // self.every + 1) * self.every
        shards = []
        for index, start in enumerate(range(0, self.records, self.shard_records)):
            stop = min(start + self.shard_records, self.records)
            batches = -(-(stop - start) // self.minibatch)
            shards.append(Shard(Kind.EVALUATE, self.rounds, index, start, stop, batches, payload=str(cut)))
        self.current = Round(self.rounds, cut, version, len(shards))
        return tuple(shards)

    def completed(self, shard: Shard, result: str) -> Shard | None:
        """An evaluation shard is finished; the summary shard when it was the last one."""
        current = self.current
        if current is None or current.number != shard.round:
            return None
        current.results.append(result)
        current.missing -= 1
        if current.missing:
            return None
        return Shard(Kind.SUMMARIZE, current.number, 0, 0, 0, 1, payload=json.dumps(current.results))

    def summarized(self, result: str) -> Round | None:
        current, self.current = self.current, None
        if current is not None:
            self.done.append((current.version, result))
        return current
