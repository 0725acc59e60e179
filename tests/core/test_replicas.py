"""Which replicas are launched and replaced, under which name, and why."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.replicas import (
    CRASHED,
    FINISHED,
    OUT_OF_MEMORY,
    PREEMPTED,
    TURNED_AWAY,
    Budget,
    Lost,
    Replicas,
    State,
)
from tests.core.invariants import check_replicas


def name(role: str, index: int) -> str:
    return f"elasticdl-j-{role}-{index}"


class House:
    """Replicas under test, each event followed by the invariants."""

    def __init__(self, workers: int = 2, servers: int = 0, **budget: Any) -> None:
        self.replicas = Replicas.wanting("j", {"ps": servers, "worker": workers}, Budget(**budget))
        self.now = 0.0
        self.first = self.hear(e.MasterStarted())

    def hear(self, event: e.Event, after: float = 0.0) -> list[c.Command]:
        self.now += after
        out = self.replicas.handle(event, self.now)
        check_replicas(self.replicas)
        return out

    def start(self, role: str, index: int, joined: bool = True) -> None:
        self.hear(e.ReplicaStarted(name(role, index), f"uid-{role}-{index}"))
        if joined:
            self.hear(e.ReplicaJoined(name(role, index), f"inc-{role}-{index}", f"at-{index}"))

    def end(self, index: int, cause: str, role: str = "worker", after: float = 0.0) -> list[c.Command]:
        gone = e.ReplicaGone(name(role, index), f"uid-{role}-{index}", cause, "exit code 1", ("last line",))
        return self.hear(gone, after)


def launched(commands: list[c.Command]) -> list[tuple[str, int]]:
    return [(x.role, x.index) for x in commands if isinstance(x, c.LaunchReplica)]


def test_the_job_starts_with_all_it_wants() -> None:
    house = House(workers=2, servers=1)
    assert launched(house.first) == [("ps", 0), ("worker", 0), ("worker", 1)]
    assert house.hear(e.TimePassed()) == [], "each is asked for once"


def test_a_lost_worker_is_replaced_at_once_under_the_next_free_index() -> None:
    house = House(workers=4)
    house.start("worker", 0)
    out = house.end(0, PREEMPTED)
    assert launched(out) == [("worker", 4)]
    assert house.replicas.losses == 1
    assert "replaces elasticdl-j-worker-0, " in next(x.reason for x in out if isinstance(x, c.LaunchReplica))


def numbers(commands: list[c.Command]) -> list[int]:
    return [x.number for x in commands if isinstance(x, c.LaunchReplica)]


def test_the_replacement_of_a_worker_has_its_number_and_a_server_has_its_index() -> None:
    house = House(workers=3, servers=2)
    assert numbers(house.first) == [0, 1, 0, 1, 2]
    assert numbers(house.end(1, PREEMPTED)) == [1]
    assert numbers(house.end(0, CRASHED)) == [], "after a pause"
    assert numbers(house.end(3, PREEMPTED)) == [0], "the first to come takes the lowest"
    assert numbers(house.hear(e.TimePassed(), after=1.0)) == [1]
    assert numbers(house.end(1, PREEMPTED, role="ps")) == [1]


def test_a_launch_that_the_next_master_repeats_has_the_number_it_had() -> None:
    house = House(workers=3)
    house.end(1, PREEMPTED)
    out = house.hear(e.MasterStarted(((name("worker", 0), "uid-worker-0"), (name("worker", 2), "uid-worker-2"))))
    assert (launched(out), numbers(out)) == ([("worker", 3)], [1])


def test_workers_that_stay_when_others_are_sent_away_are_numbered_from_nought_as_they_are_replaced() -> None:
    house = House(workers=4)
    for index in (1, 3):
        house.start("worker", index)
    stopped = [x for x in house.replicas.resize("worker", 2, house.now) if isinstance(x, c.StopReplica)]
    assert [x.name for x in stopped] == [name("worker", 0), name("worker", 2)]
    assert numbers(house.end(3, PREEMPTED)) == [0], "of one that is on its way out"
    for index in (0, 2):
        assert launched(house.end(index, PREEMPTED)) == []
    assert numbers(house.replicas.resize("worker", 4, house.now)) == [2, 3]


def test_preemption_never_counts_however_often_it_comes() -> None:
    house = House(workers=1, crashes=0)
    for index in range(50):
        house.start("worker", index)
        assert launched(house.end(index, PREEMPTED)) == [("worker", index + 1)]


def test_a_replica_that_is_turned_away_is_asked_for_again_after_growing_pauses_and_never_counts() -> None:
    house = House(workers=1, crashes=0)
    for index, pause in enumerate([1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]):
        assert launched(house.end(index, TURNED_AWAY)) == []
        assert launched(house.hear(e.TimePassed(), after=pause - 0.1)) == []
        assert launched(house.hear(e.TimePassed(), after=0.1)) == [("worker", index + 1)]
    house.start("worker", 7)
    house.end(7, TURNED_AWAY)
    assert launched(house.hear(e.TimePassed(), after=1.0)) == [("worker", 8)], "it had joined: from the first pause"


def test_a_crash_is_forgiven_within_the_budget_after_a_pause() -> None:
    house = House(workers=1, crashes=2)
    house.start("worker", 0)
    out = house.end(0, CRASHED)
    assert launched(out) == [] and house.replicas.deadline() == 1.0
    assert "restart 1 of 2 in 1 s" in out[0].text  # type: ignore[attr-defined]
    assert launched(house.hear(e.TimePassed(), after=0.5)) == []
    [again] = house.hear(e.TimePassed(), after=0.5)
    assert again == c.LaunchReplica("worker", 1, "replaces elasticdl-j-worker-0, exit code 1; restart 1 of 2")
    house.start("worker", 1)
    house.end(1, CRASHED)
    assert house.replicas.deadline() == house.now + 2.0, "the second pause is longer"


def test_a_crash_too_many_ends_the_job_with_the_workers_last_lines() -> None:
    house = House(workers=1, crashes=1)
    house.start("worker", 0)
    house.end(0, CRASHED)
    house.hear(e.TimePassed(), after=1.0)
    house.start("worker", 1)
    out = house.end(1, CRASHED)
    assert out == [c.FinishJob("failed", "elasticdl-j-worker-1 failed 2 times: exit code 1\nlast line")]


def test_crashes_are_counted_per_place_not_per_job() -> None:
    house = House(workers=2, crashes=1)
    for index in range(2):
        house.start("worker", index)
        assert not [x for x in house.end(index, CRASHED) if isinstance(x, c.FinishJob)]


def test_exit_zero_before_the_end_is_a_failure() -> None:
    house = House(workers=1, crashes=0)
    house.start("worker", 0)
    assert isinstance(house.end(0, FINISHED)[0], c.FinishJob)


def test_a_replica_that_ran_out_of_memory_comes_back_with_more_and_then_fails() -> None:
    house = House(workers=1, crashes=0)
    for index, factor in enumerate([1.5, 2.25]):
        house.start("worker", index)
        out = house.end(index, OUT_OF_MEMORY)
        (launch,) = [x for x in out if isinstance(x, c.LaunchReplica)]
        assert launch.memory_factor == factor
        assert f"restarting with {factor:g} times the memory" in launch.reason
    house.start("worker", 2)
    assert [type(x) for x in house.end(2, OUT_OF_MEMORY)] == [c.FinishJob]


def test_memory_is_not_raised_where_the_user_said_so() -> None:
    house = House(workers=1, crashes=0, raise_memory=False)
    house.start("worker", 0)
    assert isinstance(house.end(0, OUT_OF_MEMORY)[0], c.FinishJob)


def test_a_worker_that_never_connects_is_stopped_and_counts_as_crashed() -> None:
    house = House(workers=1, start_seconds=60.0)
    house.start("worker", 0, joined=False)
    assert house.replicas.deadline() == 60.0
    assert house.hear(e.TimePassed(), after=59.0) == []
    out = house.hear(e.TimePassed(), after=1.0)
    assert out[0] == c.StopReplica(name("worker", 0), "did not connect within 60 s", 0.0)
    assert house.replicas.slots[0].crashes == 1


def test_waiting_for_room_in_the_cluster_is_no_failure() -> None:
    house = House(workers=1, start_seconds=60.0)
    assert house.replicas.deadline() is None, "asked for, not started"
    assert house.hear(e.TimePassed(), after=10_000.0) == []


def test_a_broken_stream_is_forgiven_when_it_comes_back_in_time() -> None:
    house = House(workers=1, reconnect_seconds=30.0)
    house.start("worker", 0)
    house.hear(e.ReplicaDropped(name("worker", 0), "inc-worker-0"))
    assert house.replicas.deadline() == 30.0
    house.hear(e.ReplicaJoined(name("worker", 0), "inc-worker-0"), after=29.0)
    assert house.replicas.deadline() is None
    assert house.replicas.joined("worker")[0].state is State.JOINED


def test_a_worker_that_stays_silent_is_replaced_and_none_is_blamed() -> None:
    house = House(workers=1, reconnect_seconds=30.0, crashes=0)
    house.start("worker", 0)
    house.hear(e.ReplicaDropped(name("worker", 0), "inc-worker-0"))
    out = house.hear(e.TimePassed(), after=30.0)
    assert out[0] == c.StopReplica(name("worker", 0), "silent for 30 s", 0.0)
    assert launched(out) == [("worker", 1)]
    assert not house.replicas.admits(name("worker", 0), "inc-worker-0"), "too late"
    assert launched(house.end(0, PREEMPTED)) == [], "it was replaced already"


def test_a_process_that_took_a_name_keeps_others_out() -> None:
    house = House(workers=1)
    house.start("worker", 0)
    assert house.replicas.admits(name("worker", 0), "inc-worker-0")
    assert not house.replicas.admits(name("worker", 0), "another process")
    assert not house.replicas.admits(name("worker", 77), "not asked for")


def test_the_end_of_an_earlier_process_of_the_name_is_not_the_end_of_this_one() -> None:
    house = House(workers=1)
    house.start("worker", 0)
    stale = e.ReplicaGone(name("worker", 0), "an older uid", CRASHED, "exit code 1")
    assert house.hear(stale) == []
    assert house.replicas.replicas[name("worker", 0)].state is State.JOINED


def test_a_stale_break_does_not_take_the_new_stream_for_broken() -> None:
    house = House(workers=1)
    house.start("worker", 0)
    house.hear(e.ReplicaDropped(name("worker", 0), "an older incarnation"))
    assert house.replicas.joined("worker")


def test_a_replica_that_speaks_before_the_cluster_tells_of_it_has_joined_all_the_same() -> None:
    house = House(workers=1)
    house.hear(e.ReplicaJoined(name("worker", 0), "inc"))
    house.hear(e.ReplicaStarted(name("worker", 0), "uid"))
    assert house.replicas.joined("worker")[0].uid == "uid"


def test_a_replica_that_spoke_before_the_cluster_reported_it_and_fell_silent_has_connected() -> None:
    house = House(workers=1, reconnect_seconds=30.0, crashes=0)
    house.hear(e.ReplicaJoined(name("worker", 0), "inc"))
    house.hear(e.ReplicaDropped(name("worker", 0), "inc"))
    house.hear(e.ReplicaStarted(name("worker", 0), "uid"), after=20.0)
    out = house.hear(e.TimePassed(), after=10.0)
    assert out[0] == c.StopReplica(name("worker", 0), "silent for 30 s", 0.0), "and no crash is counted"


# Servers come back under their own name.


def test_a_lost_server_comes_back_under_its_own_name_and_its_loss_is_left_to_the_machine() -> None:
    house = House(workers=0, servers=2)
    house.start("ps", 1)
    out = house.end(1, PREEMPTED, role="ps")
    assert launched(out) == [("ps", 1)]
    assert house.replicas.lost_servers == [Lost(name("ps", 1), PREEMPTED, "exit code 1")]


def test_a_silent_server_is_stopped_and_launched_again_only_when_it_is_gone() -> None:
    house = House(workers=0, servers=1, reconnect_seconds=30.0)
    house.start("ps", 0)
    house.hear(e.ReplicaDropped(name("ps", 0), "inc-ps-0"))
    out = house.hear(e.TimePassed(), after=30.0)
    assert out == [c.StopReplica(name("ps", 0), "silent for 30 s", 0.0)]
    assert house.replicas.lost_servers == [], "it is still there, and under its name"
    assert launched(house.end(0, PREEMPTED, role="ps")) == [("ps", 0)]
    assert house.replicas.lost_servers == [Lost(name("ps", 0), PREEMPTED, "silent for 30 s")], "why, not how"
    assert house.replicas.slots[0].crashes == 0


@pytest.mark.parametrize("cause", [CRASHED, FINISHED])
def test_a_server_that_crashes_too_often_ends_the_job_with_its_last_lines(cause: str) -> None:
    house = House(workers=0, servers=1, crashes=9, server_crashes=1)
    house.start("ps", 0)
    out = house.end(0, cause, role="ps")
    assert launched(out) == [] and "restart 1 of 1 in 1 s" in out[0].text  # type: ignore[attr-defined]
    [again] = house.hear(e.TimePassed(), after=1.0)
    assert again == c.LaunchReplica("ps", 0, "replaces its lost process, exit code 1; restart 1 of 1")
    second = e.ReplicaGone(name("ps", 0), "another uid", cause, "exit code 1", ("last line",))
    assert house.hear(second) == [c.FinishJob("failed", "elasticdl-j-ps-0 failed 2 times: exit code 1\nlast line")]


def test_a_preempted_server_costs_nothing_however_often() -> None:
    house = House(workers=0, servers=1, server_crashes=0)
    for life in range(20):
        house.hear(e.ReplicaStarted(name("ps", 0), f"uid-{life}"))
        out = house.hear(e.ReplicaGone(name("ps", 0), f"uid-{life}", PREEMPTED, "killed by SIGKILL"))
        assert launched(out) == [("ps", 0)]


def test_late_news_of_an_earlier_process_are_not_about_the_one_that_bears_its_name_now() -> None:
    house = House(workers=0, servers=1)
    house.start("ps", 0)
    house.end(0, PREEMPTED, role="ps")
    assert house.end(0, PREEMPTED, role="ps") == [], "before the new one has started"
    house.hear(e.ReplicaStarted(name("ps", 0), "uid-ps-0"))
    assert house.replicas.replicas[name("ps", 0)].state is State.LAUNCHED, "nor does the old one start again"
    house.hear(e.ReplicaStarted(name("ps", 0), "the new uid"))
    house.hear(e.ReplicaJoined(name("ps", 0), "the new one"))
    assert house.end(0, CRASHED, role="ps") == []
    assert house.replicas.joined("ps") and house.replicas.losses == 1


def test_a_server_that_never_connects_counts_as_crashed_once_it_is_gone() -> None:
    house = House(workers=0, servers=1, start_seconds=60.0)
    house.start("ps", 0, joined=False)
    out = house.hear(e.TimePassed(), after=60.0)
    assert out == [c.StopReplica(name("ps", 0), "did not connect within 60 s", 0.0)]
    house.end(0, PREEMPTED, role="ps")
    assert house.replicas.slots[0].crashes == 1, "that it was then killed from outside does not excuse it"


def test_a_server_that_ran_out_of_memory_comes_back_with_more() -> None:
    house = House(workers=0, servers=1, server_crashes=0)
    house.start("ps", 0)
    (launch,) = [x for x in house.end(0, OUT_OF_MEMORY, role="ps") if isinstance(x, c.LaunchReplica)]
    assert launch.memory_factor == 1.5


# The master comes back.


def test_a_master_that_comes_back_asks_only_for_what_is_missing() -> None:
    house = House(workers=3, servers=1)
    house.start("ps", 0)
    house.start("worker", 0)
    house.start("worker", 1, joined=False)
    running = (
        ("elasticdl-j-ps-0", "uid-ps-0"),
        (name("worker", 0), "uid-worker-0"),
        (name("worker", 1), "uid-worker-1"),
    )
    out = house.hear(e.MasterStarted(running))
    assert launched(out) == [("worker", 2)], "decided before the master died, and never done"
    assert [r.state for r in house.replicas.replicas.values()] == [
        State.LOST_TOUCH, State.LOST_TOUCH, State.RUNNING, State.LAUNCHED,
    ]  # fmt: skip
    assert launched(house.hear(e.MasterStarted((*running, (name("worker", 2), "uid-worker-2"))))) == []


def test_a_worker_that_died_while_the_master_was_away_is_replaced() -> None:
    house = House(workers=1, crashes=0)
    house.start("worker", 0)
    assert launched(house.hear(e.MasterStarted())) == [("worker", 1)]


def test_a_server_that_died_while_the_master_was_away_comes_back() -> None:
    house = House(workers=0, servers=1)
    house.start("ps", 0)
    assert launched(house.hear(e.MasterStarted())) == [("ps", 0)]
    assert house.replicas.lost_servers == [Lost(name("ps", 0), PREEMPTED, "ended while the master was away")]


def test_a_server_launched_by_the_master_before_is_not_taken_for_its_predecessor() -> None:
    house = House(workers=0, servers=1)
    house.start("ps", 0)
    house.end(0, PREEMPTED, role="ps")
    out = house.hear(e.MasterStarted((), ((name("ps", 0), "uid-ps-0"),)))
    assert launched(out) == [("ps", 0)], "only its predecessor ended: the launch was never done"
    house.hear(e.MasterStarted((), ((name("ps", 0), "the new uid"),)))
    out = house.hear(e.ReplicaGone(name("ps", 0), "the new uid", PREEMPTED, "killed by SIGKILL"))
    assert launched(out) == [("ps", 0)] and house.replicas.losses == 2


def test_a_replica_that_came_and_went_while_the_master_was_away_is_not_launched_under_its_name_again() -> None:
    house = House(workers=1)
    out = house.hear(e.MasterStarted((), ((name("worker", 0), "uid-worker-0"),)))
    assert launched(out) == []
    assert launched(house.end(0, PREEMPTED)) == [("worker", 1)], "the cluster tells of it next"


def test_a_replica_that_was_to_be_stopped_is_stopped_by_the_next_master() -> None:
    house = House(workers=1, reconnect_seconds=30.0)
    house.start("worker", 0)
    house.hear(e.ReplicaDropped(name("worker", 0), "inc-worker-0"))
    house.hear(e.TimePassed(), after=30.0)
    out = house.hear(e.MasterStarted(((name("worker", 0), "uid-worker-0"), (name("worker", 1), "uid-worker-1"))))
    assert out == [c.StopReplica(name("worker", 0), "silent for 30 s", 0.0)]


def test_none_is_replaced_after_the_end() -> None:
    house = House(workers=1)
    house.start("worker", 0)
    house.replicas.finished = True
    assert house.end(0, FINISHED) == []


def test_a_replica_that_is_at_work_is_sent_away_last() -> None:
    house = House(workers=2)
    house.start("worker", 0)
    house.start("worker", 1)
    house.end(0, PREEMPTED)  # its place, the first one, is filled by a worker that is only starting
    out = house.replicas.resize("worker", 1, house.now)
    assert [x.name for x in out if isinstance(x, c.StopReplica)] == [name("worker", 2)]
    check_replicas(house.replicas)
    again = house.replicas.resize("worker", 2, house.now)
    assert launched(again) == [], "the place is still taken by the one that was sent away"


def test_a_replica_that_still_waits_for_room_when_the_master_returns_is_not_taken_for_one_that_runs() -> None:
    house = House(workers=1, start_seconds=10.0, crashes=0)
    uid = "uid-worker-0"
    house.hear(e.ReplicaHeldUp(name("worker", 0), uid, "unschedulable", "unschedulable: no room"))
    assert house.hear(e.MasterStarted(((name("worker", 0), uid),), waiting=(name("worker", 0),))) == []
    assert house.hear(e.TimePassed(), after=1000.0) == [], "it may wait for as long as it takes"
    house.start("worker", 0)
    assert house.replicas.replicas[name("worker", 0)].state is State.JOINED


def test_what_holds_a_replica_up_is_shown_until_it_runs_and_counted_once() -> None:
    house = House(workers=1)
    held = e.ReplicaHeldUp(name("worker", 0), "uid-worker-0", "unschedulable", "unschedulable: 0/1 nodes")
    house.hear(held)
    house.hear(e.ReplicaHeldUp(name("worker", 0), "uid-worker-0", "unschedulable", "unschedulable: 0/2 nodes"))
    replica = house.replicas.replicas[name("worker", 0)]
    assert (replica.detail, house.replicas.incidents) == ("unschedulable: 0/2 nodes", {"unschedulable": 1})
    house.hear(e.ReplicaHeldUp(name("worker", 0), "uid-worker-0", "image trouble", "its image cannot be pulled"))
    house.start("worker", 0)
    assert (replica.detail, house.replicas.incidents) == ("", {"unschedulable": 1, "image trouble": 1})
    house.hear(held)
    assert replica.detail == "", "old news of one that runs"


def test_what_befalls_replicas_is_counted_by_kind_and_what_the_master_wants_is_not() -> None:
    house = House(workers=3, crashes=9)

    def gone(index: int, cause: str, kind: str) -> None:
        house.start("worker", index)
        uid = f"uid-worker-{index}"
        for _ in range(2):  # said twice
            house.hear(e.ReplicaGone(name("worker", index), uid, cause, "why", kind=kind))
        house.hear(e.TimePassed(), after=60.0)

    for index, (cause, kind) in enumerate(
        [(PREEMPTED, "preempted"), (PREEMPTED, "deleted"), (PREEMPTED, "preempted"), (CRASHED, "crashed")]
    ):
        gone(index, cause, kind)
    house.start("worker", 4)
    house.replicas.resize("worker", 0, house.now)
    house.hear(e.ReplicaGone(name("worker", 4), "uid-worker-4", PREEMPTED, "stopped", kind="stopped"))
    assert house.replicas.incidents == {"preempted": 2, "deleted": 1, "crashed": 1}


def test_a_server_whose_pod_was_removed_by_force_does_not_come_back_as_its_own_successor() -> None:
    house = House(workers=0, servers=1)
    house.start("ps", 0)
    house.end(0, PREEMPTED, role="ps")
    assert not house.replicas.admits(name("ps", 0), "inc-ps-0"), "its process still runs, and speaks"
    assert house.replicas.admits(name("ps", 0), "the new one")


def test_a_server_that_others_stop_counts_although_we_stop_it_then() -> None:
    house = House(workers=0, servers=1)
    house.start("ps", 0)
    house.replicas.replace(name("ps", 0), PREEMPTED, "told to go", house.now, [])
    house.hear(e.ReplicaGone(name("ps", 0), "uid-ps-0", PREEMPTED, "deleted", kind="deleted"))
    house.start("ps", 0)
    assert house.replicas.incidents == {"deleted": 1}
