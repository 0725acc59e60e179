"""Record ranges and which worker trains them: waiting, leased, done. No record is dropped or handed out twice.

A worker that is lost gives its lease back at the committed batch. A batch that fails is tried again, then searched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.plan import EpochDone, Kind, Plan, Position, Shard, put
from elasticdl.core.searches import Searches
from elasticdl.job.outcome import Outcome

REFUSALS = 4  # a lease given back again and again for the same reason will never be worked on


class WorkerLost(e.Event):
    """A worker is gone for good; `blame` when it died of what it was computing, or did not come to an end with it."""

    worker: str
    reason: str
    blame: bool = False
    hung: bool = False


class ShardsAdded(e.Event):
    """Evaluation, summary and export shards, asked for by the other machines."""

    shards: tuple[Shard, ...]


@dataclass
class Seat:
    """A worker that may hold leases."""

    capacity: int
    leaving: bool = False


@dataclass
class Shards:
    plan: Plan
    searches: Searches = field(default_factory=Searches)
    waiting: list[Shard] = field(default_factory=list)  # given back or added, by urgency
    version: int = 0  # updates of the model that every server has made
    seats: dict[str, Seat] = field(default_factory=dict)
    epoch: int = 0  # the next fresh shard is (epoch, index)
    index: int = 0
    leased: dict[str, Shard] = field(default_factory=dict)
    done: dict[int, EpochDone] = field(default_factory=dict)
    version_since: float = 0.0  # when it last rose
    skipped: int = 0  # batches that counted and were skipped: their gradients were not finite
    turns: int = 0
    highest_attempt: int = 0  # of any lease so far
    attempts_before: int = 0  # the highest before the last rollback: leases after it have higher ones
    paused: bool = True  # until every server is there
    draining: bool = False  # a stop was asked for: only torn batches are trained
    results: list[tuple[Shard, str]] = field(default_factory=list)  # finished others, for the other machines

    # The one mutator.

    def handle(self, event: e.Event, now: float) -> list[c.Command]:
        out: list[c.Command] = []
        match event:
            case e.ReplicaJoined(name, _, _, holdings, capacity):
                self._joined(name, holdings, capacity, now, out)
            case WorkerLost(worker, reason, blame, hung):
                self._lost(worker, reason, blame, out, hung)
            case e.ReplicaLeaving(worker):
                if worker in self.seats:
                    self.seats[worker].leaving = True
            case e.BatchesCommitted(worker, shard, attempt, next_batch, _, skipped):
                self._committed(worker, shard, attempt, next_batch, skipped, now, out)
            case e.ShardCompleted(worker, shard, attempt, result):
                self._completed(worker, shard, attempt, result, out)
            case e.BatchFailed(worker, shard, attempt, _, error):
                held = self._held(worker, shard, attempt)
                if held is not None:
                    out.append(c.CloseLease(worker, shard, attempt))
                    self._take_back(held, out)
                    self._strike(held, error, out)
            case e.LeaseReturned(worker, shard, attempt, reason):
                held = self._held(worker, shard, attempt)
                if held is not None:
                    out.append(c.CloseLease(worker, shard, attempt))
                    self._take_back(held, out)
                    leaving = worker not in self.seats or self.seats[worker].leaving
                    held.refusals += 0 if leaving else 1
                    if held.refusals > REFUSALS:
                        out.append(c.FinishJob(Outcome.FAILED, f"{shard} was returned {held.refusals} times: {reason}"))
            case ShardsAdded(shards):
                for s in shards:
                    put(self.waiting, s)
            case e.RecordIdentified(shard, position, record, name):
                self.searches.identified(shard, position, record, name, self.waiting, out)
            case _:
                return []
        self._grant(now, out)
        return out

    # Questions.

    @property
    def trained_out(self) -> bool:
        """No training shard is left, waiting or leased."""
        return (
            self.plan.shard(*self._fresh()) is None
            and not self.searches.open
            and not any(s.kind is Kind.TRAIN for s in self.waiting)
            and not any(s.kind is Kind.TRAIN for s in self.leased.values())
        )

    @property
    def done_records(self) -> int:
        return sum(d.records for d in self.done.values())

    def open_training(self) -> list[Shard]:
        """Training shards that were leased before and are not done: what servers keep counters for."""
        out = [s for s in self.leased.values() if s.kind is Kind.TRAIN]
        out += [s for s in self.waiting if s.kind is Kind.TRAIN and s.attempt]
        out += [s.shard for s in self.searches.open.values()]
        return out

    def idle_since(self, worker: str) -> float | None:
        """When a worker's leases last moved; None when it holds none that it could be moving now.

        In synchronous training a later round's batch waits for the present round, whichever worker delays that one.
        """
        held = [s for s in self.leased.values() if s.worker == worker]
        if not held or all(self._round(s) > self.version for s in held):
            return None
        return max(self.version_since, *(s.since for s in held))

    def worked_on(self) -> set[str]:
        """The lease of each worker that it is at. Those behind it wait for as long as its pushes are held."""
        first: dict[str, Shard] = {}
        for s in self.leased.values():
            if s.worker not in first or self._turn(s) < self._turn(first[s.worker]):
                first[s.worker] = s
        return {s.id for s in first.values()}

    def rest(self, now: float) -> None:
        """No worker could move until now: count idle times from here."""
        for s in self.leased.values():
            s.since = now

    def resume(self, now: float) -> list[c.Command]:
        """Lease out what can be leased, after `paused` or `draining` changed."""
        out: list[c.Command] = []
        self._grant(now, out)
        return out

    # Cuts and rollbacks.

    def position(self, counters: Mapping[str, int]) -> Position:
        """Where the data stands when the servers have applied these batches of the open shards."""
        at = Position(self.version, self._fresh(), {}, {epoch: replace(d) for epoch, d in self.done.items()})
        for s in self.open_training():
            reached = max(counters.get(s.id, 0), s.next_batch)
            done = at.done.setdefault(s.round, EpochDone())
            for batch in range(s.next_batch, reached):
                done.batches += 1
                done.records += self.plan.batch_records(s, batch)
                at.version += 1
            if reached < s.batches:
                at.open[s.id] = (reached, s.batches)
        if self.plan.synchronous:  # a cut is made between two rounds
            places = [at.next, *((s.round, s.index) for s in self.open_training() if s.id in at.open)]
            at.version = min(self.plan.version_before(*place) for place in places)
        return at

    def go_back(self, to: Position) -> None:
        """Be as at this position. Leases made from now on are newer than any made before."""
        self.attempts_before = self.highest_attempt
        self.epoch, self.index = to.next
        self.done = {epoch: replace(d) for epoch, d in to.done.items()}
        self.version = to.version
        self.leased.clear()
        self.waiting.clear()
        self.searches.open.clear()
        self.results.clear()
        for shard_id, (next_batch, _) in sorted(to.open.items()):
            shard = self.plan.named(shard_id)
            shard.next_batch, shard.attempt = next_batch, max(1, self.attempts_before)  # the servers know it
            put(self.waiting, shard)

    # Steps.

    def _joined(
        self, name: str, holdings: tuple[e.Holding, ...], capacity: int, now: float, out: list[c.Command]
    ) -> None:
        leaving = capacity == 0 or (name in self.seats and self.seats[name].leaving)
        self.seats[name] = Seat(capacity, leaving)
        known = {(h.shard, h.attempt) for h in holdings}
        for s in self.leased.values():
            if s.worker == name:
                s.since = now  # it could not report before
        for h in holdings:
            held = self._held(name, h.shard, h.attempt)
            if held is None:
                out.append(c.CloseLease(name, h.shard, h.attempt))
            elif h.completed and held.kind is not Kind.TRAIN:
                self._completed(name, h.shard, h.attempt, h.result, out)
            else:
                self._committed(name, h.shard, h.attempt, h.next_batch, h.skipped, now, out)
        for s in sorted(self.leased.values(), key=lambda s: s.turn):
            if s.worker == name and (s.id, s.attempt) not in known:
                out.append(c.GrantLease(name, s.id, s.attempt, "the worker had not received this lease"))

    def _lost(self, worker: str, reason: str, blame: bool, out: list[c.Command], hung: bool = False) -> None:
        self.seats.pop(worker, None)
        held = sorted((s for s in self.leased.values() if s.worker == worker), key=self._turn)
        for place, s in enumerate(held):
            s.careful = s.careful or blame
            self._take_back(s, out)
            if blame and place == 0:  # a worker works on its leases in this order
                self._strike(s, reason, out, hung)
            elif s.kind is Kind.TRAIN:
                out.append(c.Announce(f"Returned shard {s.id} at batch {s.next_batch} of {s.batches}: {reason}"))

    def _held(self, worker: str, shard_id: str, attempt: int) -> Shard | None:
        s = self.leased.get(shard_id)
        return s if s is not None and s.worker == worker and s.attempt == attempt else None

    def _strike(self, s: Shard, error: str, out: list[c.Command], hung: bool = False) -> None:
        self.searches.strike(s, error, self.plan, self.version == 0, self.waiting, out, hung)

    def _take_back(self, s: Shard, out: list[c.Command]) -> None:
        del self.leased[s.id]
        s.worker = ""
        put(self.waiting, s)

    def _committed(
        self, worker: str, shard_id: str, attempt: int, next_batch: int, skipped: int, now: float, out: list[c.Command]
    ) -> None:
        s = self._held(worker, shard_id, attempt)
        if s is None:
            out.append(c.CloseLease(worker, shard_id, attempt))
            return
        if s.kind is Kind.TRAIN:
            self._advance(s, next_batch)
        if next_batch > s.next_batch or s.kind is Kind.TRAIN:
            s.since = now
        if skipped > s.skipped:
            self.skipped += skipped - s.skipped
            s.skipped = skipped
            out.append(c.Announce(f"Skipped a batch of shard {s.id}: non-finite gradients"))
        if s.kind is Kind.TRAIN and s.next_batch >= s.batches:
            del self.leased[s.id]
            self._count_rounds(now)
            out += [c.CloseLease(worker, shard_id, attempt), c.CloseShard(shard_id)]
            if self.done[s.round].records == self.plan.epoch_records(s.round):
                out.append(c.CloseEpoch(s.round))

    def _advance(self, s: Shard, next_batch: int) -> None:
        done = self.done.setdefault(s.round, EpochDone())
        for batch in range(s.next_batch, min(next_batch, s.batches)):
            done.batches += 1
            done.records += self.plan.batch_records(s, batch)
            s.next_batch = batch + 1
            s.strikes = s.searched = s.refusals = 0
            if not self.plan.synchronous:
                self.version += 1

    def _count_rounds(self, now: float) -> None:
        """The version in synchronous training: the first round of which a batch is not committed."""
        if not self.plan.synchronous:
            return
        open_ = [s for s in (*self.leased.values(), *self.waiting) if s.kind is Kind.TRAIN]
        open_ += [s.shard for s in self.searches.open.values()]
        version = min([self.plan.version_before(*self._fresh()), *(self._round(s) for s in open_)])
        if version > self.version:
            self.version, self.version_since = version, now

    def _completed(self, worker: str, shard_id: str, attempt: int, result: str, out: list[c.Command]) -> None:
        s = self._held(worker, shard_id, attempt)
        if s is not None and s.kind is Kind.TRAIN:
            return  # only its batches can finish it
        out.append(c.CloseLease(worker, shard_id, attempt))
        if s is None:
            return
        del self.leased[s.id]
        if s.kind is Kind.PROBE:
            self.searches.probed(s, False, "", self.waiting, out)
        else:
            self.results.append((s, result))

    # Leasing.

    def _fresh(self) -> tuple[int, int]:
        if self.index >= self.plan.shards_per_epoch:
            return self.epoch + 1, 0
        return self.epoch, self.index

    def _round(self, s: Shard) -> int:
        """The round that a shard belongs to, or that waits for it; the present one for what is not training."""
        if not self.plan.synchronous or s.kind not in (Kind.TRAIN, Kind.PROBE):
            return self.version
        of = s if s.kind is Kind.TRAIN else self.plan.named(s.payload)
        return self.plan.version_before(of.round, of.index)

    def _turn(self, s: Shard) -> tuple[int, ...]:
        """The order in which a worker works on its leases."""
        return s.order if self.plan.synchronous else (s.turn,)

    def _next(self) -> Shard | None:
        """The next shard to lease: what came back or is urgent first, then the epoch's next fresh one."""
        for place, s in enumerate(self.waiting):
            if s.kind is not Kind.TRAIN or (not self.paused and (not self.draining or s.attempt)):
                return self.waiting.pop(place)
        epoch, index = self._fresh()
        begun = self.plan.synchronous and index % self.plan.round_batches > 0  # servers cut between two rounds only
        if self.paused or (self.draining and not begun):
            return None
        fresh = self.plan.shard(epoch, index)
        if fresh is not None:
            self.epoch, self.index = epoch, index + 1
        return fresh

    def _grant(self, now: float, out: list[c.Command]) -> None:
        """Hand out shards until every seat is full, one to each worker in turn, the emptiest first.

        A probe or a suspect has its worker to itself: if that worker dies, nothing else can have been the reason.
        """
        while True:
            load = {w: 0 for w, seat in self.seats.items() if not seat.leaving}
            for held in self.leased.values():
                if held.worker in load:
                    load[held.worker] += self.seats[held.worker].capacity if held.alone else 1
            free = [(n, w) for w, n in load.items() if n < self.seats[w].capacity]
            if not free:
                back = (s for s in self.waiting if s.kind in (Kind.TRAIN, Kind.PROBE) and not self.paused)
                if self._make_room(next(back, None), load, out):
                    continue
                return
            s = self._next()
            if s is None:
                return
            count, worker = min(free)
            if s.alone and count:
                put(self.waiting, s)  # until a worker has nothing else
                if self._make_room(s, load, out):
                    continue
                return
            s.worker, s.since, s.skipped = worker, now, 0
            reason = "returned" if s.attempt else "next in the epoch"
            s.attempt = max(s.attempt, self.attempts_before) + 1
            self.highest_attempt = max(self.highest_attempt, s.attempt)
            self.turns += 1
            s.turn = self.turns
            self.leased[s.id] = s
            out.append(c.GrantLease(worker, s.id, s.attempt, reason))

    def _make_room(self, needed: Shard | None, workers: Collection[str], out: list[c.Command]) -> bool:
        """In synchronous training: take batches of later rounds from a worker, for one that all of them wait for.

        Whether there is room now. A later round is not begun before the earlier one is whole, so little is lost.
        """
        if needed is None or not self.plan.synchronous:
            return False
        held: dict[str, list[Shard]] = {w: [] for w in workers}
        for s in self.leased.values():
            if s.worker in held:
                held[s.worker].append(s)
        places = [sorted(h, key=self._turn) for h in held.values() if h]
        for leases in sorted(places, key=lambda h: self._turn(h[-1]), reverse=True):
            later = [s for s in leases if s.kind is Kind.TRAIN and self._round(s) > self._round(needed)]
            if not later or (needed.alone and len(later) < len(leases)):
                continue
            for s in later if needed.alone else later[-1:]:
                out.append(c.RevokeLease(s.worker, s.id, s.attempt, f"{needed.id} comes first"))
                self._take_back(s, out)
            return True
        return False
