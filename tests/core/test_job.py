"""The whole job: events in, commands out."""

from __future__ import annotations

import math

import pytest

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.checkpoints import Schedule
from elasticdl.core.machine import NOWHERE
from elasticdl.core.plan import EpochDone, Position
from elasticdl.core.replicas import CRASHED, FINISHED, OUT_OF_MEMORY, PREEMPTED, Budget
from elasticdl.strategies.parameter_servers.core.machine import IN_TOUCH_SECONDS
from tests.core.invariants import check_clock
from tests.core.playing import PS0, PS1, STATE, W0, W1, W2, Play, of


def test_training_starts_when_the_last_server_has_joined() -> None:
    play = Play(servers=2)
    play.join(W0)
    play.join(PS0)
    assert of(c.GrantLease, play.all) == []
    out = play.join(PS1)
    assert c.TellMembers() in out, "workers learn where the servers are"
    assert [g.shard for g in of(c.GrantLease, out)] == ["train/0/0", "train/0/1"]


def test_a_job_without_validation_data_ends_with_its_last_batch() -> None:
    play = Play()
    play.join_all()
    play.train_out()
    assert play.all[-1] == c.FinishJob("succeeded", "all 8 records are trained")
    assert (play.job.outcome, play.job.reason) == ("succeeded", "all 8 records are trained")
    assert play.hear(e.TimePassed()) == [], "nothing is decided after the end"


def test_max_step_ends_the_job_early() -> None:
    play = Play(records=100, max_step=3)
    play.join_all()
    play.train_out()
    assert play.job.outcome == "succeeded" and play.job.shards.done_records == 6


def test_every_epoch_trains_every_record() -> None:
    play = Play(epochs=3)
    play.join_all()
    play.train_out()
    assert {epoch: d.records for epoch, d in play.job.shards.done.items()} == {0: 8, 1: 8, 2: 8}
    assert [x.epoch for x in of(c.CloseEpoch, play.all)] == [0, 1, 2]


def test_the_model_is_exported_by_one_worker_after_everything_else() -> None:
    play = Play(export=True, workers=2)
    play.join_all()
    play.train_out()
    assert [s.id for s in play.job.shards.leased.values()] == ["export/0/0"]
    assert not play.job.outcome
    play.complete("export/0/0", "/models/m")
    assert play.job.closing.exported == "/models/m" and play.job.outcome == "succeeded"


def test_a_lost_exporter_is_followed_by_another() -> None:
    play = Play(export=True, workers=2)
    play.join_all()
    play.train_out()
    exporter = play.job.shards.leased["export/0/0"].worker
    assert [(g.shard, g.attempt) for g in of(c.GrantLease, play.end(exporter, PREEMPTED))] == [("export/0/0", 2)]


# Deaths and their causes.


def test_a_killed_worker_is_replaced_and_its_shard_goes_on_where_it_was() -> None:
    play = Play(workers=1)
    play.join_all()
    play.commit("train/0/0", 1)
    assert [(x.role, x.index) for x in of(c.LaunchReplica, play.end(W0, PREEMPTED))] == [("worker", 1)]
    play.join(W1)
    assert play.job.shards.leased["train/0/0"].next_batch == 1
    play.commit("train/0/0", 2)
    (recovery,) = play.job.recoveries
    assert recovery.replica == W0 and recovery.seconds == 2.0


def test_a_traceback_in_the_first_batch_fails_the_job_at_once() -> None:
    play = Play()
    play.join_all()
    out = play.hear(e.BatchFailed(W0, "train/0/0", 1, 0, "Traceback\nValueError: 7"))
    assert out[-1] == c.FinishJob("failed", "the first batch failed:\nTraceback\nValueError: 7")


def test_a_model_that_the_servers_refuse_ends_the_job_with_their_reason_and_blames_no_record() -> None:
    play = Play()
    play.join_all()
    out = play.hear(e.WorkerUnfit(W0, "the servers rejected this model: its tables changed"))
    assert out == [c.FinishJob("failed", "the servers rejected this model: its tables changed")]


def test_a_worker_that_dies_of_its_batch_costs_no_budget_but_the_batch_a_strike() -> None:
    play = Play(budget=Budget(crashes=0), max_bad_records=1)
    play.join_all()
    out = play.end(W0, CRASHED, "killed by SIGSEGV")
    assert of(c.FinishJob, out) == [] and of(c.LaunchReplica, out)
    assert [(s.id, s.strikes) for s in play.job.shards.waiting] == [("train/0/0", 1), ("train/0/1", 0)]


