"""A server is lost: all go back to the newest checkpoint, and earlier messages do not count."""

from __future__ import annotations

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.plan import EpochDone, Position
from elasticdl.core.replicas import CRASHED, PREEMPTED, Budget
from tests.core.invariants import check_clock
from tests.core.playing import PS0, PS1, W0, Play, of
from tests.core.rollback_play import EVERY_4, SOON, finish, saved_at_4, texts

# Checkpoints while training.


def test_a_checkpoint_is_cut_exactly_at_its_step_and_training_goes_on_while_it_is_written() -> None:
    play = Play(records=40, per_shard=3, schedule=EVERY_4)
    out = play.join_all()
    assert c.HoldServers(1, 4) in out, "told ahead"
    play.commit("train/0/0", 3)
    play.commit("train/0/1", 1)
    assert c.CutServers(1, "save") in play.hold(1, a=3, b=1)
    assert c.ReleaseServers(1) in play.freeze(1), "from here on the servers write in the background"
    play.commit("train/0/1", 2)
    play.write(1)
    out = play.publish()
    assert "Saved the checkpoint of version 4 in /c/version-4" in texts(out)
    assert c.SettleSave(1, "/c/version-4") in out and c.HoldServers(2, 8) in out


def test_the_position_of_a_checkpoint_is_the_one_of_its_cut_with_batches_not_reported_yet() -> None:
    play = Play(records=40, per_shard=3, schedule=SOON)
    play.join_all()
    play.commit("train/0/0", 1)
    play.hear(e.TimePassed(), after=10.0)
    play.hold(1, a=3, b=1)  # two batches of a and one of b are applied, and their report is on its way
    play.freeze(1)
    play.commit("train/0/0", 3)
    play.commit("train/0/1", 3)
    play.commit("train/0/2", 1)
    asked = of(c.PublishCheckpoint, play.write(1))[0]
    assert asked.position == Position(4, (0, 2), {"train/0/1": (1, 3)}, {0: EpochDone(4, 8)}), (
        "a is done, though it was not reported; b stands at 1, though more was done since"
    )
    play.publish()
    play.end(PS0, PREEMPTED)
    play.join(PS0)
    assert {s.id: s.next_batch for s in play.job.shards.leased.values()} == {"train/0/1": 1, "train/0/2": 0}
    finish(play)
    assert play.job.shards.done_records == 40 and play.job.outcome == "succeeded"


def test_by_the_clock_a_checkpoint_comes_without_any_event_of_its_own() -> None:
    play = Play(records=40, schedule=SOON)
    play.join_all()
    play.commit("train/0/0", 1)
    due = play.job.deadline()
    assert due is not None and due <= play.now + 10
    assert c.HoldServers(1, 0) in play.hear(e.TimePassed(), after=due - play.now)
    check_clock(play.job, play.now)


def test_a_checkpoint_by_the_clock_takes_the_turn_of_an_evaluation_that_is_far_away() -> None:
    play = Play(records=40, schedule=SOON, validation_records=2, evaluation_steps=15)
    play.join_all()
    play.commit("train/0/0", 1)
    out = play.hear(e.TimePassed(), after=10.0)
    assert of(c.ReleaseServers, out)[0].cut == 1 and c.HoldServers(2, 0) in out
    play.save()
    assert play.job.servers.cuts.active is not None and play.job.servers.cuts.active.purpose == "view", (
        "and then it is its turn again"
    )


def test_a_disk_that_is_full_is_told_and_the_checkpoint_before_stays() -> None:
    play = saved_at_4()
    play.commit("train/0/2", 2)
    play.hold(2, c=2)
    play.freeze(2)
    out = play.write(2, "No space left on device")
    assert texts(out) == (
        f"Cannot write the checkpoint ({PS0}: No space left on device); training continues, "
        "and version 4 (/c/version-4) stays the newest"
    )
    assert c.SettleSave(2, "") in out and not play.job.outcome
    play.end(PS0, PREEMPTED)
    assert play.job.shards.version == 4


def test_a_manifest_that_cannot_be_written_is_no_reason_to_stop_training_either() -> None:
    play = saved_at_4()
    play.commit("train/0/2", 2)
    play.hold(2, c=2)
    play.freeze(2)
    play.write(2)
    assert "Cannot write the checkpoint (disk full); training continues" in texts(play.publish("disk full"))
    play.commit("train/0/2", 3)
    play.train_out()
    assert play.job.shards.trained_out


