"""The master's side of a job that only counts."""

from __future__ import annotations

from collections.abc import Iterable

from elasticdl.core.commands import Command
from elasticdl.core.events import Event
from elasticdl.core.plan import Plan
from elasticdl.core.replicas import Replicas
from elasticdl.core.shards import Shards
from elasticdl.data.dataset import Dataset
from elasticdl.job.spec import JobSpec
from elasticdl.master import messages, terms
from elasticdl.master.side import Effect, Program, Side
from elasticdl.wire import control_pb2 as pb
from tests.strategies.counting.machine import CountingMachine, CountingTerms
from tests.strategies.counting.request import STRATEGY


class CountingSide(Side[CountingMachine]):
    @classmethod
    def begin(cls, spec: JobSpec, training: Dataset, validation_records: int) -> CountingMachine:
        job, plan, budget = str(spec.job_name), Plan.of(spec, training.records), terms.budget(spec)
        replicas = Replicas.wanting(job, {"worker": spec.num_workers}, budget)
        about = CountingTerms(job, plan, budget, STRATEGY.mode(spec))
        return CountingMachine(about, replicas, Shards(plan, paused=False))

    def hear(self, replica: str, message: pb.FromReplica, now: float) -> Iterable[Event]:
        return [messages.event_of(replica, message)]

    def effects(self, command: Command) -> Iterable[Effect]:
        return messages.effects_of(command, self.machine.shards.leased.get)

    def program(self, role: str) -> Program:
        return Program(("-m", "tests.strategies.counting.worker"))

    def phase(self) -> str:
        return "counting"

    def describe(self, out: pb.Status) -> None:
        for epoch, done in sorted(self.machine.shards.done.items()):
            out.epochs_done.add(epoch=epoch, records=done.records, batches=done.batches)


SIDE = CountingSide