def test_a_worker_that_dies_with_nothing_to_do_costs_its_budget() -> None:
    play = Play(records=2, workers=2, budget=Budget(crashes=0), max_bad_records=1)
    play.join_all()
    assert [x.outcome for x in of(c.FinishJob, play.end(W1, CRASHED))] == ["failed"]


def test_a_worker_that_was_out_of_touch_when_it_crashed_casts_no_blame() -> None:
    play = Play(budget=Budget(crashes=0), max_bad_records=1)
    play.join_all()
    play.hear(e.ReplicaDropped(W0, f"inc-{W0}"))
    play.now += IN_TOUCH_SECONDS
    play.end(W0, CRASHED, "killed by SIGSEGV")
    assert not play.job.outcome
    assert {s.strikes for s in play.job.shards.waiting} == {0}


def test_a_stream_that_breaks_with_the_process_does_not_hide_the_blame() -> None:
    play = Play(max_bad_records=1)
    play.join_all()
    play.hear(e.ReplicaDropped(W0, f"inc-{W0}"))
    play.end(W0, CRASHED, "killed by SIGSEGV")
    assert play.job.shards.waiting[0].strikes == 1


def test_memory_that_runs_out_in_the_first_batch_is_raised_before_a_worker_is_blamed() -> None:
    play = Play(budget=Budget(crashes=0))
    play.join_all()
    for index, factor in enumerate([1.5, 2.25]):
        out = play.end(f"elasticdl-j-worker-{index}", OUT_OF_MEMORY)
        assert [x.memory_factor for x in of(c.LaunchReplica, out)] == [factor]
        play.join(f"elasticdl-j-worker-{index + 1}")
    assert [x.outcome for x in of(c.FinishJob, play.end(W2, OUT_OF_MEMORY))] == ["failed"]


def test_a_worker_that_left_when_asked_to_is_preempted_whatever_its_exit_code() -> None:
    play = Play(budget=Budget(crashes=0))
    play.join_all()
    play.hear(e.ReplicaLeaving(W0))
    out = play.end(W0, FINISHED, "exit code 0")
    assert not play.job.outcome and of(c.LaunchReplica, out)


def test_exit_zero_without_being_asked_is_a_failure() -> None:
    play = Play(budget=Budget(crashes=0))
    play.join_all()
    assert [x.outcome for x in of(c.FinishJob, play.end(W0, FINISHED, "exit code 0"))] == ["failed"]


def test_a_job_that_failed_asks_for_nothing_more() -> None:
    play = Play(budget=Budget(crashes=0))
    play.join_all()
    out = play.end(W0, FINISHED)
    assert isinstance(out[-1], c.FinishJob) and of(c.LaunchReplica, out) == []


def test_a_hello_of_another_process_under_a_taken_name_is_ignored() -> None:
    play = Play()
    play.join_all()
    assert play.hear(e.ReplicaJoined(W0, "another process", "", (), 2)) == []


# Liveness is progress.


def test_a_worker_that_does_not_move_is_replaced() -> None:
    play = Play(budget=Budget(hang_seconds=100.0))
    play.join_all()
    play.commit("train/0/0", 1)
    assert play.job.deadline() == play.now + 100
    assert play.hear(e.TimePassed(), after=99.0) == []
    out = play.hear(e.TimePassed(), after=1.0)
    assert c.StopReplica(W0, "no batch finished for 100 s", 0.0) in out
    assert of(c.LaunchReplica, out) and not play.job.shards.leased
    check_clock(play.job, play.now)


def test_a_batch_that_hangs_its_workers_is_blamed_like_one_that_crashes_them() -> None:
    play = Play(budget=Budget(hang_seconds=100.0, crashes=0), max_bad_records=1)
    play.join_all()
    play.commit("train/0/0", 1)
    out = play.hear(e.TimePassed(), after=100.0)
    assert c.Announce("Batch 1 of shard train/0/0 failed (1 of 2 times)") in out
    play.join(W1)
    assert [s.id for s in play.job.shards.leased.values()] == ["train/0/0"], "a suspect is alone"
    out = play.hear(e.TimePassed(), after=100.0)
    assert c.Announce("Searching shard train/0/0 for a bad record (candidates: 2)") in out
    play.join(W2)
    assert {s.kind for s in play.job.shards.leased.values()} == {"probe"}
    play.hear(e.TimePassed(), after=100.0)  # a probe that does not end has met it
    assert of(c.IdentifyRecord, play.all) == [c.IdentifyRecord("train/0/0", 0, 2)]
    out = play.hear(e.RecordIdentified("train/0/0", 2, 2, "record 2 of a.rec"))
    assert c.Announce("Skipping record 2 of a.rec: it cannot be trained (1 so far)") in out
    assert not play.job.outcome