def test_the_last_checkpoint_that_the_user_asked_for_is_on_disk_before_the_job_ends() -> None:
    play = Play(records=8, minibatch=2, per_shard=4, schedule=EVERY_4)
    play.join_all()
    play.commit("train/0/0", 4)
    play.hold(1)
    play.freeze(1)
    assert not play.job.outcome, "the servers write version 4, which is the last"
    play.write(1)
    assert not play.job.outcome
    out = play.publish()
    assert play.job.outcome == "succeeded" and of(c.DeleteCheckpoints, out) == []


def test_what_is_written_only_for_the_servers_sake_does_not_keep_a_job_from_ending() -> None:
    play = Play(records=8, minibatch=2, per_shard=4, schedule=SOON)
    play.join_all()
    play.commit("train/0/0", 1)
    play.hear(e.TimePassed(), after=10.0)
    play.hold(1, a=1)
    play.freeze(1)
    play.commit("train/0/0", 4)
    assert play.job.outcome == "succeeded"


# Going back.


def test_a_lost_server_comes_back_and_all_go_back_to_the_newest_checkpoint() -> None:
    play = saved_at_4()
    leases = {(s.worker, s.id, s.attempt) for s in play.job.shards.leased.values()}
    out = play.end(PS1, PREEMPTED, "killed by SIGKILL")
    assert [(x.role, x.index) for x in of(c.LaunchReplica, out)] == [("ps", 1)]
    assert {(x.worker, x.shard, x.attempt) for x in of(c.RevokeLease, out)} == leases
    assert c.TellMembers() in out, "workers hear that the servers are not all there"
    assert (f"Rolling back from version 6 to version 4 (/c/version-4): {PS1} is gone: killed by SIGKILL") in texts(out)
    at = Position(4, (0, 3), {"train/0/1": (1, 3), "train/0/2": (0, 3)}, {0: EpochDone(4, 8)})
    assert of(c.RestoreServer, out) == [c.RestoreServer(PS0, 2, "/c/version-4", at, 2)], "the survivor too"
    assert play.job.repeated == 2
    assert not play.job.shards.leased and play.job.shards.paused


def test_there_is_work_again_only_when_every_server_stands_on_the_new_timeline() -> None:
    play = saved_at_4()
    play.end(PS1, PREEMPTED)
    play.hear(e.ReplicaStarted(PS1, play.uid(PS1)))
    out = play.hear(e.ReplicaJoined(PS1, play.incarnation(PS1), "at", timeline=0))
    assert [(x.server, x.timeline) for x in of(c.RestoreServer, out)] == [(PS1, 2)]
    assert of(c.GrantLease, play.restored(PS1)) == [], "the survivor is not back yet"
    out = play.restored(PS0)
    assert [g.shard for g in of(c.GrantLease, out)] == ["train/0/1", "train/0/2"]
    assert c.TellMembers() in out


def test_leases_after_a_rollback_are_newer_than_any_before_it() -> None:
    play = saved_at_4()
    for _ in range(3):
        play.hear(e.LeaseReturned(W0, "train/0/2", play.job.shards.leased["train/0/2"].attempt, "why"))
    before = play.job.shards.highest_attempt
    assert before > 1
    play.end(PS0, PREEMPTED)
    play.join(PS0)
    play.restored(PS1)
    assert min(s.attempt for s in play.job.shards.leased.values()) > before


def test_reports_of_the_old_timeline_do_not_count() -> None:
    play = saved_at_4()
    old = {s.id: s.attempt for s in play.job.shards.leased.values()}
    play.end(PS0, PREEMPTED)
    play.hear(e.BatchesCommitted(W0, "train/0/2", old["train/0/2"], 1))
    assert play.job.shards.version == 4, "while going back"
    play.join(PS0)
    play.restored(PS1)
    play.hear(e.BatchesCommitted(W0, "train/0/2", old["train/0/2"], 1))
    assert play.job.shards.version == 4, "nor afterwards"
    holding = e.Holding("train/0/2", old["train/0/2"], 2)
    play.hear(e.ReplicaJoined(W0, play.incarnation(W0), "", (holding,), 2))
    assert play.job.shards.version == 4, "nor from a server that was away all the time"
    play.hear(e.ServerRestored(PS0, 1))
    play.hear(e.ServerRestored(PS0, 1, "damaged"))
    assert play.job.servers.checkpoints.timeline == 2 and not play.job.outcome


