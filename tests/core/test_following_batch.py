"""An all-reduce job whose batch follows the number of workers: how far it is, workers say."""

from __future__ import annotations

import json
from typing import Any

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.checkpoints import Schedule
from elasticdl.core.replicas import Budget
from elasticdl.core.steps import StepPlan
from elasticdl.master.status import Chronicle, status
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.strategies.allreduce.core.saves import NEXT
from elasticdl.strategies.allreduce.core.terms import AllreduceTerms
from elasticdl.strategies.allreduce.master import AllreduceSide
from tests.core.allreduce_play import Play, W, of
from tests.master.sides import context


class Following(Play):
    """40 records twice, 4 of a step for each worker; what is trained is counted along."""

    def __init__(self, workers: int = 2, max_step: int = 0, **terms: Any) -> None:
        super().__init__(workers, **terms)
        plan = StepPlan(40, 8, 4, 2, max_step, share=4)
        self.terms = AllreduceTerms("j", workers, plan, budget=Budget(crashes=0), **terms)
        self.job = AllreduceMachine.new(self.terms)
        self.journal.clear()
        self.hear(e.MasterStarted())

    def reach(self, step: int, records: int, worker: str = W[0]) -> list[c.Command]:
        generation = self.job.membership.running_generation
        return self.hear(e.StepsCommitted(worker, generation, step, 0.5, records=records))

    def confirm(self, worker: str, state: tuple[int, int], records: int) -> list[c.Command]:
        return self.hear(e.WorldConfirmed(worker, self.job.membership.generation, state, records=records))


def test_the_job_ends_when_all_records_are_trained_however_many_steps_that_takes() -> None:
    play = Following()
    play.trains(W[0], W[1])
    play.reach(5, 40)
    at = play.job.progress()
    assert (at.records, at.total_records, at.version, at.total_versions, at.epoch) == (40, 80, 5, 0, 1)
    play.end(W[1])
    play.confirm(W[0], (1, 5), 40)
    assert not play.job.outcome
    out = play.reach(15, 80)
    assert play.job.outcome == "succeeded" and of(c.FinishJob, out)[0].reason == "all 80 records are trained"


def test_a_limit_of_steps_ends_the_job_with_what_is_trained() -> None:
    play = Following(max_step=7)
    play.trains(W[0], W[1])
    assert not play.reach(6, 48) or not play.job.outcome
    play.reach(7, 56)
    assert (play.job.outcome, play.job.reason) == ("succeeded", "all 56 records are trained")


def test_a_world_that_starts_stands_where_the_state_does_that_it_begins_with() -> None:
    play = Following(3)
    play.trains(W[0], W[1], W[2])
    play.reach(3, 36)
    play.end(W[2])
    play.confirm(W[0], (1, 4), 40)  # the fourth, not reported yet: four records were left of the epoch
    play.confirm(W[1], (1, 3), 36)
    assert (play.job.step, play.job.records) == (4, 40)
    assert play.job.replicas.replicas and play.replayed() == play.job


def test_when_all_are_lost_the_job_stands_where_the_checkpoint_does() -> None:
    play = Following(2, schedule=Schedule(seconds=5.0))
    play.trains(W[0], W[1])
    play.reach(2, 16)
    play.hear(e.TimePassed(), 5.0)
    (asked,) = play.job.saves.asked
    assert asked.at == NEXT
    play.hear(e.ServerWrote(asked.worker, asked.cut, json.dumps({"step": 3, "records": 24})))
    (publish,) = of(c.PublishCheckpoint, play.all)
    assert (publish.position.version, publish.position.records) == (3, 24), "the manifest says it"
    play.publish()
    play.reach(6, 44)
    play.end(W[0])
    play.end(W[1])
    play.trains(W[2], W[3])
    assert (play.job.step, play.job.records, play.job.repeated) == (3, 24, 3)


def test_a_checkpoint_that_was_due_after_the_last_step_is_not_waited_for() -> None:
    play = Following(2, schedule=Schedule(steps=100))
    play.trains(W[0], W[1])
    play.reach(1, 8)
    (asked,) = play.job.saves.asked
    assert asked.at == 100, "it is not known that there are fewer"
    out = play.reach(10, 80)
    assert c.SettleSave(asked.cut, "", asked.worker) in out and play.job.outcome == "succeeded"


def test_a_checkpoint_that_is_due_at_the_very_last_step_is_waited_for() -> None:
    play = Following(2, schedule=Schedule(steps=5))
    play.trains(W[0], W[1])
    play.reach(1, 8)
    play.wrote(5, cut=1)
    play.publish()
    play.reach(10, 80)
    assert not play.job.outcome and [s.at for s in play.job.saves.asked] == [10]
    play.wrote(10)
    play.publish()
    assert play.job.outcome == "succeeded"


def test_the_last_evaluation_is_that_of_the_last_step() -> None:
    play = Following(2, validation_records=10, evaluation_steps=4)
    play.trains(W[0], W[1])
    play.hear(e.ModelEvaluated(W[0], 8, "{}"))
    play.reach(10, 80)
    assert not play.job.outcome
    play.hear(e.ModelEvaluated(W[0], 10, "{}"))
    assert play.job.outcome == "succeeded"


def test_such_a_job_takes_as_many_workers_as_are_asked_for_unless_there_is_a_limit() -> None:
    assert Following().job.refused("worker", 500) == ""
    assert Following(most=4).job.refused("worker", 5) == "the job takes at most 4 workers (--max_workers)"


def test_the_status_counts_records_by_epoch() -> None:
    play = Following()
    play.trains(W[0], W[1])
    play.reach(9, 52)
    shown = status(AllreduceSide(play.job, context()), Chronicle(0.0), 1.0, 1)
    assert (shown.records_done, shown.records_total, shown.epoch, shown.version) == (52, 80, 1, 9)
    assert [(e.epoch, e.records) for e in shown.epochs_done] == [(0, 40), (1, 12)]
