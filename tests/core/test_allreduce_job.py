"""The whole all-reduce job: from the first step to the last, whichever workers are lost or leave."""

from __future__ import annotations

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.checkpoints import Schedule
from elasticdl.core.replicas import CRASHED, FINISHED, PREEMPTED
from elasticdl.strategies.allreduce.core.membership import NOTHING
from elasticdl.strategies.allreduce.core.saves import NEXT
from tests.core.allreduce_play import Play, W, of

# From the first step to the last.


def test_a_job_trains_all_steps_and_ends() -> None:
    play = Play()
    out = play.trains(W[0], W[1])
    assert play.told(out)[-1] == "Generation 1: 2 workers train from step 0"
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
    assert play.step(10) == [c.ExportModel(W[0], 1)]
    assert play.hear(e.ModelExported(W[1], "/m")) == [], "only from the worker that was asked"
    out = play.hear(e.ModelExported(W[0], "/m", audit="every record once"))
    assert play.told(out) == ["Audit: every record once", "Exported the model to /m"]
    assert play.job.outcome == "succeeded" and play.job.closing.exported == "/m"


def test_a_lost_exporter_is_followed_by_another() -> None:
    play = Play(export=True)
    play.trains(W[0], W[1])
    play.step(10)
    assert of(c.ExportModel, play.end(W[0])) == []
    assert of(c.ExportModel, play.enter((1, 10))) == [c.ExportModel(W[1], 2)]


def test_an_exporter_whose_stream_broke_is_asked_again() -> None:
    play = Play(export=True)
    play.trains(W[0], W[1])
    play.step(10)
    play.hear(e.ReplicaDropped(W[0], f"inc-{W[0]}"))
    assert c.ExportModel(W[0], 1) in play.join(W[0], generation=1), "it is the same request"


def test_an_exporter_that_is_asked_anew_does_not_fail_the_job_by_what_it_says_of_the_old_request() -> None:
    """It had to give way to the one that was asked meanwhile."""
    play = Play(export=True)
    play.trains(W[0], W[1])
    play.step(10)
    play.hear(e.ReplicaDropped(W[0], f"inc-{W[0]}"))
    play.hear(e.WorldBroken(W[1], 1, 10, "connection reset"))
    assert of(c.ExportModel, play.enter((1, 10))) == [c.ExportModel(W[1], 2)], "of a world without it"
    play.join(W[0])
    play.enter((1, 10))
    play.end(W[1])
    assert of(c.ExportModel, play.enter((1, 10))) == [c.ExportModel(W[0], 3)]
    assert play.hear(e.ModelExported(W[0], "/m", "another process has begun", number=1)) == []
    play.hear(e.ModelExported(W[0], "/m", number=3))
    assert play.job.outcome == "succeeded" and play.replayed() == play.job


def test_what_an_older_master_heard_of_an_export_still_counts() -> None:
    """Its journal knows no numbers."""
    play = Play(export=True)
    play.trains(W[0], W[1])
    play.step(10)
    play.hear(e.decode("ModelExported", f'{{"worker": "{W[0]}", "directory": "/m"}}'.encode()))
    assert play.job.outcome == "succeeded" and play.job.closing.exported == "/m"


def test_a_model_that_cannot_be_written_fails_the_job() -> None:
    play = Play(export=True)
    play.trains(W[0], W[1])
    play.step(10)
    out = play.hear(e.ModelExported(W[0], "", "No space left on device"))
    assert out == [c.FinishJob("failed", f"{W[0]} cannot write the model: No space left on device")]


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


def test_when_all_die_the_newest_checkpoint_is_where_the_job_goes_on() -> None:
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
    told = "Cannot read the checkpoint of version 8 (/c/step-8): its checksum is wrong; continuing from version 4"
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
    assert [(s.name, s.reason) for s in of(c.StopReplica, out)] == [(W[1], "its world keeps breaking")]
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
    assert play.told(out) == [f"{W[1]} received SIGTERM; leaving at the end of a step"]
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
    assert play.job.saves.asked[-1].worker == W[1], "the other one may be gone by now"
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


def test_a_leaver_saves_when_the_only_one_that_would_have_stayed_dies() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(4)
    play.leave(W[0])
    assert of(c.SaveState, play.end(W[1])) == [c.SaveState(W[0], 1, NEXT)]


def test_a_leaver_saves_when_the_only_one_that_would_have_stayed_loses_touch() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(3)
    play.leave(W[0])
    out = play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    assert of(c.SaveState, out) == [c.SaveState(W[0], 1, NEXT)]
    assert not of(c.SaveState, play.end(W[1])), "it is asked once"


def test_another_leaver_saves_when_the_one_that_was_asked_loses_touch() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(3)
    play.leave(W[0])
    assert of(c.SaveState, play.leave(W[1])) == [c.SaveState(W[1], 1, NEXT)]
    out = play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    assert of(c.SaveState, out) == [c.SaveState(W[0], 2, NEXT)]


def test_a_leaver_that_is_back_hears_of_its_save_before_it_hears_that_training_is_paused() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(3)
    for worker in W[:2]:
        play.leave(worker)
    play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    out = play.hear(e.ReplicaJoined(W[1], f"inc-{W[1]}", capacity=0, generation=0, fingerprint="cpu"))
    kinds = [type(x) for x in out]
    assert kinds.index(c.SaveState) < kinds.index(c.ProposeWorld)


def test_a_leaver_that_is_told_which_world_goes_on_does_not_begin_it_anew() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(3)
    play.leave(W[0])
    play.enter((1, 3))
    play.step(5, worker=W[1])
    out = play.hear(e.ReplicaJoined(W[0], f"inc-{W[0]}", capacity=0, generation=0, fingerprint="cpu"))
    assert of(c.StartWorld, out)[0].to == (W[0],)
    assert play.job.step == 5 and play.job.repeated == 0
