"""What must hold after every event, whatever it was: shared by the random machines and the simulation."""

from __future__ import annotations

from collections import Counter

from elasticdl.core.plan import Kind, Plan, Shard
from elasticdl.core.replicas import Replicas, State
from elasticdl.core.shards import Shards
from elasticdl.strategies.parameter_servers.core.cuts import Phase
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine


class Broken(AssertionError):
    """A promise does not hold."""


def holds(condition: object, what: str) -> None:
    if not condition:
        raise Broken(what)


def remaining(plan: Plan, shard: Shard) -> int:
    """Records of a shard that are not committed yet."""
    return max(0, shard.stop - shard.start - shard.next_batch * plan.minibatch)


def fresh_records(shards: Shards, epoch: int) -> int:
    """Records of an epoch that were never leased."""
    at, index = shards._fresh()
    total = shards.plan.epoch_records(epoch)
    if epoch != at:
        return total if epoch > at else 0
    return max(0, total - index * shards.plan.shard_records)


def check_shards(shards: Shards) -> None:
    """Conservation: every record of every epoch is done, leased, waiting, searched or fresh, exactly once."""
    plan = shards.plan
    searched = [s.shard for s in shards.searches.open.values()]
    everywhere = [*shards.waiting, *shards.leased.values(), *searched]
    twice = [i for i, n in Counter(s.id for s in everywhere).items() if n > 1]
    if twice:
        raise Broken(f"{twice} are in two places")
    training = [s for s in everywhere if s.kind is Kind.TRAIN]
    open_records: Counter[int] = Counter()
    for s in everywhere:
        if s.kind is Kind.TRAIN:
            if not (0 <= s.next_batch < s.batches):
                raise Broken(f"{s.id} stands at batch {s.next_batch} of {s.batches}")
            if not ((s.round, s.index) < shards._fresh()):
                raise Broken(f"{s.id} is open and still to come")
            open_records[s.round] += remaining(plan, s)
    for epoch in range(plan.epochs):
        done = shards.done[epoch].records if epoch in shards.done else 0
        fresh, total = fresh_records(shards, epoch), plan.epoch_records(epoch)
        told = f"{done} done + {open_records[epoch]} open + {fresh} fresh is not {total}"
        if not (done + open_records[epoch] + fresh == total):
            raise Broken(f"epoch {epoch}: {told}")
    if plan.synchronous:
        whole = min([plan.version_before(*shards._fresh()), *(plan.version_before(s.round, s.index) for s in training)])
        holds(shards.version == whole, f"the version is {shards.version}, and {whole} rounds are committed")
    else:
        done_batches = sum(d.batches for d in shards.done.values())
        holds(shards.version == done_batches, "the version is not the committed batches")
    _check_leases(shards)


def _check_leases(shards: Shards) -> None:
    load: Counter[str] = Counter()
    for shard_id, s in shards.leased.items():
        if not (shard_id == s.id and s.attempt > 0):
            raise Broken(f"{shard_id} is leased as {s.id}, attempt {s.attempt}")
        if s.worker not in shards.seats:
            raise Broken(f"{s.id} belongs to {s.worker or 'no worker'}, which is not there")
        load[s.worker] += 1
    holds(all(not s.worker for s in shards.waiting), "a waiting shard belongs to a worker")
    turns = [s.turn for s in shards.leased.values()]
    holds(len(set(turns)) == len(turns), "two leases have the same turn")
    for worker, seat in shards.seats.items():
        # A worker that says it is leaving keeps what it has; it may hold more than it wants by now.
        if not (seat.leaving or load[worker] <= max(seat.capacity, 0)):
            raise Broken(f"{worker} holds {load[worker]} leases")


def check_replicas(replicas: Replicas) -> None:
    """Each slot is filled by at most one living replica, and knows it."""
    living: Counter[int] = Counter()
    for name, r in replicas.replicas.items():
        if not (name == r.name):
            raise Broken(f"{name} is called {r.name}")
        if r.state is not State.GONE and (r.state is not State.STOPPING or r.role == "ps"):
            living[r.slot] += 1
            if not (replicas.slots[r.slot].replica == name):
                raise Broken(f"slot {r.slot} does not know of {name}")
    holds(all(n == 1 for n in living.values()), "two replicas fill one slot")
    if not replicas.finished:
        for place, slot in enumerate(replicas.slots):
            if not (not slot.replica or living[place]):
                raise Broken(f"slot {place} believes that {slot.replica} lives")


def check_job(job: ParameterServerMachine) -> None:
    if job.outcome:
        return  # nothing is decided any more
    check_shards(job.shards)
    check_replicas(job.replicas)
    living = {n for n, r in job.replicas.replicas.items() if r.state not in (State.GONE, State.STOPPING)}
    if not (set(job.shards.seats) <= living):
        raise Broken(f"{set(job.shards.seats) - living} may hold leases and are gone")
    cut = job.servers.cuts.active
    if cut is not None and cut.phase is Phase.CUTTING:
        unclosed = {s.id for s in job.shards.open_training()}
        for counters in cut.held.values():
            for shard in unclosed & set(cut.counters):
                if not (counters.get(shard, 0) == cut.counters[shard]):
                    raise Broken(f"cut {cut.number} is torn at {shard}")


def check_clock(job: ParameterServerMachine, now: float) -> None:
    """After time passed there is nothing left that is due: else the master would spin."""
    deadline = job.deadline()
    if not (job.outcome or deadline is None or deadline > now):
        raise Broken(f"due at {deadline}, at {now}, and nothing is done")
