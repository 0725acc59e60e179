"""Going back beside evaluation, audit and export; damage; servers that leave; stops; the journal."""

from __future__ import annotations

import pytest

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.replicas import PREEMPTED
from tests.core.playing import PS0, PS1, STATE, W0, W1, Play, of
from tests.core.rollback_play import EVERY_4, SOON, finish, saved_at_4, texts

# Evaluation, audit and export.


def test_metrics_of_versions_that_never_were_are_forgotten() -> None:
    play = Play(records=40, per_shard=3, schedule=EVERY_4, validation_records=2, evaluation_steps=3)
    play.join(PS0)
    play.join(W0, capacity=20)
    play.commit("train/0/0", 3)

    def evaluate(number: int, metrics: str) -> None:
        cut = play.job.servers.cuts.active
        assert cut is not None and cut.purpose == "view"
        mine = {s.id: s.next_batch for s in play.job.shards.open_training()}
        play.hear(e.ServerHeld(PS0, cut.number, tuple(mine.items())))
        play.freeze(cut.number)
        play.complete(f"evaluate/{number}/0", '"a"')
        play.complete(f"summarize/{number}/0", metrics)

    evaluate(1, '{"loss": 3}')
    play.commit("train/0/1", 1)
    play.save()
    play.commit("train/0/1", 3)
    evaluate(2, '{"loss": 2}')
    assert [v for v, _ in play.job.evaluation.done] == [3, 6]
    play.end(PS0, PREEMPTED)
    assert play.job.evaluation.done == [(3, '{"loss": 3}')]
    play.join(PS0)
    assert play.job.servers.cuts.active is not None and (
        play.job.servers.cuts.active.purpose,
        play.job.servers.cuts.active.at,
    ) == ("view", 6)


def test_a_round_that_was_under_way_is_held_again_where_all_went_back_to() -> None:
    play = Play(records=40, per_shard=2, schedule=EVERY_4, validation_records=2, evaluation_steps=4)
    play.join_all()
    play.commit("train/0/0", 2)
    play.commit("train/0/1", 2)
    play.hold(1)
    play.freeze(1)
    play.save()
    assert play.job.evaluation.current is not None and play.job.servers.checkpoints.newest.position.version == 4
    play.end(PS0, PREEMPTED)
    play.join(PS0)
    cut = play.job.servers.cuts.active
    assert cut is not None and (cut.purpose, cut.at) == ("view", 4), "its view went with the server"


def test_an_export_is_made_anew_of_the_model_that_survives() -> None:
    play = Play(records=8, per_shard=4, schedule=SOON, export=True)
    play.join_all()
    play.train_out()
    lease = play.job.shards.leased["export/0/0"]
    out = play.end(PS0, PREEMPTED)
    assert [x.shard for x in of(c.RevokeLease, out)] == ["export/0/0"]
    play.hear(e.ShardCompleted(W0, "export/0/0", lease.attempt, "/models/m"))
    assert play.job.closing.exported == "", "of a model that is lost"
    play.join(PS0)
    play.train_out()
    assert play.job.shards.leased["export/0/0"].attempt > lease.attempt
    play.complete("export/0/0", "/models/m")
    assert play.job.outcome == "succeeded"


def test_an_audit_is_made_anew_too() -> None:
    play = Play(records=8, per_shard=4, audit=True, export=True)
    play.join_all()
    play.train_out()
    play.complete("audit/0/0", "exact")
    play.end(PS0, PREEMPTED)
    assert play.job.closing.audited == ""
    play.join(PS0)
    play.train_out()
    assert "audit/0/0" in play.job.shards.leased


# Damage.


def test_a_damaged_checkpoint_gives_way_to_the_one_before_saying_so() -> None:
    play = saved_at_4()
    play.commit("train/0/2", 2)
    play.save()
    play.end(PS1, PREEMPTED)
    assert play.job.shards.version == 8
    out = play.restored(PS0, error="/c/version-8/ps-0-of-2.0.safetensors: its checksum is wrong")
    assert (
        "Cannot read the checkpoint of version 8 (/c/version-8): /c/version-8/ps-0-of-2.0.safetensors: its checksum "
        "is wrong"
    ) in texts(out)
    assert "Rolling back from version 8 to version 4 (/c/version-4)" in texts(out)
    assert play.job.servers.checkpoints.timeline == 3, "a server at version 8 already must go back too"
    play.join(PS1)
    play.restored(PS0)
    assert play.job.shards.version == 4 and not play.job.shards.paused


def test_when_no_checkpoint_can_be_read_the_job_begins_anew() -> None:
    play = saved_at_4()
    play.end(PS1, PREEMPTED)
    play.restored(PS0, error="damaged")
    assert play.job.shards.version == 0 and not play.job.outcome


def test_a_job_that_began_with_a_checkpoint_cannot_do_without_it() -> None:
    play = Play(records=40)
    play.job.servers.checkpoints.known[0].directory = "/other/version-50"
    play.hear(e.ReplicaStarted(PS0, play.uid(PS0)))
    play.hear(e.ReplicaJoined(PS0, play.incarnation(PS0), "at"))
    out = play.restored(PS0, error="/other/version-50/part: No such file")
    assert of(c.FinishJob, out)[0].reason == (
        f"{PS0} cannot restore version 0 (/other/version-50): /other/version-50/part: No such file"
    )


# SIGTERM of a server.


