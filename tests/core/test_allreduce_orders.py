"""An all-reduce job that is stopped, scaled, or given a new master; workers and records that do not fit."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.checkpoints import Schedule
from elasticdl.core.machine import NOWHERE
from elasticdl.core.replicas import PREEMPTED
from elasticdl.strategies.allreduce.core.membership import MARGIN_SECONDS, NOTHING, STRANGERS_SECONDS
from elasticdl.strategies.allreduce.core.saves import NEXT
from tests.core.allreduce_play import Play, W, of

# Stopping and scaling.


def test_a_stop_saves_the_state_first() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(4)
    out = play.hear(e.StopRequested("asked to"))
    assert play.told(out) == ["Stopping the job (asked to); saving the state first"]
    assert of(c.SaveState, out) == [c.SaveState(W[0], 1, NEXT)]
    assert play.hear(e.StopRequested("again")) == []
    assert play.save(5)[-1] == c.FinishJob("stopped", "asked to; the checkpoint holds step 5")


def test_a_stop_without_a_place_for_checkpoints_ends_at_once() -> None:
    play = Play(schedule=Schedule(nowhere=True))
    play.trains(W[0], W[1])
    play.step(4)
    assert play.hear(e.StopRequested("enough")) == [c.FinishJob("stopped", f"enough; {NOWHERE}")]


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


def test_a_stop_while_a_world_is_being_formed_asks_one_that_holds_the_state() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(4)
    play.end(W[0])
    assert of(c.SaveState, play.hear(e.StopRequested("asked to"))) == [c.SaveState(W[1], 1, NEXT)]


def test_a_worker_that_dies_while_it_saves_for_a_stop_is_followed_by_another_and_then_by_the_last_checkpoint() -> None:
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
        ("worker", 1, 0, "the job needs at least 2 workers (--min_workers)"),
        ("worker", 9, 0, "the job takes at most 8 workers (its virtual workers, fixed at submission)"),
        ("worker", 5, 4, "the job takes at most 4 workers (--max_workers)"),
    ],
)
def test_what_cannot_be_scaled_is_refused_with_the_reason(role: str, count: int, most: int, why: str) -> None:
    play = Play(least=2, most=most)
    play.trains(W[0], W[1])
    assert play.job.refused(role, count) == why
    assert play.told(play.hear(e.ScaleRequested(role, count))) == [f"Cannot scale {role} to {count}: {why}"]


def test_workers_are_added_and_sent_away_while_the_job_runs() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(3)
    out = play.hear(e.ScaleRequested("worker", 3))
    assert play.told(out) == ["Scaling to 3 workers"] and [x.index for x in of(c.LaunchReplica, out)] == [2]
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


def test_a_worker_that_died_while_the_master_was_away_is_missed_at_once() -> None:
    play = Play()
    play.trains(W[0], W[1])
    play.step(4)
    out = play.hear(e.MasterStarted(((W[0], f"uid-{W[0]}"),)))
    assert of(c.LaunchReplica, out)
    assert of(c.ProposeWorld, out)[-1].members == (W[0],)


def test_a_checkpoint_that_a_leaver_is_writing_is_waited_for_and_published() -> None:
    play = Play(schedule=Schedule(steps=4))
    play.trains(W[0], W[1])
    asked = play.job.saves.asked[-1]
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
    """The worker that trained is gone, its checkpoint is there, and a worker came whose arithmetic is another."""
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
        f"training was paused for 300 s: {W[1]} was rejected because of different library versions or CPU type (avx2; "
    )
    assert ended.reason.endswith("or continue from its checkpoint with --deterministic=false.")
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


def test_a_record_that_is_left_out_is_reported_once_whichever_workers_meet_it() -> None:
    play = Play(max_bad_records=2)
    play.trains(W[0], W[1])
    out = play.hear(e.RecordLeftOut(W[0], 17, "record 17 of f", "torn"))
    assert play.told(out) == ["Skipping record 17 of f: it cannot be trained (1 so far)"]
    assert play.hear(e.RecordLeftOut(W[1], 17, "record 17 of f", "torn")) == []
    assert [b.name for b in play.job.bad_records] == ["record 17 of f"]
    assert play.replayed() == play.job


def test_a_record_too_many_ends_the_job_with_its_name_and_what_is_wrong() -> None:
    play = Play(max_bad_records=1)
    play.trains(W[0], W[1])
    play.hear(e.RecordLeftOut(W[0], 17, "record 17 of f", "torn"))
    (out,) = play.hear(e.RecordLeftOut(W[1], 3, "record 3 of g", "too short"))
    words = "record 3 of g cannot be trained, and --max_bad_records=1 allows no more bad records:\ntoo short"
    assert out == c.FinishJob("failed", words)


def out_of_touch_at_the_end() -> Play:
    """Every step is done, and what one worker set aside may not have been heard."""
    play = Play(audit=True, max_bad_records=2, grace_seconds=10.0)
    play.trains(W[0], W[1])
    play.step(8)
    play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    assert not of(c.ExportModel, play.step(10, after=1.0))
    return play


def test_the_audit_waits_for_a_worker_out_of_touch_which_may_have_set_records_aside() -> None:
    play = out_of_touch_at_the_end()
    play.hear(e.RecordLeftOut(W[1], 17, "record 17 of f", "torn"))
    assert of(c.ExportModel, play.join(W[1], generation=1)) == [c.ExportModel(W[0], 1)]
    assert play.job.deadline() is None
    assert play.replayed() == play.job


def test_the_audit_waits_for_those_that_have_yet_to_find_a_new_master() -> None:
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
    assert until == play.now - 1.0 + 10.0 + MARGIN_SECONDS
    assert not of(c.ExportModel, play.hear(e.TimePassed(), 10.0))
    assert of(c.ExportModel, play.hear(e.TimePassed(), until - play.now)) == [c.ExportModel(W[0], 1)]


def test_the_audit_does_not_wait_for_a_worker_that_is_known_to_be_gone() -> None:
    play = out_of_touch_at_the_end()
    play.end(W[1])
    assert of(c.ExportModel, play.enter((1, 10))) == [c.ExportModel(W[0], 1)]


@pytest.mark.parametrize("terms", [{"audit": True}, {"export": True, "max_bad_records": 2}])
def test_no_worker_is_waited_for_where_no_record_can_be_skipped_or_no_audit_is_asked_for(terms: dict[str, Any]) -> None:
    play = Play(**terms)
    play.trains(W[0], W[1])
    play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    assert play.step(10, after=1.0) == [c.ExportModel(W[0], 1)]
