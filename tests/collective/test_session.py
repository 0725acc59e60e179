"""A worker's side of an all-reduce job: which world it is in, what it confirms, what it never goes back to."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.collective.session import Todo, WorldSession
from elasticdl.wire import control_pb2 as pb

ME, OTHER = "elasticdl-j-worker-0", "elasticdl-j-worker-1"
GRACE_SECONDS = 30.0


def session() -> WorldSession:
    return WorldSession(ME, "i", GRACE_SECONDS, "torch 2")


def proposal(generation: int, *members: str, urgent: bool = False) -> pb.ToReplica:
    return pb.ToReplica(
        proposal=pb.Proposal(generation=generation, members=members or (ME, OTHER), urgent=urgent, reason="a change")
    )


def start(generation: int, *members: str, state: tuple[int, int] = (0, 0), **more: Any) -> pb.ToReplica:
    name = pb.StateName(generation=state[0], step=state[1])
    return pb.ToReplica(start=pb.Start(generation=generation, members=members or (ME, OTHER), state=name, **more))


def stored(generation: int, key: str, value: bytes) -> pb.ToReplica:
    return pb.ToReplica(stored=pb.Stored(generation=generation, key=key, value=value))


def training(generation: int = 1) -> WorldSession:
    """In a world that stands."""
    it = session()
    it.receive(proposal(generation))
    it.world.confirm()
    it.receive(start(generation))
    it.enter()
    it.form(pb.Formed())
    return it


def kinds(messages: list[pb.FromReplica]) -> list[str | None]:
    return [m.WhichOneof("body") for m in messages]


# Into a world.


def test_a_proposal_is_confirmed_once_and_the_world_built_when_it_starts() -> None:
    it = session()
    assert it.todo() is Todo.WAIT
    it.receive(proposal(1))
    assert it.todo() is Todo.CONFIRM
    (confirmed,) = it.world.confirm()
    assert (confirmed.confirmed.generation, confirmed.confirmed.state.step) == (1, 0)
    assert it.todo() is Todo.WAIT
    it.receive(start(1, state=(0, 0)))
    assert it.todo() is Todo.BUILD
    assert it.enter().generation == 1
    assert it.hello().hello.generation == 1
    (formed,) = it.form(pb.Formed(build_seconds=0.25, copy_seconds=0.5, copied_bytes=100))
    assert (formed.formed.build_seconds, formed.formed.copy_seconds, formed.formed.copied_bytes) == (0.25, 0.5, 100)
    assert it.todo() is Todo.TRAIN and it.world.rank == 0


def test_a_state_has_its_name_only_once_all_of_it_is_there() -> None:
    it = session()
    it.receive(proposal(4))
    it.world.confirm()
    it.receive(start(4, state=(3, 70), copies={ME: OTHER}))
    it.enter()
    assert it.world.state == (0, 0) and it.hello().hello.state.step == 0
    it.form(pb.Formed())
    assert it.world.state == (3, 70)
    it.commit(0.5, 0.1, stop=False)
    assert it.world.state == (4, 71)


def test_a_copied_state_has_its_name_even_if_the_world_is_never_formed() -> None:
    """Otherwise a world that is called off after the copy would lead to repeated steps."""
    it = session()
    it.receive(proposal(4))
    it.world.confirm()
    it.receive(start(4, state=(3, 70), copies={ME: OTHER}))
    it.enter()
    it.loaded(records=2240)
    it.world.leave(pb.Broken(error="connection reset", suspects=[OTHER]))
    it.receive(proposal(5, ME, urgent=True))
    (message,) = it.world.confirm()
    held = message.confirmed.state
    assert (held.generation, held.step, held.records) == (3, 70, 2240)


def test_the_number_of_trained_records_is_sent_with_every_state() -> None:
    it = training()
    it.commit(0.5, 0.1, stop=False, records=24)
    assert it.pulse(1.0).pulse.records == it.hello().hello.state.records == 24


def test_a_repeated_proposal_is_confirmed_again() -> None:
    """The first confirmation may have been lost with a stream."""
    it = session()
    it.receive(proposal(1))
    it.world.confirm()
    it.receive(proposal(1))
    assert it.todo() is Todo.CONFIRM


def test_a_start_of_a_world_that_was_not_confirmed_waits_for_the_confirmation() -> None:
    it = session()
    it.receive(start(2))
    assert it.todo() is Todo.WAIT
    it.receive(proposal(2))
    assert it.todo() is Todo.CONFIRM


def test_a_worker_outside_the_proposed_world_waits() -> None:
    it = session()
    it.receive(proposal(1, OTHER))
    assert it.todo() is Todo.WAIT


# Fencing.


def test_messages_of_older_generations_are_ignored() -> None:
    it = session()
    it.receive(proposal(5))
    it.world.confirm()
    for old in (proposal(4, ME), start(4, ME), stored(4, "k", b"old")):
        it.receive(old)
    assert it.todo() is Todo.WAIT
    assert it.world.stored_for(5) == {} and it.world.stored_for(4) == {}
    it.receive(start(5))
    assert it.todo() is Todo.BUILD


def test_a_start_that_a_newer_proposal_has_overtaken_is_not_built() -> None:
    it = session()
    it.receive(proposal(1))
    it.world.confirm()
    it.receive(start(1))
    it.receive(proposal(2, urgent=True))
    assert it.todo() is Todo.CONFIRM
    it.world.confirm()
    assert it.todo() is Todo.WAIT


def test_a_world_that_was_left_is_never_entered_again() -> None:
    it = training(1)
    it.world.leave()
    it.receive(proposal(1))
    it.receive(start(1))
    assert it.todo() is Todo.WAIT
    assert it.hello().hello.generation == 0


def test_a_world_that_broke_is_reported_again_when_the_master_starts_it_again() -> None:
    it = training(1)
    (broken,) = it.world.leave(pb.Broken(error="connection reset", suspects=[OTHER]))
    assert (broken.broken.generation, list(broken.broken.suspects)) == (1, [OTHER])
    assert it.receive(start(1)) == [broken]
    assert it.todo() is Todo.WAIT


def test_messages_of_a_master_that_has_a_successor_are_ignored() -> None:
    it = session()
    it.receive(pb.ToReplica(welcome=pb.Welcome(master_epoch=3)))
    it.receive(pb.ToReplica(welcome=pb.Welcome(master_epoch=2)))
    it.receive(pb.ToReplica(shutdown=pb.Shutdown(reason="over")))
    it.receive(proposal(9))
    assert it.todo() is Todo.WAIT
    it.receive(pb.ToReplica(welcome=pb.Welcome(master_epoch=3)))
    it.receive(proposal(9))
    assert it.todo() is Todo.CONFIRM


# Out of a world.


def test_an_urgent_proposal_calls_off_the_step() -> None:
    it = training()
    it.receive(proposal(2, urgent=True))
    assert it.called_off == "a change"
    assert it.todo() is Todo.LEAVE
    assert it.world.leave() == []
    assert it.todo() is Todo.CONFIRM


def test_any_other_proposal_waits_until_all_members_stop_at_the_same_step() -> None:
    it = training()
    it.receive(proposal(2))
    assert it.called_off == "" and it.world.superseded and it.todo() is Todo.TRAIN
    it.commit(0.5, 0.1, stop=True)
    assert it.todo() is Todo.LEAVE
    it.world.leave()
    (confirmed,) = it.world.confirm()
    assert (confirmed.confirmed.state.generation, confirmed.confirmed.state.step) == (1, 1)


def test_a_member_that_does_not_know_the_proposal_stops_with_the_others_and_waits_for_it() -> None:
    it = training()
    assert not it.world.superseded
    it.commit(0.5, 0.1, stop=True)
    assert it.todo() is Todo.LEAVE
    it.world.leave()
    assert it.todo() is Todo.WAIT
    it.receive(proposal(2))
    assert it.todo() is Todo.CONFIRM


def test_when_every_step_is_done_any_proposal_ends_the_world_at_once() -> None:
    it = training()
    it.receive(proposal(2))
    assert it.todo(idle=True) is Todo.LEAVE


def test_a_leaving_member_trains_until_a_world_without_it_starts() -> None:
    it = training()
    assert kinds(it.leave()) == ["leaving"]
    assert it.todo() is Todo.TRAIN and it.hello().hello.capacity == 0
    it.receive(proposal(2, OTHER))
    assert it.todo() is Todo.TRAIN
    it.commit(0.5, 0.1, stop=True)
    assert it.todo() is Todo.LEAVE
    it.world.leave()
    assert it.todo() is Todo.END


def test_a_leaving_member_stays_for_one_more_world_that_needs_its_state() -> None:
    it = training()
    it.leave()
    it.receive(proposal(2, OTHER, ME))
    it.commit(0.5, 0.1, stop=True)
    it.world.leave()
    assert it.todo() is Todo.CONFIRM
    it.world.confirm()
    assert it.todo() is Todo.WAIT


def broken_under_a_leaver() -> WorldSession:
    it = training()
    it.commit(0.5, 0.1, stop=False)
    it.leave()
    it.receive(proposal(2, OTHER))
    assert kinds(it.world.leave(pb.Broken(error="connection reset", suspects=[OTHER]))) == ["broken"]
    return it


def test_a_leaving_worker_whose_world_broke_waits_until_another_world_trains() -> None:
    it = broken_under_a_leaver()
    assert it.todo() is Todo.WAIT, "the other one may be dead, and this one all that is left"
    it.receive(proposal(3, OTHER, urgent=True))
    assert it.todo() is Todo.WAIT, "the master may not know it yet"
    it.receive(start(3, OTHER, state=(1, 1)))
    assert it.todo() is Todo.END


def test_a_leaving_worker_whose_world_broke_saves_the_only_copy_of_the_state() -> None:
    it = broken_under_a_leaver()
    it.receive(save(1))
    it.receive(pb.ToReplica(proposal=pb.Proposal(generation=3, urgent=True, reason="the other one is gone")))
    assert it.todo() is Todo.SAVE
    it.saving.begin(it.world.state[1])
    it.receive(pb.ToReplica(settle=pb.Settle(cut=1, published=True)))
    assert it.todo() is Todo.END, "no world trains, and nothing is lost"


def test_a_leaving_worker_that_already_knows_the_next_world_does_not_wait() -> None:
    it = training()
    it.commit(0.5, 0.1, stop=False)
    it.leave()
    it.receive(proposal(2, OTHER, urgent=True))
    it.receive(start(2, OTHER, state=(1, 1)))
    assert it.todo() is Todo.LEAVE
    it.world.leave()
    assert it.todo() is Todo.END


def test_a_leaving_worker_in_no_world_ends_at_once() -> None:
    it = session()
    it.leave()
    assert it.todo() is Todo.END


def test_a_shutdown_ends_everything() -> None:
    it = training()
    it.receive(pb.ToReplica(shutdown=pb.Shutdown(reason="the job is over")))
    assert it.todo() is Todo.END and it.called_off == "the job is over"


@pytest.mark.parametrize(("away", "over"), [(GRACE_SECONDS - 1, False), (GRACE_SECONDS + 1, True)])
def test_a_worker_without_a_master_for_longer_than_the_grace_period_is_cut_off(away: float, over: bool) -> None:
    it = training()
    it.connected()
    it.disconnected(100.0)
    it.disconnected(100.0 + away / 2)  # it still is
    assert it.cut_off(100.0 + away) is over
    it.connected()
    assert not it.cut_off(1000.0)


# The store.


def test_values_that_others_stored_early_are_kept_for_the_group() -> None:
    it = session()
    it.receive(proposal(3))
    it.world.confirm()
    it.receive(stored(3, "a", b"1"))
    it.receive(start(3))
    it.enter()
    it.receive(stored(3, "b", b"2"))
    assert it.world.stored_for(3) == {"a": b"1", "b": b"2"}


def test_while_a_group_is_built_a_new_stream_repeats_what_this_worker_stored() -> None:
    it = session()
    it.receive(proposal(3))
    it.world.confirm()
    it.receive(start(3))
    it.enter()
    (message,) = it.world.store(3, "me", b"address")
    welcome = pb.ToReplica(welcome=pb.Welcome(master_epoch=1))
    assert it.receive(welcome) == [message]
    it.form(pb.Formed())
    assert it.receive(welcome) == [pb.FromReplica(formed=pb.Formed(generation=3))], (
        "the master may not have received it"
    )


def test_nothing_is_stored_for_a_world_that_was_left() -> None:
    it = training(3)
    it.world.leave()
    assert it.world.store(3, "me", b"address") == []


# Saving, evaluating, exporting.


def save(cut: int, at: int = 0) -> pb.ToReplica:
    return pb.ToReplica(save=pb.Save(cut=cut, directory="d", at=at))


def test_a_leaving_worker_ends_once_its_checkpoint_is_settled() -> None:
    it = training()
    it.receive(save(1))
    it.leave()
    it.receive(proposal(2, "b"))
    it.commit(0.5, 0.1, stop=True)
    it.world.leave()
    assert it.todo() is Todo.SAVE, "it was asked for before it went"
    it.saving.begin(it.world.state[1])
    assert it.todo() is Todo.WAIT
    it.saving.saved(1, "{}", "")
    assert it.todo() is Todo.WAIT, "the master may not have received it"
    it.receive(pb.ToReplica(settle=pb.Settle(cut=1, published=True)))
    assert it.todo() is Todo.END


def test_a_save_waits_for_its_step() -> None:
    it = training()
    it.receive(save(1, at=2))
    it.commit(0.5, 0.1, stop=False)
    assert it.todo() is Todo.TRAIN
    it.commit(0.5, 0.1, stop=False)
    assert it.todo() is Todo.SAVE
    due = it.saving.due(it.world.state[1])
    assert due is not None and due.cut == 1


def test_every_hello_reports_a_written_checkpoint_until_it_is_settled() -> None:
    it = training()
    it.receive(save(1))
    it.saving.begin(it.world.state[1])
    (wrote,) = it.saving.saved(1, '{"step": 1}', "")
    assert [w.cut for w in it.hello().hello.wrote] == [1]
    assert it.receive(save(1)) == [wrote], "asked again, it does not write again"
    assert it.todo() is Todo.TRAIN
    it.receive(pb.ToReplica(settle=pb.Settle(cut=1, published=True)))
    assert not it.hello().hello.wrote


def test_a_repeated_request_does_not_restart_a_checkpoint_that_is_being_written() -> None:
    """After a Hello the master repeats its request: it does not know how far the worker is."""
    it = training()
    it.receive(save(1))
    it.saving.begin(it.world.state[1])
    assert it.receive(save(1)) == [] and it.todo() is Todo.TRAIN
    (wrote,) = it.saving.saved(1, '{"step": 1}', "")
    assert it.receive(save(1)) == [wrote] and it.todo() is Todo.TRAIN


def test_evaluations_are_remembered_for_a_master_that_missed_them() -> None:
    it = training()
    for version in range(20):
        assert it.evaluated(version, "{}", send=False) == []
    assert [e.version for e in it.hello().hello.evaluations] == list(range(4, 20))
    assert kinds(it.evaluated(19, "{}", send=True)) == ["evaluated"]


def test_evaluations_of_steps_that_are_lost_are_forgotten() -> None:
    it = training()
    it.evaluated(10, "{}", send=True)
    it.evaluated(20, "{}", send=True)
    it.world.leave()
    it.receive(proposal(2))
    it.world.confirm()
    it.receive(start(2, state=(0, 15), directory="d"))
    it.enter()
    it.form(pb.Formed())
    assert [e.version for e in it.hello().hello.evaluations] == [10]


def test_the_next_world_repeats_evaluations_that_the_master_did_not_receive() -> None:
    it = training()
    it.evaluated(5, "{}", send=False)
    it.evaluated(10, "{}", send=False)
    it.world.leave()
    it.receive(proposal(2))
    it.world.confirm()
    it.receive(start(2, state=it.world.state))
    it.enter()
    formed, again = it.form(pb.Formed(), resend={10})
    assert formed.formed.generation == 2 and again.evaluated.version == 10


def test_the_model_is_exported_when_every_step_is_done() -> None:
    it = training()
    it.receive(pb.ToReplica(export=pb.Export(directory="model", audit=True)))
    assert it.todo() is Todo.TRAIN
    assert it.todo(idle=True) is Todo.EXPORT
    assert it.saving.export is not None
    (exported,) = it.saving.export_done(it.saving.export, "", "all is well")
    assert exported.exported.audit == "all is well"
    assert it.hello().hello.exported.directory == "model"
    assert it.todo(idle=True) is Todo.WAIT
    assert it.receive(pb.ToReplica(export=pb.Export(directory="model", audit=True))) == [exported]


def test_the_answer_to_one_export_request_does_not_answer_a_later_one() -> None:
    it = training()
    first, second = (pb.Export(directory="model", number=number) for number in (1, 3))
    it.receive(pb.ToReplica(export=first))
    it.receive(pb.ToReplica(export=second))  # while the first is being carried out
    (late,) = it.saving.export_done(first, "another process has begun", "")
    assert (late.exported.number, it.hello().hello.exported.number) == (1, 1)
    assert it.todo(idle=True) is Todo.EXPORT and it.saving.export == second
    (exported,) = it.saving.export_done(second, "", "")
    assert it.todo(idle=True) is Todo.WAIT
    assert it.receive(pb.ToReplica(export=second)) == [exported]
    assert it.receive(pb.ToReplica(export=pb.Export(directory="model", number=4))) == []
    assert it.todo(idle=True) is Todo.EXPORT


def test_a_pulse_reports_what_the_training_thread_does_and_for_how_long() -> None:
    it = training()
    it.activity.begin("compute", 10.0)
    for seconds in (0.1, 0.3, 0.2):
        it.commit(0.5, seconds, stop=False)
    pulse = it.pulse(12.5).pulse
    assert (pulse.generation, pulse.step, pulse.phase, pulse.seconds) == (1, 3, "compute", 2.5)
    assert pulse.has_loss and pulse.loss == 0.5 and pulse.step_seconds == 0.2


def test_a_later_proposal_does_not_revive_a_world_that_was_called_off() -> None:
    it = training(3)
    it.receive(proposal(4, urgent=True))
    it.receive(proposal(5))
    assert it.called_off and it.todo() is Todo.LEAVE
    it.world.leave()
    assert not it.called_off and it.todo() is Todo.CONFIRM


def test_a_world_is_not_entered_if_another_is_proposed_at_the_last_moment() -> None:
    it = session()
    it.receive(proposal(1))
    it.world.confirm()
    it.receive(start(1))
    assert it.todo() is Todo.BUILD
    it.receive(proposal(2))
    assert it.enter() is None and it.world.generation == 0 and it.todo() is Todo.CONFIRM
