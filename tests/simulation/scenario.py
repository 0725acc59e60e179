"""What a simulated job looks like, what goes wrong in it, and how to draw both at random."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from elasticdl.core.checkpoints import Schedule
from elasticdl.core.plan import Plan
from elasticdl.core.replicas import Budget
from elasticdl.strategies.parameter_servers.core.terms import ParameterServerTerms
from tests.simulation.network import Weather

BUDGET = Budget(crashes=1, start_seconds=20, reconnect_seconds=10, hang_seconds=120)
GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class Scenario:
    """One simulated job and its faults. `..._every` are mean seconds between two of them; 0 means never."""

    seed: int
    records: int = 40
    minibatch: int = 3
    batches_per_shard: int = 2
    epochs: int = 2
    workers: int = 2
    servers: int = 2
    validation: int = 10
    evaluation_steps: int = 7
    max_step: int = 0
    kill_workers_every: float = 0.0  # SIGKILL
    preempt_workers_every: float = 0.0  # SIGTERM: they finish their batch and go
    stall_workers_every: float = 0.0  # SIGSTOP: there, connected, and doing nothing
    cut_off_workers_every: float = 0.0  # no way to the master, for a while
    out_of_memory: int = 0  # so many times in the job
    kill_master_every: float = 0.0
    kill_master_acting: float = 0.0  # chance, per event, to die after the journal and before all of it is done
    kill_servers_every: float = 0.0
    preempt_servers_every: float = 0.0  # SIGTERM: they want to be saved first
    scale_servers_every: float = 0.0
    scale_workers_every: float = 0.0
    full_disk: float = 0.0  # chance that a server cannot write its part
    damage: float = 0.0  # chance that a checkpoint turns out to be damaged
    checkpoint_steps: int = 0
    checkpoint_seconds: float = 0.0
    keep: int = 0
    miss_events: float = 0.0  # the share of the cluster's events that is lost
    bad_records: tuple[int, ...] = ()
    segfault: bool = False  # a bad record kills the process instead of raising
    max_bad_records: int = 0
    stop_at: float = 0.0
    round_batches: int = 0  # of synchronous training; 0: asynchronous
    tolerance: int = 0
    impatient: bool = False  # workers pull what is there instead of waiting for their round: servers must reject it
    churn_until: float = 60.0  # then the faults end, and the job must
    weather: Weather = field(default_factory=Weather)

    def terms(self) -> ParameterServerTerms:
        per_shard = 1 if self.round_batches else self.batches_per_shard
        plan = Plan(
            self.records, self.minibatch, per_shard, self.epochs, self.max_step, self.round_batches, self.tolerance
        )
        return ParameterServerTerms(
            "sim", self.workers, self.servers, plan, self.validation, self.evaluation_steps, self.max_bad_records,
            export=True, budget=BUDGET, schedule=Schedule(self.checkpoint_steps, self.checkpoint_seconds, self.keep),
        )  # fmt: skip


def _mode(r: Random) -> dict[str, Any]:
    """Three of ten jobs train synchronously; drawn apart, so that the others stay as they were."""
    if r.random() < 0.7:
        return {}
    return {
        "round_batches": r.randint(1, 6),
        "tolerance": r.choice([0, 0, 0, 1, 2]),
        "impatient": r.random() < 0.3,
    }


def random_scenario(seed: int) -> Scenario:
    """A job of random shape with random faults: 7 of 10 are stormy."""
    r = Random(seed)
    stormy = r.random() < 0.7
    base = Scenario(
        seed=seed,
        records=r.randint(1, 60),
        minibatch=r.randint(1, 5),
        batches_per_shard=r.randint(1, 4),
        epochs=r.randint(1, 3),
        workers=r.randint(1, 4),
        servers=r.randint(1, 3),
        validation=r.choice([0, r.randint(1, 20)]),
        evaluation_steps=r.choice([0, r.randint(1, 15)]),
        max_step=r.choice([0, 0, 0, r.randint(1, 40)]),
        weather=Weather(delay=r.choice([0.001, 0.01, 0.05])),
        stop_at=r.choice([0, 0, 0, 0, r.uniform(0, 20)]),
        checkpoint_steps=r.choice([0, 0, r.randint(1, 12)]),
        checkpoint_seconds=r.choice([0, 1.0, 5.0]),
        keep=r.choice([0, 1, 3]),
    )
    if stormy:
        base = replace(
            base,
            weather=Weather(
                delay=base.weather.delay,
                loss=r.choice([0, 0, 0.05, 0.3]),
                repeat=r.choice([0, 0.1]),
                break_every=r.choice([0, 3.0, 10.0]),
            ),
            kill_workers_every=r.choice([0, 2.0, 6.0]),
            preempt_workers_every=r.choice([0, 0, 2.0, 6.0]),
            stall_workers_every=r.choice([0, 0, 0, 0, 10.0]),
            cut_off_workers_every=r.choice([0, 0, 0, 8.0]),
            out_of_memory=r.choice([0, 0, 1, 2]),
            kill_master_every=r.choice([0, 0, 6.0, 15.0]),
            kill_master_acting=r.choice([0, 0, 0.02]),
            kill_servers_every=r.choice([0, 0, 0, 4.0, 12.0]),
            preempt_servers_every=r.choice([0, 0, 0, 0, 10.0]),
            scale_servers_every=r.choice([0, 0, 0, 5.0]),
            scale_workers_every=r.choice([0, 0, 0, 5.0]),
            full_disk=r.choice([0, 0, 0.2]),
            damage=r.choice([0, 0, 0.2]),
            miss_events=r.choice([0, 0, 0.3]),
        )
    base = replace(base, **_mode(Random(f"mode {seed}")))
    if r.random() < 0.15:
        bad = tuple(sorted(r.sample(range(base.records), min(r.randint(1, 2), base.records))))
        return replace(
            base, bad_records=bad, segfault=r.random() < 0.5, max_bad_records=r.choice([0, 10]), stop_at=0, max_step=0
        )
    return base