def test_news_of_the_servers_earlier_life_do_not_cost_another_rollback() -> None:
    play = saved_at_4()
    gone = e.ReplicaGone(PS0, play.uid(PS0), PREEMPTED, "killed by SIGKILL")
    play.end(PS0, PREEMPTED)
    play.hear(gone)
    play.join(PS0)
    play.hear(gone)
    assert play.job.servers.checkpoints.timeline == 2 and play.job.replicas.losses == 1


def test_two_servers_lost_at_once_mean_two_timelines_and_the_same_place() -> None:
    play = saved_at_4()
    play.end(PS0, PREEMPTED)
    play.end(PS1, PREEMPTED)
    assert play.job.servers.checkpoints.timeline == 3 and play.job.shards.version == 4
    assert play.job.repeated == 2, "what was lost was lost once"
    play.join(PS0)
    play.join(PS1)
    finish(play)
    assert play.job.outcome == "succeeded" and play.job.shards.done_records == 40


def test_before_the_first_checkpoint_everything_is_trained_again() -> None:
    play = Play(records=40, servers=1, schedule=EVERY_4)
    play.join_all()
    play.commit("train/0/0", 1)
    out = play.end(PS0, PREEMPTED)
    assert "Rolling back from version 1 to version 0 (the beginning)" in texts(out)
    play.join(PS0)
    assert [(s.id, s.next_batch) for s in play.job.shards.leased.values()] == [("train/0/0", 0), ("train/0/1", 0)]


def test_a_cut_and_a_checkpoint_under_way_are_forgotten_with_their_timeline() -> None:
    play = saved_at_4()
    play.commit("train/0/2", 2)
    play.hold(2, c=2)
    play.freeze(2)
    play.end(PS1, PREEMPTED)
    assert play.job.servers.checkpoints.writing is None and play.job.servers.cuts.active is None
    play.hear(e.ServerWrote(PS0, 2, "f0"))
    play.join(PS1)
    play.restored(PS0)
    play.hear(e.ServerWrote(PS1, 2, "f1"))
    assert [x.cut for x in of(c.PublishCheckpoint, play.all)] == [1]
    assert play.job.servers.checkpoints.newest.position.version == 4


def test_a_checkpoint_published_into_a_timeline_that_was_over_is_removed_again() -> None:
    play = saved_at_4()
    play.commit("train/0/2", 2)
    play.hold(2, c=2)
    play.freeze(2)
    play.write(2)
    play.end(PS1, PREEMPTED)
    assert play.publish() == [c.DeleteCheckpoints(("/c/version-8",))], "or it would pass for the newest one"
    assert play.job.servers.checkpoints.newest.position.version == 4


# Whose fault it was.


def test_a_server_that_fails_has_a_budget_of_its_own() -> None:
    play = saved_at_4(budget=Budget(crashes=9, server_crashes=1))
    play.end(PS0, CRASHED, "exit code 1")
    assert not play.job.outcome
    play.hear(e.TimePassed())
    play.join(PS0)
    play.restored(PS1)
    play.end(PS0, CRASHED, "exit code 1")
    assert play.job.outcome == "failed" and play.job.reason.startswith(f"{PS0} failed 2 times: exit code 1")


def test_a_worker_that_falls_over_the_rollback_costs_neither_its_budget_nor_a_record() -> None:
    play = saved_at_4(budget=Budget(crashes=0))
    play.end(PS0, PREEMPTED)
    play.end(W0, CRASHED, "exit code 1")
    assert not play.job.outcome and not play.job.shards.searches.open
    assert not any(s.strikes for s in play.job.shards.waiting)


def test_no_worker_is_hung_while_servers_go_back() -> None:
    play = saved_at_4(budget=Budget(hang_seconds=100.0))
    play.end(PS0, PREEMPTED)
    play.hear(e.TimePassed(), after=1000.0)
    assert of(c.StopReplica, play.all) == []
