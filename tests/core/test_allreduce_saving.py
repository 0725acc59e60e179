"""The checkpoints of an all-reduce job: asked for, written, published, passed on."""

from __future__ import annotations

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.checkpoints import Schedule
from elasticdl.core.replicas import Budget
from elasticdl.strategies.allreduce.core.membership import LAST_CALL_SECONDS, NOTHING
from elasticdl.strategies.allreduce.core.saves import NEXT
from tests.core.allreduce_play import Play, W, of

# Saving.


def test_a_lasting_checkpoint_is_asked_for_in_time_and_at_its_exact_step() -> None:
    play = Play(schedule=Schedule(steps=4))
    assert of(c.SaveState, play.trains(W[0], W[1])) == [c.SaveState(W[0], 1, 4)]
    play.step(4)
    out = play.wrote(4)
    assert of(c.PublishCheckpoint, out)[0].position.version == 4 and of(c.PublishCheckpoint, out)[0].lasting
    assert of(c.SaveState, play.all)[-1] == c.SaveState(W[0], 2, 8), "the next one at once"
    assert play.told(play.publish()) == ["Saved the checkpoint of step 4 in /c/step-4"]
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
    assert play.job.deadline() == play.now + play.job.saves.limit_seconds, "one at a time"
    play.save(3)
    assert not of(c.SaveState, play.hear(e.TimePassed(), 30.0))


def test_what_is_being_written_is_known_when_something_later_is_published() -> None:
    play = Play(schedule=Schedule(steps=4, seconds=10.0))
    play.trains(W[0], W[1])
    play.step(3)
    play.hear(e.TimePassed(), 10.0)
    play.wrote(3, cut=2)
    assert [x.cut for x in of(c.PublishCheckpoint, play.all)] == [2], "asked for later, written first"
    assert 1 in play.job.saves.open_cuts, "the one of step 4 is still to come"
    play.publish()
    assert play.job.saves.open_cuts == {1}
    play.end(W[0])
    assert 1 not in play.job.saves.open_cuts, "the worker that was to write it is gone"


def test_a_checkpoint_that_was_overtaken_does_not_take_the_place_of_the_newer_one() -> None:
    """A leaver writes slowly: meanwhile another worker wrote a later step."""
    play = Play(schedule=Schedule(steps=4, seconds=10.0))
    play.trains(W[0], W[1])
    play.step(3)
    play.leave(W[0])
    play.enter((1, 4))
    play.step(6, worker=W[1])
    play.hear(e.TimePassed(), 10.0)
    later = play.job.saves.asked[-1]
    assert (later.worker, later.at) == (W[1], NEXT)
    play.wrote(6, cut=later.cut)
    play.publish()
    play.wrote(4, cut=1)
    assert play.told(play.publish()) == ["Saved the checkpoint of step 4 in /c/step-4"]
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
    assert play.hear(e.ServerWrote(W[0], 1, '{"step": 4}')) == [c.SettleSave(1, "", W[0])], "no save waits for it"


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
    text = f"Cannot write the checkpoint ({W[0]}: No space left on device); training continues"
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
    assert play.told(out) == ["Cannot publish the checkpoint (No space left on device); training continues"]
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


def test_a_checkpoint_that_nothing_comes_of_is_given_up_and_the_next_one_is_made() -> None:
    play = Play(schedule=Schedule(seconds=10.0), budget=Budget(hang_seconds=25))
    play.trains(W[0], W[1])
    play.step(3)
    assert of(c.SaveState, play.hear(e.TimePassed(), 10.0)) == [c.SaveState(W[0], 1, NEXT)]
    assert play.job.deadline() == play.now + 100
    assert not play.hear(e.TimePassed(), 99.0)
    out = play.hear(e.TimePassed(), 1.0)
    told = f"Cannot write the checkpoint ({W[0]}: not written within 100 s); training continues"
    assert out == [c.SettleSave(1, "", W[0]), c.Announce(told)]
    assert play.job.deadline() == play.now + 10
    assert of(c.SaveState, play.hear(e.TimePassed(), 10.0)) == [c.SaveState(W[0], 2, NEXT)]


