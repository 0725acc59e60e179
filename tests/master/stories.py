"""Whole jobs as lists of events, made by really running one: food for journals."""

from __future__ import annotations

from random import Random

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.plan import Plan
from elasticdl.core.replicas import PREEMPTED
from elasticdl.job.names import replica_name
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
from elasticdl.strategies.parameter_servers.core.terms import ParameterServerTerms

TERMS = ParameterServerTerms("j", workers=2, servers=1, plan=Plan(1000, 10, 5, 2), evaluation_steps=0)


def story(
    terms: ParameterServerTerms = TERMS, seed: int = 1, limit: int = 10**9, deaths: float = 0.01
) -> list[tuple[e.Event, float]]:
    """Events of a job in which workers come, train, report and die."""
    random, job, now = Random(seed), ParameterServerMachine.new(terms), 1.0
    told: list[tuple[e.Event, float]] = []
    leases: dict[tuple[str, str, int], int] = {}
    alive: list[str] = []

    def tell(event: e.Event) -> None:
        nonlocal now
        now += random.random()
        told.append((event, now))
        for command in job.handle(event, now):
            match command:
                case c.LaunchReplica(role, index):
                    alive.append(replica_name(terms.job, role, index))
                case c.GrantLease(worker, shard, attempt):
                    leases[(worker, shard, attempt)] = job.shards.leased[shard].next_batch

    tell(e.MasterStarted())
    joined: set[str] = set()
    while not job.outcome and len(told) < limit:
        for name in [n for n in alive if n not in joined]:
            joined.add(name)
            tell(e.ReplicaStarted(name, f"uid of {name}"))
            address = f"tcp://{name}" if "-ps-" in name else ""
            tell(e.ReplicaJoined(name, f"process of {name}", address, (), 2, timeline=job.servers.checkpoints.timeline))
        workers = [n for n in alive if "worker" in n]
        if random.random() < deaths and workers:
            lost = random.choice(workers)
            alive.remove(lost)
            tell(e.ReplicaGone(lost, f"uid of {lost}", PREEMPTED, "killed by SIGKILL", ("last", "lines ☃")))
            leases = {k: v for k, v in leases.items() if k[0] != lost}
            continue
        if not leases:
            tell(e.TimePassed())
            now += 31
            continue
        key = random.choice(list(leases))
        held = job.shards.leased.get(key[1])
        if held is None or held.attempt != key[2]:
            del leases[key]
            continue
        leases[key] += 1
        tell(e.BatchesCommitted(*key, leases[key], random.choice([0.5, float("nan"), float("inf")])))
    return told
