"""Another number of servers or workers while a job runs: nothing is trained twice, no worker waits needlessly."""

from __future__ import annotations

import pytest

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.replicas import CRASHED, PREEMPTED
from tests.core.playing import PS0, PS1, STATE, W0, Play, name, of
from tests.core.rollback_play import texts

PS2 = name("ps", 2)


def scaled(play: Play, count: int, role: str = "ps") -> list[c.Command]:
    return play.hear(e.ScaleRequested(role, count))


def save_held(play: Play, servers: tuple[str, ...], **counters: int) -> list[c.Command]:
    """The cut that comes before another number of servers, up to its manifest."""
    cut = play.job.servers.cuts.numbers
    out = []
    for s in servers:
        out += play.held(s, cut, **counters)
    for s in servers:
        out += play.hear(e.ServerCut(s, cut))
    for s in servers:
        out += play.hear(e.ServerWrote(s, cut, s))
    return out + play.hear(e.CheckpointPublished(cut, f"/c/version-{play.job.shards.version}"))


def trained(servers: int = 1) -> Play:
    play = Play(records=40, per_shard=3, servers=servers)
    play.join_all()
    play.commit("train/0/0", 2)
    return play


def test_new_servers_are_launched_first_and_training_goes_on_until_they_are_there() -> None:
    play = trained()
    out = scaled(play, 2)
    assert [(x.role, x.index) for x in of(c.LaunchReplica, out)] == [("ps", 1)]
    assert not of(c.HoldServers, out)
    play.commit("train/0/0", 3)
    out = play.join(PS1)
    assert c.HoldServers(1, 0) in out, "only now is there a reason to hold"
    assert not of(c.RestoreServer, out), "it holds nothing yet"


def test_all_go_on_at_the_very_version_of_the_cut_with_the_new_number_of_servers() -> None:
    play = trained()
    scaled(play, 2)
    play.join(PS1)
    out = save_held(play, (PS0,), a=2)
    assert not of(c.ReleaseServers, out), "the old servers move no more"
    restores = {x.server: x for x in of(c.RestoreServer, out)}
    assert set(restores) == {PS0, PS1}
    assert {x.servers for x in restores.values()} == {2}
    assert {x.position.version for x in restores.values()} == {2} and play.job.shards.version == 2
    assert play.job.repeated == 0 and play.job.rollbacks == 0
    assert "2 servers instead of 1" in texts(out)
    out = play.restored(PS0, PS1)
    assert of(c.GrantLease, out) and not play.job.shards.paused
    assert play.job.servers.names == play.job.servers.cuts.servers == play.job.servers.checkpoints.servers == (PS0, PS1)


def test_fewer_servers_wait_for_none_and_the_last_ones_go_when_their_rows_are_safe() -> None:
    play = trained(servers=2)
    out = scaled(play, 1)
    assert c.HoldServers(1, 0) in out and not of(c.StopReplica, out)
    out = save_held(play, (PS0, PS1), a=2)
    assert [x.name for x in of(c.StopReplica, out)] == [PS1]
    assert {x.server for x in of(c.RestoreServer, out)} == {PS0}
    losses = play.job.replicas.losses
    out = play.end(PS1, PREEMPTED)
    assert not of(c.LaunchReplica, out) and play.job.replicas.losses == losses, "sent away, not lost"
    assert of(c.GrantLease, play.restored(PS0))


def test_a_server_that_is_only_to_come_may_die_without_a_rollback() -> None:
    play = trained()
    scaled(play, 2)
    out = play.end(PS1, PREEMPTED)
    assert play.job.servers.checkpoints.timeline == 1 and not of(c.RestoreServer, out)
    assert [x.index for x in of(c.LaunchReplica, out)] == [1]


def test_a_new_server_that_cannot_start_is_given_up_and_the_job_goes_on() -> None:
    play = trained()
    scaled(play, 2)
    for _ in range(2):
        out = play.end(PS1, CRASHED)
        play.hear(e.TimePassed(), after=60.0)
    assert "failed 2 times" in texts(out) and "continuing without it" in texts(out)
    assert not play.job.outcome and play.job.servers.wanted == 1
    play.commit("train/0/0", 3)


def test_an_old_server_lost_before_the_cut_is_an_ordinary_rollback_and_scaling_goes_on_after_it() -> None:
    play = trained()
    scaled(play, 2)
    play.end(PS0, PREEMPTED)
    assert play.job.servers.checkpoints.timeline == 2
    play.join(PS0)
    out = play.join(PS1)
    assert of(c.HoldServers, out)
    out = save_held(play, (PS0,))
    assert {x.server for x in of(c.RestoreServer, out)} == {PS0, PS1}


def test_a_change_of_mind_while_the_servers_write_lets_them_go_on() -> None:
    play = trained()
    scaled(play, 2)
    play.join(PS1)
    play.held(PS0, 1, a=2)
    play.hear(e.ServerCut(PS0, 1))
    scaled(play, 1)
    play.hear(e.ServerWrote(PS0, 1, "part"))
    out = play.hear(e.CheckpointPublished(1, "/c/version-2"))
    assert c.ReleaseServers(1) in out and play.job.servers.checkpoints.timeline == 1
    play.commit("train/0/0", 3)


def test_a_part_written_before_the_last_server_froze_counts() -> None:
    play = trained(servers=2)
    scaled(play, 1)
    for s in (PS0, PS1):
        play.held(s, 1, a=2)
    play.hear(e.ServerCut(PS0, 1))
    play.hear(e.ServerWrote(PS0, 1, "early"))
    play.hear(e.ServerCut(PS1, 1))
    out = play.hear(e.ServerWrote(PS1, 1, "late"))
    assert dict(of(c.PublishCheckpoint, out)[0].files) == {PS0: "early", PS1: "late"}


def test_workers_come_and_go_by_number() -> None:
    play = trained()
    out = scaled(play, 3, "worker")
    assert [x.index for x in of(c.LaunchReplica, out)] == [1, 2]
    play.join(name("worker", 1))
    out = scaled(play, 1, "worker")
    stopped = of(c.StopReplica, out)
    assert {x.name for x in stopped} == {name("worker", 1), name("worker", 2)}
    assert all(x.grace_seconds > 0 for x in stopped), "they may finish their batch"
    out = play.end(name("worker", 1), PREEMPTED)
    assert not of(c.LaunchReplica, out)
    assert play.job.replicas.role_of(W0) == "worker" and not play.job.outcome


@pytest.mark.parametrize(
    ("role", "count", "words"),
    [("ps", 0, "at least one ps"), ("worker", 0, "at least one worker"), ("ps", 1025, "1024"), ("chief", 1, "no role")],
)
def test_impossible_numbers_are_refused_with_the_reason(role: str, count: int, words: str) -> None:
    play = trained()
    assert words in play.job.refused(role, count)
    out = scaled(play, count, role)
    assert words in texts(out) and not of(c.LaunchReplica, out)


def test_a_master_that_comes_back_goes_on_scaling() -> None:
    play = trained()
    scaled(play, 3)
    play.join(PS1)
    state = STATE.validate_json(STATE.dump_json(play.job))
    assert state == play.job
    play.job = state
    assert of(c.HoldServers, play.join(PS2))
