"""Workers started by hand: they take part as they come, and are not replaced."""

from __future__ import annotations

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.replicas import PREEMPTED
from elasticdl.strategies.parameter_servers.core.machine import BY_HAND
from tests.core.playing import PS0, STATE, W1, W2, Play, of


def by_hand(**terms: object) -> Play:
    play = Play(workers=2, by_hand=True, **terms)  # type: ignore[arg-type]
    play.join(PS0)
    return play


def come(play: Play, index: int) -> list[c.Command]:
    return play.hear(e.WorkerCame(index))


def test_no_worker_is_launched_and_one_that_comes_trains_everything() -> None:
    play = by_hand()
    assert [x.role for x in of(c.LaunchReplica, play.all)] == ["ps"]
    assert of(c.Announce, come(play, 1)) == [c.Announce(f"{W1} was started by hand")]
    assert [g.worker for g in of(c.GrantLease, play.join(W1))] == [W1, W1]
    play.train_out()
    assert (play.job.outcome, play.job.shards.done_records) == ("succeeded", 8)


def test_one_that_is_gone_is_not_replaced_and_the_next_gets_its_shards() -> None:
    play = by_hand()
    come(play, 1)
    play.join(W1)
    play.commit("train/0/0", 1)
    play.end(W1, PREEMPTED, "silent for 30 s")
    assert [x.role for x in of(c.LaunchReplica, play.all)] == ["ps"]
    assert not play.job.outcome and play.job.replicas.losses == 0
    come(play, 2)
    granted = {g.shard: g.worker for g in of(c.GrantLease, play.join(W2))}
    assert granted == {"train/0/0": W2, "train/0/1": W2}
    assert play.job.shards.leased["train/0/0"].next_batch == 1, "it goes on where the other one was"


def test_one_that_was_killed_may_be_started_again_under_its_number() -> None:
    play = by_hand()
    come(play, 1)
    play.join(W1)
    play.end(W1, PREEMPTED, "worker 1 was started again")
    come(play, 1)
    assert [g.worker for g in of(c.GrantLease, play.join(W1))] == [W1, W1]
    play.train_out()
    assert play.job.outcome == "succeeded"


def test_one_that_is_there_is_not_replaced_by_another_of_its_number() -> None:
    play = by_hand()
    come(play, 1)
    play.join(W1)
    assert come(play, 1) == []
    assert not play.job.replicas.admits(W1, "another process")


def test_a_master_that_comes_back_still_knows_them() -> None:
    play = by_hand()
    come(play, 1)
    play.join(W1)
    uids = tuple((r, play.uid(r)) for r in (PS0, W1))
    play.hear(e.MasterStarted(uids))
    assert play.job.replicas.admits(W1, play.incarnation(W1))
    assert STATE.validate_json(STATE.dump_json(play.job)) == play.job


def test_their_number_is_not_the_masters_to_change() -> None:
    play = by_hand()
    assert play.job.refused("worker", 3) == BY_HAND
    assert of(c.Announce, play.hear(e.ScaleRequested("worker", 3))) == [
        c.Announce(f"Cannot scale worker to 3: {BY_HAND}")
    ]