def test_a_first_batch_that_hangs_is_given_a_second_chance() -> None:
    play = Play(budget=Budget(hang_seconds=100.0))
    play.join_all()
    out = play.hear(e.TimePassed(), after=100.0)
    assert of(c.FinishJob, out) == [], "the machine may have been busy: no code raised"


def test_a_worker_that_waits_for_work_is_not_hung() -> None:
    play = Play(records=2, workers=2, budget=Budget(hang_seconds=100.0))
    play.join_all()
    play.hear(e.TimePassed(), after=50.0)
    assert play.job.shards.idle_since(W1) is None


def test_no_worker_is_hung_while_the_servers_write() -> None:
    play = Play(budget=Budget(hang_seconds=100.0))
    play.join_all()
    play.commit("train/0/0", 1)
    play.hear(e.StopRequested("enough"))
    play.hold(1, a=1)
    assert play.job.deadline() is None, "else the master would spin until the disk is done"
    assert play.hear(e.TimePassed(), after=1000.0) == []


def test_a_barrier_that_stops_all_is_lifted_before_a_worker_is_called_hung() -> None:
    play = Play(servers=2, validation_records=4, evaluation_steps=1, budget=Budget(hang_seconds=100.0))
    play.join_all()
    play.commit("train/0/0", 1)
    play.held(PS0, 1, a=2)
    out = play.hear(e.TimePassed(), after=100.0)
    assert [x.cut for x in of(c.ReleaseServers, out)] == [1] and of(c.StopReplica, out) == []
    check_clock(play.job, play.now)
    assert of(c.StopReplica, play.hear(e.TimePassed(), after=100.0)), "now it is"


def test_a_worker_that_comes_back_after_a_long_silence_of_the_master_is_not_called_hung() -> None:
    play = Play(budget=Budget(hang_seconds=100.0))
    play.join_all()
    play.hear(e.MasterStarted(((PS0, f"uid-{PS0}"), (W0, f"uid-{W0}"))), after=500.0)
    play.join(PS0)
    play.join(W0, e.Holding("train/0/0", 1, 0), e.Holding("train/0/1", 1, 0))
    assert of(c.StopReplica, play.hear(e.TimePassed())) == []


# Evaluation.


def test_an_evaluation_round_is_pinned_spread_summed_up_and_reported() -> None:
    play = Play(validation_records=4, evaluation_steps=2)
    out = play.join_all()
    assert c.HoldServers(1, 2) in out, "told ahead, so that servers stop exactly there"
    play.commit("train/0/0", 2)
    assert c.CutServers(1, "view") in play.hold(1)
    out = play.freeze(1)
    assert c.ReleaseServers(1) in out
    play.complete("evaluate/1/0", '"a"')
    out = play.complete("evaluate/1/1", '"b"')
    assert play.job.shards.leased["summarize/1/0"].payload == '["\\"a\\"", "\\"b\\""]'
    out = play.complete("summarize/1/0", '{"accuracy": 0.5}')
    assert c.ReportMetrics(2, '{"accuracy": 0.5}') in out and c.DropView(1) in out


def test_a_round_taken_late_is_labelled_with_the_version_it_really_has() -> None:
    play = Play(validation_records=2, evaluation_steps=1)
    play.join_all()
    play.commit("train/0/0", 1)
    play.hold(1, a=2, b=1)
    play.freeze(1)
    play.commit("train/0/0", 2)
    play.complete("evaluate/1/0")
    out = play.complete("summarize/1/0", "{}")
    assert of(c.ReportMetrics, out)[0].version == 3, "two of its batches were applied and not reported yet"


def test_the_job_ends_only_when_the_last_version_is_evaluated() -> None:
    play = Play(records=4, validation_records=2)
    play.join_all()
    play.train_out()
    assert not play.job.outcome
    play.hold(1)
    play.freeze(1)
    play.complete("evaluate/1/0")
    play.complete("summarize/1/0", "{}")
    assert play.job.outcome == "succeeded" and play.job.evaluation.done == [(2, "{}")]


