"""The whole all-reduce job: events in, commands out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.allreduce_job import AllreduceJob
from elasticdl.core.allreduce_state import NEXT, AllreduceTerms
from elasticdl.core.checkpoints import Schedule
from elasticdl.core.membership import LAST_CALL_SECONDS, MARGIN_SECONDS, NOTHING, STRANGERS_SECONDS
from elasticdl.core.replicas import CRASHED, FINISHED, PREEMPTED, Budget
from elasticdl.core.steps import StepPlan
from tests.core.invariants import check_replicas

W = [f"elasticdl-j-worker-{index}" for index in range(8)]


def of(kind: type[c.Command], commands: list[c.Command]) -> list[Any]:
    return [x for x in commands if isinstance(x, kind)]


class Play:
    """A job with obedient workers; 40 records in steps of 4 are 10 steps."""

    def __init__(self, workers: int = 2, records: int = 40, max_step: int = 0, **terms: Any) -> None:
        plan = StepPlan(records, 4, 8, 1, max_step)
        terms.setdefault("budget", Budget(crashes=0))
        self.terms = AllreduceTerms("j", workers, plan, **terms)
        self.job = AllreduceJob.new(self.terms)
        self.now = 0.0
        self.journal: list[tuple[str, bytes, float]] = []
        self.all: list[c.Command] = []
        self.hear(e.MasterStarted())

    def hear(self, event: e.Event, after: float = 0.0) -> list[c.Command]:
        self.now += after
        self.journal.append((*e.encode(event), self.now))
        out = self.job.handle(event, self.now)
        check_replicas(self.job.replicas)
        self.all += out
        return out

    def join(self, *workers: str, generation: int = 0) -> list[c.Command]:
        out: list[c.Command] = []
        for w in workers:
            out += self.hear(e.ReplicaStarted(w, f"uid-{w}"))
            out += self.hear(e.ReplicaJoined(w, f"inc-{w}", capacity=1, generation=generation, fingerprint="cpu"))
        return out

    def enter(self, state: tuple[int, int] = NOTHING, **states: tuple[int, int]) -> list[c.Command]:
        """Everybody confirms the world that is proposed, and forms it."""
        m = self.job.membership
        out: list[c.Command] = []
        for name in m.members:
            out += self.hear(e.WorldConfirmed(name, m.generation, states.get(name[-1:], state)))
        for name in m.members:
            out += self.hear(e.WorldFormed(name, m.generation))
        return out

    def trains(self, *workers: str) -> list[c.Command]:
        self.join(*workers)
        self.hear(e.TimePassed(), LAST_CALL_SECONDS)
        return self.enter()

    def step(self, step: int, after: float = 0.0, worker: str = W[0]) -> list[c.Command]:
        return self.hear(e.StepsCommitted(worker, self.job.membership.running_generation, step, 0.5), after)

    def wrote(self, step: int, error: str = "", cut: int = 0) -> list[c.Command]:
        """The worker that was asked last wrote the state, or could not."""
        asked = next(s for s in reversed(self.job.saves) if not cut or s.cut == cut)
        part = "" if error else json.dumps({"step": step})
        return self.hear(e.ServerWrote(asked.worker, asked.cut, part, error))

    def publish(self, error: str = "") -> list[c.Command]:
        asked = of(c.PublishCheckpoint, self.all)[-1]
        directory = "" if error else f"/c/step-{asked.position.version}"
        return self.hear(e.CheckpointPublished(asked.cut, directory, error))

    def save(self, step: int) -> list[c.Command]:
        return self.wrote(step) + self.publish()

    def end(self, worker: str, cause: str = PREEMPTED, reason: str = "killed by SIGKILL") -> list[c.Command]:
        return self.hear(e.ReplicaGone(worker, f"uid-{worker}", cause, reason))

    def leave(self, worker: str) -> list[c.Command]:
        return self.hear(e.ReplicaLeaving(worker))

    def told(self, out: list[c.Command]) -> list[str]:
        return [x.text for x in of(c.Announce, out)]

    def replayed(self) -> AllreduceJob:
        job = AllreduceJob.new(self.terms)
        for kind, body, at in self.journal:
            job.handle(e.decode(kind, body), at)
        return job


# From the first step to the last.


def test_a_job_trains_all_steps_and_ends() -> None:
    play = Play()
    out = play.trains(W[0], W[1])
    assert play.told(out)[-1] == "generation 1: 2 workers train, from step 0"
    play.step(9)
    assert not play.job.outcome
    assert play.step(10) == [c.FinishJob("succeeded", "all 40 records are trained")]
    assert play.hear(e.TimePassed()) == [], "nothing is decided after the end"
    assert play.replayed() == play.job


def test_max_step_ends_the_job_early() -> None:
    play = Play(max_step=3)
    play.trains(W[0], W[1])
    assert play.step(3)[-1] == c.FinishJob("succeeded", "all 12 records are trained")


def test_the_model_is_exported_by_one_worker_at_the_end() -> None:
    play = Play(export=True)
    play.trains(W[0], W[1])
    assert play.step(10) == [c.ExportModel(W[0])]
    assert play.hear(e.ModelExported(W[1], "/m")) == [], "only from who was asked"
    out = play.hear(e.ModelExported(W[0], "/m", audit="every record once"))
    assert play.told(out) == ["audit: every record once", "the model is in /m"]
    assert play.job.outcome == "succeeded" and play.job.exported == "/m"


def test_a_lost_exporter_is_followed_by_another() -> None:
    play = Play(export=True)
    play.trains(W[0], W[1])
    play.step(10)
    assert of(c.ExportModel, play.end(W[0])) == []
    assert of(c.ExportModel, play.enter((1, 10))) == [c.ExportModel(W[1])]


def test_an_exporter_whose_stream_broke_is_asked_again() -> None:
    play = Play(export=True)
    play.trains(W[0], W[1])
    play.step(10)
    play.hear(e.ReplicaDropped(W[0], f"inc-{W[0]}"))
    assert c.ExportModel(W[0]) in play.join(W[0], generation=1)


def test_a_model_that_cannot_be_written_fails_the_job() -> None:
    play = Play(export=True)
    play.trains(W[0], W[1])
    play.step(10)
    out = play.hear(e.ModelExported(W[0], "", "No space left on device"))
    assert out == [c.FinishJob("failed", f"the model could not be written: {W[0]}: No space left on device")]


def test_metrics_of_a_version_are_told_once_and_the_last_ones_are_waited_for() -> None:
    play = Play(validation_records=10, evaluation_steps=5)
    play.trains(W[0], W[1])
    play.step(5)
    assert play.hear(e.ModelEvaluated(W[0], 5, '{"a": 1}')) == [c.ReportMetrics(5, '{"a": 1}')]
    assert play.hear(e.ModelEvaluated(W[1], 5, '{"a": 1}')) == [], "said again by one that had not heard"
    play.step(10)
    assert not play.job.outcome
    play.hear(e.ModelEvaluated(W[0], 10, '{"a": 2}'))
    assert play.job.outcome == "succeeded" and [v for v, _ in play.job.evaluations] == [5, 10]


def test_what_a_world_that_is_over_says_counts_no_more() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(5)
    play.end(W[0])
    play.enter((1, 5))
    play.hear(e.StepsCommitted(W[1], 1, 10, 0.5))
    play.hear(e.ModelEvaluated(W[0], 10, "{}"))
    assert play.job.step == 5 and not play.job.outcome and not play.job.evaluations


# Losses.


def test_a_killed_worker_is_replaced_and_the_time_until_the_others_went_on_is_kept() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(4)
    out = play.end(W[1])
    assert of(c.ProposeWorld, out) == [c.ProposeWorld(2, (W[0],), (W[0],), True, f"{W[1]} is gone")]
    assert [x.index for x in of(c.LaunchReplica, out)] == [2]
    play.now += 0.5
    play.enter((1, 4))
    (recovery,) = play.job.recoveries
    assert (recovery.replica, recovery.seconds) == (W[1], 0.5) and play.job.repeated == 0


def test_when_everybody_dies_the_newest_checkpoint_is_where_the_job_goes_on() -> None:
    play = Play(schedule=Schedule(seconds=10.0))
    play.trains(W[0], W[1])
    play.step(4)
    assert of(c.SaveState, play.hear(e.TimePassed(), 10.0)) == [c.SaveState(W[0], 1, NEXT)]
    play.save(4)
    play.step(7)
    play.end(W[0])
    play.end(W[1])
    play.join(W[2])
    (started,) = of(c.StartWorld, play.enter())
    assert started.state == (0, 4) and started.directory == "/c/step-4"
    assert (play.job.step, play.job.repeated) == (4, 3)


def test_metrics_of_steps_that_are_trained_again_are_measured_again() -> None:
    play = Play(validation_records=10, evaluation_steps=2, schedule=Schedule(seconds=10.0))
    play.trains(W[0])
    play.step(4)
    play.hear(e.ModelEvaluated(W[0], 4, "{}"))
    play.hear(e.TimePassed(), 10.0)
    play.save(4)
    play.step(6)
    play.hear(e.ModelEvaluated(W[0], 6, "{}"))
    play.end(W[0])
    play.join(W[2])
    play.enter()
    assert [v for v, _ in play.job.evaluations] == [4]
    assert play.hear(e.ModelEvaluated(W[2], 6, "{}")) == [c.ReportMetrics(6, "{}")]


def test_a_checkpoint_that_cannot_be_read_is_followed_by_the_one_before_it() -> None:
    play = Play(schedule=Schedule(seconds=10.0))
    play.trains(W[0])
    for step in (4, 8):
        play.step(step)
        play.hear(e.TimePassed(), 10.0)
        play.save(step)
    play.end(W[0])
    play.join(W[2])
    m = play.job.membership
    play.hear(e.WorldConfirmed(W[2], m.generation, NOTHING))
    out = play.hear(e.WorldBroken(W[2], m.generation, 0, "its checksum is wrong", (), "/c/step-8"))
    told = "the checkpoint of version 8 (/c/step-8) cannot be used: its checksum is wrong; going on from version 4"
    assert play.told(out) == [f"{told} (/c/step-4)"]
    (started,) = of(c.StartWorld, play.enter())
    assert started.directory == "/c/step-4" and play.job.step == 4


def test_a_hung_worker_is_named_asked_where_it_stands_and_replaced() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(4)
    out = play.hear(e.WorkerHung(W[1], "compute of step 4 lasts 9.0 s already"))
    assert play.told(out)[0] == f"{W[1]} is hung: compute of step 4 lasts 9.0 s already"
    assert c.AskForStack(W[1], "compute of step 4 lasts 9.0 s already") in out
    assert [s.name for s in of(c.StopReplica, out)] == [W[1]] and of(c.LaunchReplica, out)
    assert [x.members for x in of(c.ProposeWorld, out)] == [(W[0],)]
    assert play.hear(e.WorkerHung(W[1], "again")) == []
    assert play.hear(e.ReplicaJoined(W[1], f"inc-{W[1]}", generation=1)) == [], "it counts no more"


def test_a_model_that_no_worker_can_train_ends_the_job_with_its_reason() -> None:
    play = Play()
    play.trains(W[0], W[1])
    assert play.hear(e.WorkerUnfit(W[0], "ValueError: 7")) == [c.FinishJob("failed", f"{W[0]}: ValueError: 7")]


def test_a_worker_that_breaks_every_world_is_put_down() -> None:
    play = Play(workers=3)
    play.trains(*W[:3])
    for _ in range(4):
        generation = play.job.membership.generation
        out = play.hear(e.WorldBroken(W[0], generation, 0, "connection reset", (W[1],)))
        if of(c.StopReplica, out):
            break
        play.enter((1, 0))
    assert [(s.name, s.reason) for s in of(c.StopReplica, out)] == [(W[1], "its world breaks again and again")]
    assert of(c.ProposeWorld, out)[-1].members == (W[0], W[2])


def test_crashes_have_a_budget_and_preemption_has_none() -> None:
    play = Play()
    play.trains(W[0], W[1])
    assert not of(c.FinishJob, play.end(W[1], PREEMPTED))
    assert [x.outcome for x in of(c.FinishJob, play.end(W[0], CRASHED, "exit code 1"))] == ["failed"]


def test_an_old_stream_that_ends_late_does_not_silence_the_new_process() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.hear(e.ReplicaDropped(W[0], "another process"))
    assert play.job.membership.workers[W[0]].in_touch


# Leaving.


def test_a_worker_that_left_when_asked_to_costs_nothing_and_is_replaced() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(4)
    out = play.leave(W[1])
    assert play.told(out) == [f"{W[1]} is told to go: it leaves at the end of a step"]
    assert not of(c.SaveState, out) and not of(c.ProposeWorld, out)[0].urgent
    play.enter((1, 5))
    out = play.end(W[1], FINISHED, "exit code 0")
    assert of(c.LaunchReplica, out) and not play.job.outcome and not play.job.recoveries


def test_the_last_to_leave_saves_first_and_hears_of_it_before_it_may_go() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(4)
    assert not of(c.SaveState, play.leave(W[0]))
    out = [type(x) for x in play.leave(W[1])]
    assert out.index(c.SaveState) < out.index(c.ProposeWorld)
    assert play.job.saves[-1].worker == W[1], "the other one may be gone by now"
    assert of(c.PublishCheckpoint, play.wrote(5))


def test_the_last_one_saves_too_when_only_its_hello_says_that_it_leaves() -> None:
    play = Play(workers=1)
    play.trains(W[0])
    play.step(4)
    play.hear(e.ReplicaDropped(W[0], f"inc-{W[0]}"))
    out = play.hear(e.ReplicaJoined(W[0], f"inc-{W[0]}", capacity=0, generation=1, fingerprint="cpu"))
    assert [type(x) for x in out if not isinstance(x, c.Announce)][:2] == [c.SaveState, c.ProposeWorld]


def test_leavers_save_too_when_a_lasting_checkpoint_is_yet_to_come() -> None:
    play = Play(workers=1, schedule=Schedule(steps=8))
    play.trains(W[0])
    play.step(3)
    assert of(c.SaveState, play.leave(W[0])) == [c.SaveState(W[0], 2, NEXT)]


def test_a_leaver_saves_when_the_only_one_who_would_have_stayed_dies() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(4)
    play.leave(W[0])
    assert of(c.SaveState, play.end(W[1])) == [c.SaveState(W[0], 1, NEXT)]


# Saving.


def test_a_lasting_checkpoint_is_asked_for_in_time_and_at_its_exact_step() -> None:
    play = Play(schedule=Schedule(steps=4))
    assert of(c.SaveState, play.trains(W[0], W[1])) == [c.SaveState(W[0], 1, 4)]
    play.step(4)
    out = play.wrote(4)
    assert of(c.PublishCheckpoint, out)[0].position.version == 4 and of(c.PublishCheckpoint, out)[0].lasting
    assert of(c.SaveState, play.all)[-1] == c.SaveState(W[0], 2, 8), "the next one at once"
    assert play.told(play.publish()) == ["the checkpoint of step 4 is in /c/step-4"]
    assert play.job.checkpoint == "/c/step-4"


def test_a_late_lasting_checkpoint_does_not_shift_the_ones_to_come() -> None:
    play = Play(schedule=Schedule(steps=4))
    play.trains(W[0], W[1])
    play.step(5)
    play.wrote(5)
    assert of(c.SaveState, play.all)[-1] == c.SaveState(W[0], 2, 8)


def test_the_clock_asks_for_a_checkpoint_only_where_something_new_is_trained() -> None:
    play = Play(schedule=Schedule(seconds=10.0))
    play.trains(W[0], W[1])
    assert play.job.deadline() is None
    play.step(3)
    assert play.job.deadline() == LAST_CALL_SECONDS + 10.0
    play.hear(e.TimePassed(), 10.0)
    assert play.job.deadline() is None, "one at a time"
    play.save(3)
    assert not of(c.SaveState, play.hear(e.TimePassed(), 30.0))


def test_what_is_being_written_is_known_when_something_later_is_published() -> None:
    play = Play(schedule=Schedule(steps=4, seconds=10.0))
    play.trains(W[0], W[1])
    play.step(3)
    play.hear(e.TimePassed(), 10.0)
    play.wrote(3, cut=2)
    assert [x.cut for x in of(c.PublishCheckpoint, play.all)] == [2], "asked for later, written first"
    assert 1 in play.job.open_cuts, "the one of step 4 is still to come"
    play.publish()
    assert play.job.open_cuts == {1}
    play.end(W[0])
    assert 1 not in play.job.open_cuts, "who was to write it is gone"


def test_a_checkpoint_that_was_overtaken_does_not_take_the_place_of_the_newer_one() -> None:
    """A leaver writes slowly: meanwhile another worker wrote a later step."""
    play = Play(schedule=Schedule(steps=4, seconds=10.0))
    play.trains(W[0], W[1])
    play.step(3)
    play.leave(W[0])
    play.enter((1, 4))
    play.step(6, worker=W[1])
    play.hear(e.TimePassed(), 10.0)
    later = play.job.saves[-1]
    assert (later.worker, later.at) == (W[1], NEXT)
    play.wrote(6, cut=later.cut)
    play.publish()
    play.wrote(4, cut=1)
    assert play.told(play.publish()) == ["the checkpoint of step 4 is in /c/step-4"]
    assert play.job.checkpoint == "/c/step-6" and play.job.membership.checkpoint == ("/c/step-6", 6)
    play.end(W[1])
    play.join(W[2])
    play.enter()
    assert play.job.membership.begun.directory == "/c/step-6" and play.job.step == 6
    assert play.replayed() == play.job


def test_a_save_passes_to_another_when_its_worker_dies() -> None:
    play = Play(schedule=Schedule(steps=4))
    play.trains(W[0], W[1])
    play.step(2)
    play.end(W[0])
    assert of(c.SaveState, play.enter((1, 2))) == [c.SaveState(W[1], 2, 4)]
    assert play.hear(e.ServerWrote(W[0], 1, '{"step": 4}')) == [c.SettleSave(1, "", W[0])], "nobody waits for it"


def test_a_save_passes_to_another_when_its_worker_is_in_the_world_no_more() -> None:
    play = Play(schedule=Schedule(steps=4), standby=1)
    play.trains(W[0], W[1])
    play.step(2)
    play.leave(W[0])
    out = play.enter((1, 3))
    assert c.SettleSave(1, "", W[0]) in out and of(c.SaveState, out) == [c.SaveState(W[1], 2, 4)]


def test_a_worker_that_comes_back_is_told_again_what_to_save() -> None:
    play = Play(schedule=Schedule(steps=4))
    play.trains(W[0], W[1])
    play.hear(e.ReplicaDropped(W[0], f"inc-{W[0]}"))
    assert of(c.SaveState, play.join(W[0], generation=1)) == [c.SaveState(W[0], 1, 4)]


def test_a_full_disk_disturbs_no_training_and_is_tried_again_when_the_next_is_due() -> None:
    play = Play(schedule=Schedule(steps=4))
    play.trains(W[0], W[1])
    play.step(4)
    out = play.wrote(4, "No space left on device")
    text = f"the checkpoint could not be written ({W[0]}: No space left on device); training goes on"
    assert play.told(out) == [text] and c.SettleSave(1, "", W[0]) in out
    assert of(c.SaveState, out) == [c.SaveState(W[0], 2, 8)], "not at once, and again and again"


def test_a_manifest_that_cannot_be_written_leaves_the_last_checkpoint_as_it_is() -> None:
    play = Play(schedule=Schedule(steps=4))
    play.trains(W[0], W[1])
    play.step(4)
    play.save(4)
    play.step(8)
    play.wrote(8)
    out = play.publish("No space left on device")
    assert play.told(out) == ["the checkpoint could not be published (No space left on device); training goes on"]
    assert play.job.checkpoint == "/c/step-4" and play.job.membership.checkpoint == ("/c/step-4", 4)


def test_a_checkpoint_that_a_world_is_about_to_read_is_not_deleted() -> None:
    play = Play(workers=1, schedule=Schedule(steps=2, keep=1))
    play.trains(W[0])
    for step in (2, 4):
        play.step(step)
        play.wrote(step)
        if step == 2:
            play.publish()
    play.end(W[0])
    play.join(W[1])
    play.hear(e.WorldConfirmed(W[1], play.job.membership.generation, NOTHING))
    assert play.job.membership.begun.directory == "/c/step-2"
    assert not of(c.DeleteCheckpoints, play.publish())


# Stopping and scaling.


def test_a_stop_saves_the_state_first() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(4)
    out = play.hear(e.StopRequested("asked to"))
    assert play.told(out) == ["stopping: asked to; the state is saved first"]
    assert of(c.SaveState, out) == [c.SaveState(W[0], 1, NEXT)]
    assert play.hear(e.StopRequested("again")) == []
    assert play.save(5)[-1] == c.FinishJob("stopped", "asked to; the checkpoint holds step 5")


def test_a_stop_before_anything_is_trained_ends_at_once() -> None:
    play = Play()
    assert play.hear(e.StopRequested("asked to"))[-1] == c.FinishJob("stopped", "asked to; nothing was trained yet")


def test_a_stop_does_not_take_an_older_checkpoint_for_the_one_it_asked_for() -> None:
    play = Play(schedule=Schedule(steps=4))
    play.trains(W[0], W[1])
    play.step(4)
    play.wrote(4)
    play.hear(e.StopRequested("asked to"))
    assert of(c.SaveState, play.all)[-1] == c.SaveState(W[0], 3, NEXT)
    assert not of(c.FinishJob, play.publish())
    play.wrote(6, cut=3)
    assert play.publish()[-1] == c.FinishJob("stopped", "asked to; the checkpoint holds step 6")


def test_a_stop_while_a_world_is_being_formed_asks_one_who_holds_the_state() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(4)
    play.end(W[0])
    assert of(c.SaveState, play.hear(e.StopRequested("asked to"))) == [c.SaveState(W[1], 1, NEXT)]


def test_whoever_dies_while_it_saves_for_a_stop_is_followed_by_another_and_then_by_the_last_checkpoint() -> None:
    play = Play(schedule=Schedule(seconds=10.0))
    play.trains(W[0], W[1])
    play.step(3)
    play.hear(e.TimePassed(), 10.0)
    play.save(3)
    play.step(6)
    play.hear(e.StopRequested("asked to"))
    assert of(c.SaveState, play.end(W[0])) == [c.SaveState(W[1], 3, NEXT)]
    assert play.end(W[1])[-1] == c.FinishJob("stopped", "asked to; the checkpoint holds step 3")


@pytest.mark.parametrize("where", ["written", "published"])
def test_a_stop_whose_checkpoint_fails_says_so(where: str) -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(4)
    play.hear(e.StopRequested("asked to"))
    if where == "written":
        out = play.wrote(4, "No space left on device")
    else:
        play.wrote(4)
        out = play.publish("No space left on device")
    assert out[-1].outcome == "failed" and out[-1].reason.startswith(f"the checkpoint could not be {where}: ")


@pytest.mark.parametrize(
    ("role", "count", "most", "why"),
    [
        ("ps", 2, 0, "an all-reduce job has no ps: only workers can be scaled"),
        ("worker", 1, 0, "the job needs at least 2 of them (--min_workers)"),
        ("worker", 9, 0, "the job takes at most 8 (its virtual workers, fixed at submission)"),
        ("worker", 5, 4, "the job takes at most 4 (--max_workers)"),
    ],
)
def test_what_cannot_be_scaled_is_refused_with_the_reason(role: str, count: int, most: int, why: str) -> None:
    play = Play(least=2, most=most)
    play.trains(W[0], W[1])
    assert play.job.refused(role, count) == why
    assert play.told(play.hear(e.ScaleRequested(role, count))) == [f"not scaled to {count} of {role}: {why}"]


def test_workers_are_added_and_sent_away_while_the_job_runs() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(3)
    out = play.hear(e.ScaleRequested("worker", 3))
    assert play.told(out) == ["scaling to 3 workers"] and [x.index for x in of(c.LaunchReplica, out)] == [2]
    assert [x.members for x in of(c.ProposeWorld, play.join(W[2]))] == [tuple(W[:3])]
    play.enter((1, 4), **{"2": NOTHING})
    out = play.hear(e.ScaleRequested("worker", 1))
    assert {s.name for s in of(c.StopReplica, out)} == {W[1], W[2]}
    assert [(x.members, x.urgent) for x in of(c.ProposeWorld, out)] == [((W[0],), False)]


# The master comes back.


def test_a_new_master_finds_the_job_as_it_was() -> None:
    play = Play(schedule=Schedule(steps=4), export=True)
    play.trains(W[0], W[1])
    play.step(4)
    play.wrote(4)
    job = play.replayed()
    assert job == play.job
    out = play.hear(e.MasterStarted(((W[0], f"uid-{W[0]}"), (W[1], f"uid-{W[1]}"))))
    assert [x.cut for x in of(c.PublishCheckpoint, out)] == [1], "the manifest may not have been written"
    assert not of(c.ProposeWorld, play.join(W[0], W[1], generation=1)) and play.job.membership.training


def test_who_died_while_the_master_was_away_is_missed_at_once() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(4)
    out = play.hear(e.MasterStarted(((W[0], f"uid-{W[0]}"),)))
    assert of(c.LaunchReplica, out)
    assert of(c.ProposeWorld, out)[-1].members == (W[0],)


def test_a_checkpoint_that_a_leaver_is_writing_is_waited_for_and_published() -> None:
    play = Play(schedule=Schedule(steps=4))
    play.trains(W[0], W[1])
    asked = play.job.saves[-1]
    assert (asked.worker, asked.at) == (W[0], 4)
    play.step(3)
    play.leave(W[0])
    out = play.enter((1, 4))  # it stopped after step 4, and saves before it goes
    assert not of(c.SettleSave, out), "what is being written is of use"
    assert play.wrote(4, cut=asked.cut) and play.publish()
    assert play.job.checkpoint == "/c/step-4"


def test_a_step_to_save_at_that_a_leaver_never_comes_to_is_another_workers() -> None:
    play = Play(schedule=Schedule(steps=8))
    play.trains(W[0], W[1])
    play.leave(W[0])
    out = play.enter((1, 3))
    assert of(c.SettleSave, out) and of(c.SaveState, out)[-1] == c.SaveState(W[1], 2, 8)


# Workers whose arithmetic differs.


def strangers_only() -> Play:
    """Who trained is gone, its checkpoint is there, and a worker came whose arithmetic is another."""
    play = Play(workers=1, schedule=Schedule(seconds=10.0))
    play.trains(W[0])
    play.step(4)
    play.hear(e.TimePassed(), 10.0)
    play.save(4)
    play.end(W[0])
    play.hear(e.ReplicaStarted(W[1], f"uid-{W[1]}"))
    out = play.hear(e.ReplicaJoined(W[1], f"inc-{W[1]}", capacity=1, fingerprint="avx2"))
    assert not of(c.ProposeWorld, out) and not play.job.outcome
    return play


def test_where_only_workers_of_another_arithmetic_are_left_the_job_ends_after_a_while_and_says_what_to_do() -> None:
    play = strangers_only()
    assert play.job.deadline() is not None
    assert not of(c.FinishJob, play.hear(e.TimePassed(), STRANGERS_SECONDS - 1))
    (ended,) = of(c.FinishJob, play.hear(e.TimePassed(), 1.0))
    assert ended.outcome == "failed"
    assert ended.reason.startswith(
        f"nobody can train: {W[1]} is not taken, since its arithmetic differs from the first world's (avx2; cpu)"
    )
    assert ended.reason.endswith("or go on from its checkpoint with --deterministic=false.")
    assert play.replayed() == play.job


def test_a_worker_of_the_first_arithmetic_goes_on_however_late() -> None:
    play = strangers_only()
    play.hear(e.TimePassed(), STRANGERS_SECONDS - 1)
    play.hear(e.ReplicaGone(W[1], f"uid-{W[1]}", PREEMPTED, "killed by SIGKILL"))
    play.join(W[2])
    play.enter((0, 0))
    assert play.job.membership.training and play.job.step == 4
    assert not of(c.FinishJob, play.hear(e.TimePassed(), 10 * STRANGERS_SECONDS))


# Records that cannot be trained.


def test_a_record_that_is_left_out_is_told_once_whoever_meets_it() -> None:
    play = Play(max_bad_records=2)
    play.trains(W[0], W[1])
    out = play.hear(e.RecordLeftOut(W[0], 17, "record 17 of f", "torn"))
    assert play.told(out) == ["record 17 of f cannot be trained and is set aside (1 so far)"]
    assert play.hear(e.RecordLeftOut(W[1], 17, "record 17 of f", "torn")) == []
    assert [b.name for b in play.job.bad_records] == ["record 17 of f"]
    assert play.replayed() == play.job


def test_a_record_too_many_ends_the_job_with_its_name_and_what_is_wrong() -> None:
    play = Play(max_bad_records=1)
    play.trains(W[0], W[1])
    play.hear(e.RecordLeftOut(W[0], 17, "record 17 of f", "torn"))
    (out,) = play.hear(e.RecordLeftOut(W[1], 3, "record 3 of g", "too short"))
    words = "record 3 of g cannot be trained, and --max_bad_records=1 allows no more to be set aside:\ntoo short"
    assert out == c.FinishJob("failed", words)


def out_of_touch_at_the_end() -> Play:
    """Every step is done, and what one worker set aside may not have been heard."""
    play = Play(audit=True, max_bad_records=2, grace_seconds=20.0)
    play.trains(W[0], W[1])
    play.step(8)
    play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    assert not of(c.ExportModel, play.step(10, after=1.0))
    return play


def test_the_audit_waits_for_a_worker_out_of_touch_which_may_have_set_records_aside() -> None:
    play = out_of_touch_at_the_end()
    play.hear(e.RecordLeftOut(W[1], 17, "record 17 of f", "torn"))
    assert of(c.ExportModel, play.join(W[1], generation=1)) == [c.ExportModel(W[0])]
    assert play.job.deadline() is None
    assert play.replayed() == play.job


def test_the_audit_waits_for_those_who_have_yet_to_find_a_new_master() -> None:
    play = Play(audit=True, max_bad_records=2)
    play.trains(W[0], W[1])
    play.step(9)
    play.hear(e.MasterStarted(((W[0], f"uid-{W[0]}"), (W[1], f"uid-{W[1]}"))))
    play.join(W[0], generation=1)
    assert not of(c.ExportModel, play.step(10))
    assert of(c.ExportModel, play.join(W[1], generation=1))


def test_the_audit_waits_no_longer_than_a_worker_out_of_touch_goes_on() -> None:
    play = out_of_touch_at_the_end()
    until = play.job.deadline()
    assert until == play.now - 1.0 + 20.0 + MARGIN_SECONDS
    assert not of(c.ExportModel, play.hear(e.TimePassed(), 20.0))
    assert of(c.ExportModel, play.hear(e.TimePassed(), until - play.now)) == [c.ExportModel(W[0])]


def test_the_audit_does_not_wait_for_a_worker_that_is_known_to_be_gone() -> None:
    play = out_of_touch_at_the_end()
    play.end(W[1])
    assert of(c.ExportModel, play.enter((1, 10))) == [c.ExportModel(W[0])]


@pytest.mark.parametrize("terms", [{"audit": True}, {"export": True, "max_bad_records": 2}])
def test_nobody_is_waited_for_where_nothing_can_be_set_aside_or_nobody_asks(terms: dict[str, Any]) -> None:
    play = Play(**terms)
    play.trains(W[0], W[1])
    play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    assert play.step(10, after=1.0) == [c.ExportModel(W[0])]