def test_a_server_that_is_told_to_go_is_saved_first_and_nothing_is_lost() -> None:
    play = saved_at_4()
    out = play.hear(e.ReplicaLeaving(PS1))
    assert f"{PS1} received SIGTERM; saving its part first" in texts(out)
    (hold,) = of(c.HoldServers, out)
    assert hold.at == 0, "at once"
    play.hold(hold.cut, c=1)
    assert of(c.ReleaseServers, play.freeze(hold.cut)) == [], "it is the last thing that these servers do"
    play.write(hold.cut)
    out = play.publish()
    assert c.StopReplica(PS1, "received SIGTERM; its part is saved", 0.0) in out
    out = play.end(PS1, PREEMPTED, "killed by SIGKILL")
    assert f"Continuing from version 7 (/c/version-7): {PS1} is gone: received SIGTERM; its part is saved" in texts(out)
    assert play.job.repeated == 0 and play.job.shards.version == 7
    assert not play.job.servers.leaving
    play.join(PS1)
    play.restored(PS0)
    finish(play)
    assert play.job.outcome == "succeeded"


def test_a_server_that_is_told_to_go_goes_even_where_it_cannot_be_saved() -> None:
    play = saved_at_4()
    (hold,) = of(c.HoldServers, play.hear(e.ReplicaLeaving(PS1)))
    play.hold(hold.cut)
    play.freeze(hold.cut)
    out = play.write(hold.cut, "disk full")
    assert c.StopReplica(PS1, "received SIGTERM", 0.0) in out
    play.end(PS1, PREEMPTED)
    assert play.job.shards.version == 4, "the checkpoint before"


def test_a_server_that_does_not_wait_for_its_part_to_be_saved_is_a_server_lost() -> None:
    play = saved_at_4()
    play.hear(e.ReplicaLeaving(PS1))
    play.end(PS1, PREEMPTED, "killed by SIGTERM")
    assert play.job.shards.version == 4 and not play.job.servers.leaving
    play.join(PS1)
    play.restored(PS0)
    finish(play)
    assert play.job.outcome == "succeeded"


# Stopping.


def test_a_stop_waits_for_the_checkpoint_that_is_being_written_and_then_takes_its_own() -> None:
    play = saved_at_4()
    play.commit("train/0/2", 2)
    play.hold(2, c=2)
    play.freeze(2)
    play.commit("train/0/2", 3)
    assert of(c.HoldServers, play.hear(e.StopRequested("enough"))) == [], "one at a time"
    play.write(2)
    out = play.publish()
    assert not play.job.outcome and [x.at for x in of(c.HoldServers, out)] == [0]
    play.save()
    assert play.job.reason == "enough; the checkpoint holds version 9"


def test_a_stop_while_going_back_leaves_the_checkpoint_that_all_go_back_to() -> None:
    play = saved_at_4()
    play.end(PS1, PREEMPTED)
    out = play.hear(e.StopRequested("enough"))
    assert out == [c.FinishJob("stopped", "enough; the checkpoint holds version 4")]
    assert play.job.checkpoint == "/c/version-4"


def test_a_stop_while_going_back_to_the_beginning_says_what_that_means() -> None:
    play = Play(records=40)
    play.join_all()
    play.commit("train/0/0", 1)
    play.end(PS0, PREEMPTED)
    out = play.hear(e.StopRequested("enough"))
    assert out == [c.FinishJob("stopped", "enough; the trained values are lost with a server")]


def test_a_server_lost_while_a_stop_is_saved_ends_in_the_checkpoint_before() -> None:
    play = saved_at_4()
    play.hear(e.StopRequested("enough"))
    play.end(PS1, PREEMPTED)
    assert not play.job.outcome
    play.join(PS1)
    play.restored(PS0)
    play.save()
    assert play.job.outcome == "stopped"
    assert play.job.reason == "enough; the checkpoint holds version 4"


# The journal.


@pytest.mark.parametrize("when", ["going back", "writing", "publishing", "leaving"])
def test_the_state_survives_the_journal_and_its_written_form(when: str) -> None:
    play = saved_at_4()
    if when == "going back":
        play.end(PS1, PREEMPTED)
    elif when == "leaving":
        play.hear(e.ReplicaLeaving(PS1))
    else:
        play.commit("train/0/2", 2)
        play.hold(2, c=2)
        play.freeze(2)
        if when == "publishing":
            play.write(2)
    assert play.replayed() == play.job
    assert STATE.validate_json(STATE.dump_json(play.job)) == play.job


def test_a_master_that_comes_back_tells_servers_again_what_they_have_to_write() -> None:
    play = saved_at_4()
    play.commit("train/0/2", 2)
    play.hold(2, c=2)
    play.freeze(2)
    play.hear(e.ServerWrote(PS0, 2, "f0"))
    play.hear(e.MasterStarted(((PS0, play.uid(PS0)), (PS1, play.uid(PS1)), (W0, play.uid(W0)))))
    assert of(c.CutServers, play.join(PS0)) == [], "its part is known to be written"
    assert of(c.CutServers, play.join(PS1)) == [c.CutServers(2, "save", PS1)]
    play.hear(e.ServerWrote(PS1, 2, "f1"))
    play.publish()
    assert play.job.servers.checkpoints.newest.position.version == 8


def test_recovery_is_counted_until_anything_moves_again() -> None:
    play = saved_at_4()
    play.end(PS1, PREEMPTED)
    lost = play.now
    play.join(PS1)
    play.restored(PS0)
    play.commit("train/0/1", 2)
    recovery = play.job.recoveries[-1]
    assert recovery.server and recovery.replica == PS1 and recovery.seconds == play.now - lost
    assert W1 not in play.job.replicas.replicas, "no worker was replaced for it"