def test_a_torn_batch_is_trained_again_before_the_round_and_the_cut_retried() -> None:
    play = Play(records=16, servers=2, workers=1, validation_records=2, evaluation_steps=1)
    play.join_all()
    play.held(PS0, 1, a=1)
    play.end(W0, PREEMPTED)
    out = play.held(PS1, 1, a=0)
    assert [x.cut for x in of(c.ReleaseServers, out)] == [1]
    play.join(W1)
    out = play.commit("train/0/0", 1)
    assert c.HoldServers(2, 0) in out
    assert c.CutServers(2, "view") in play.hold(2, a=1)


def test_a_torn_batch_that_stands_behind_another_shard_of_its_new_worker_does_not_block_the_cut() -> None:
    play = Play(records=16, servers=2, workers=2, validation_records=2, evaluation_steps=4)
    play.join(PS0)
    play.join(PS1)
    play.join(W0, capacity=1)  # a
    play.join(W1, capacity=2)  # b, c
    play.commit("train/0/1", 2)  # b is done, d follows c
    play.end(W0, PREEMPTED)
    play.commit("train/0/2", 2)  # c is done: its worker holds d, then a
    leases = sorted(play.job.shards.leased.values(), key=lambda s: s.turn)
    assert [s.id for s in leases] == ["train/0/3", "train/0/0"]
    play.held(PS0, 1, a=1, d=0)
    out = play.held(PS1, 1, a=0, d=0)
    assert of(c.AdvanceServers, out) == [] and of(c.ReleaseServers, out)


# Stopping.


def test_a_stop_saves_a_cut_publishes_it_and_then_ends() -> None:
    play = Play(servers=2)
    play.join_all()
    play.commit("train/0/0", 1)
    out = play.hear(e.StopRequested("Ctrl-C"))
    assert "Stopping the job (Ctrl-C); saving a checkpoint first" in of(c.Announce, out)[0].text
    assert c.HoldServers(1, 0) in out
    assert c.CutServers(1, "save") in play.hold(1, a=1, b=1)
    assert play.freeze(1) == [], "no server goes on"
    at = Position(2, (1, 0), {"train/0/0": (1, 2), "train/0/1": (1, 2)}, {0: EpochDone(2, 4)})
    assert play.write(1) == [c.PublishCheckpoint(1, at, ((PS0, "f0"), (PS1, "f1")), lasting=True)]
    assert not play.job.outcome, "the checkpoint does not exist before its manifest does"
    out = play.publish()
    assert play.job.checkpoint == "/c/version-2"
    assert out[-1] == c.FinishJob("stopped", "Ctrl-C; the checkpoint holds version 2")


def test_a_master_that_dies_before_the_manifest_is_written_writes_it_when_it_is_back() -> None:
    play = Play()
    play.join_all()
    play.commit("train/0/0", 1)
    play.hear(e.StopRequested("enough"))
    play.hold(1, a=1)
    play.freeze(1)
    publish = of(c.PublishCheckpoint, play.write(1))
    again = play.hear(e.MasterStarted(((PS0, f"uid-{PS0}"), (W0, f"uid-{W0}"))))
    assert of(c.PublishCheckpoint, again) == publish
    assert of(c.ReleaseServers, play.join(PS0)) == [], "the manifest is about this moment: no server goes on"
    play.publish()
    assert play.job.outcome == "stopped"


@pytest.mark.parametrize("where", ["server", "manifest"])
def test_a_checkpoint_that_cannot_be_written_fails_the_job_and_says_why(where: str) -> None:
    play = Play()
    play.join_all()
    play.commit("train/0/0", 1)
    play.hear(e.StopRequested("enough"))
    play.hold(1, a=1)
    play.freeze(1)
    play.write(1, "disk full" if where == "server" else "")
    if where == "manifest":
        play.publish("disk full")
    server = f"{PS0}: " if where == "server" else ""
    assert (play.job.outcome, play.job.reason) == ("failed", f"the checkpoint could not be written: {server}disk full")


def test_a_stop_without_a_place_for_checkpoints_ends_at_once() -> None:
    play = Play(schedule=Schedule(nowhere=True))
    play.join_all()
    play.commit("train/0/0", 1)
    assert play.hear(e.StopRequested("enough")) == [c.FinishJob("stopped", f"enough; {NOWHERE}")]


def test_a_stop_before_the_servers_are_there_ends_at_once() -> None:
    play = Play()
    assert play.hear(e.StopRequested("enough")) == [c.FinishJob("stopped", "enough; nothing was trained yet")]


def test_a_stop_before_the_first_batch_is_no_failure_though_there_is_nothing_to_save() -> None:
    play = Play()
    play.join_all()
    play.hear(e.StopRequested("enough"))
    play.hold(1, a=0)
    play.freeze(1)
    assert (play.job.outcome, play.job.reason) == ("stopped", "enough; nothing was trained yet")