def test_the_time_for_a_lasting_checkpoint_begins_with_its_step() -> None:
    play = Play(schedule=Schedule(steps=4), budget=Budget(hang_seconds=25))
    play.trains(W[0], W[1])
    play.step(3, after=1000.0)
    assert play.job.deadline() is None
    play.step(4, after=1000.0)
    assert play.job.deadline() == play.now + 100
    assert "not written within" in play.told(play.hear(e.TimePassed(), 100.0))[0]
    assert [s.at for s in play.job.saves.asked] == [8], "the next one that is due"


def test_a_stop_does_not_wait_for_ever_for_a_checkpoint() -> None:
    play = Play(schedule=Schedule(seconds=10.0), budget=Budget(hang_seconds=25))
    play.trains(W[0], W[1])
    play.step(3)
    assert of(c.SaveState, play.hear(e.StopRequested("told to"))) == [c.SaveState(W[0], 1, NEXT)]
    play.hear(e.TimePassed(), 100.0)
    assert (play.job.outcome, "not written within 100 s" in play.job.reason) == ("failed", True)


def test_a_lasting_checkpoint_whose_writer_dies_is_made_by_another_at_once() -> None:
    play = Play(schedule=Schedule(steps=4))
    play.trains(W[0], W[1])
    play.step(5)
    assert not of(c.SaveState, play.end(W[0])), "no world trains"
    assert of(c.SaveState, play.enter((1, 5))) == [c.SaveState(W[1], 2, NEXT)], "and not at step 8"
    play.save(5)
    assert play.job.checkpoint == "/c/step-5" and [s.at for s in play.job.saves.asked] == [8]


def test_a_job_does_not_end_before_the_last_lasting_checkpoint_is_made_by_another() -> None:
    play = Play(schedule=Schedule(steps=4), max_step=4)
    play.trains(W[0], W[1])
    play.step(4)
    play.end(W[0])
    assert not play.job.outcome
    play.enter((1, 4))
    play.save(4)
    assert play.job.outcome == "succeeded" and play.job.checkpoint == "/c/step-4"


def test_what_is_owed_when_all_is_trained_is_written_by_a_worker_that_holds_it_though_too_few_are_left_to_train() -> (
    None
):
    play = Play(schedule=Schedule(steps=10), least=2)
    play.trains(W[0], W[1])
    play.step(10)
    out = play.end(W[0])
    assert "at least 2 workers are needed" in play.told(out)[-1] and not play.job.outcome
    assert of(c.SaveState, out) == [c.SaveState(W[1], 2, 10)], "a state of an earlier step would not do"
    out = play.save(10)
    assert play.job.outcome == "succeeded" and play.job.checkpoint == "/c/step-10"


def test_what_is_owed_is_not_asked_of_one_out_of_touch_and_is_when_it_is_back() -> None:
    play = Play(schedule=Schedule(steps=10), least=2)
    play.trains(W[0], W[1])
    play.step(10)
    play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    assert not of(c.SaveState, play.end(W[0])) and not play.job.outcome
    out = play.hear(e.ReplicaJoined(W[1], f"inc-{W[1]}", capacity=1, generation=1, fingerprint="cpu"))
    assert of(c.SaveState, out) == [c.SaveState(W[1], 2, 10)]
    play.save(10)
    assert play.job.outcome == "succeeded"


def test_a_worker_that_lacks_the_last_step_is_not_taken_for_one_that_can_write_it() -> None:
    """It left the exchange of that step when the other, which had committed it, was gone: the step is trained again."""
    play = Play(schedule=Schedule(steps=10), least=2)
    play.trains(W[0], W[1])
    play.step(10)
    play.end(W[0])
    play.join(W[2])
    out = play.enter(**{"1": (1, 9)})
    assert of(c.StartWorld, out)[0].state == (1, 9) and not play.job.outcome
    play.step(10, worker=W[1])
    assert play.job.saves.asked[0].worker == W[1] and not play.job.outcome
    play.save(10)
    assert play.job.outcome == "succeeded" and play.job.repeated == 1