def test_a_stop_takes_the_place_of_an_evaluation_that_is_being_prepared() -> None:
    play = Play(validation_records=2, evaluation_steps=4)
    play.join_all()
    play.commit("train/0/0", 1)
    out = play.hear(e.StopRequested("enough"))
    assert of(c.ReleaseServers, out)[0].cut == 1 and c.HoldServers(2, 0) in out
    assert play.hear(e.StopRequested("again")) == [], "said already"


def test_after_a_stop_only_torn_batches_are_trained() -> None:
    play = Play(records=40, servers=2)
    play.join_all()
    play.commit("train/0/0", 1)
    play.hear(e.StopRequested("enough"))
    play.end(W0, PREEMPTED)
    play.held(PS0, 1, a=2)
    assert of(c.ReleaseServers, play.held(PS1, 1, a=1))
    grants = of(c.GrantLease, play.join(W1))
    assert [g.shard for g in grants] == ["train/0/0", "train/0/1"], "both were begun; nothing fresh"
    assert c.HoldServers(2, 0) in play.commit("train/0/0", 2)


# The journal.


def test_replay_leads_to_the_same_state_and_so_does_its_written_form() -> None:
    play = Play(records=16, servers=2, workers=2, validation_records=4, evaluation_steps=2, max_bad_records=1)
    play.join_all()
    play.commit("train/0/0", 2)
    play.hear(e.BatchFailed(W0, "train/0/1", 1, 0, "error"))
    play.end(W1, PREEMPTED)
    play.hold(1, b=1)
    play.freeze(1)
    assert play.replayed() == play.job
    assert STATE.validate_json(STATE.dump_json(play.job)) == play.job


def test_the_replica_list_after_a_restart_is_the_only_source_of_commands() -> None:
    play = Play(workers=2)
    play.join_all()
    running = tuple((n, f"uid-{n}") for n in (PS0, W0, W1))
    assert play.hear(e.MasterStarted(running)) == [], "nothing is missing"
    out = play.hear(e.MasterStarted(running[:2]))
    assert [x.index for x in of(c.LaunchReplica, out)] == [2]
    assert "train/0/2" not in play.job.shards.leased or play.job.shards.leased["train/0/2"].worker != W1


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_survives_the_journal(loss: float) -> None:
    event = e.BatchesCommitted(W0, "train/0/0", 1, 1, loss)
    again = e.decode(*e.encode(event))
    assert isinstance(again, e.BatchesCommitted) and str(again.loss) == str(loss)


def test_every_event_has_a_written_form() -> None:
    some: list[e.Event] = [
        e.ReplicaStarted("a", "u"), e.ReplicaGone("a", "u", CRASHED, "why", ("x", "y")), e.MasterStarted((("a", "u"),)),
        e.ReplicaJoined("a", "i", "tcp://", (e.Holding("train/0/0", 1, 2, True, "r", 1),), 2, 3),
        e.ReplicaDropped("a", "i"),
        e.BatchesCommitted("a", "s", 1, 2, 0.25, 1), e.ShardCompleted("a", "s", 1, "r"),
        e.LeaseReturned("a", "s", 1, "why"),
        e.BatchFailed("a", "s", 1, 0, "Traceback"), e.ReplicaLeaving("a"), e.RecordIdentified("s", 1, 2, "n"),
        e.ServerHeld("a", 1, (("s", 2),), 3), e.ServerCut("a", 1), e.ServerWrote("a", 1, "p", "e"),
        e.ServerRestored("a", 2, "e"), e.CheckpointPublished(1, "d", "e"), e.StopRequested("why"), e.TimePassed(),
        e.WorkerUnfit("a", "why"), e.ScaleRequested("ps", 2), e.WorkerCame(1),
        e.ReplicaHeldUp("a", "u", "unschedulable", "no room"),
        e.WorldConfirmed("a", 3, (2, 7)), e.WorldBroken("a", 3, 7, "why", ("b",), "d"),
        e.WorldFormed("a", 3, 0.1, 0.2, 5),
        e.StepsCommitted("a", 3, 8, 0.5), e.ModelEvaluated("a", 8, "{}"), e.ModelExported("a", "d", "e", "x", 2),
        e.WorkerHung("a", "why"),
        e.RecordLeftOut("a", 17, "record 17 of f", "why"),
    ]  # fmt: skip
    assert {type(x) for x in some} == set(e.EVENTS.values()), "a new event needs its example here"
    assert [e.decode(*e.encode(x)) for x in some] == some
