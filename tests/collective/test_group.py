"""Groups of real processes that are killed, stopped, called off and built again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.collective.oracle import expected
from tests.collective.relay import Answer, Member, Relay

pytestmark = pytest.mark.processes

SIZE = 1_000_003
LEAVER = Path(__file__).with_name("leaver.py")


def totals(members: list[Member], step: int, size: int = SIZE, virtual: int = 8) -> list[Answer]:
    return [m.call("total", virtual=virtual, size=size, step=step) for m in members]


def ready(members: list[Member], step: int) -> None:
    """Have the parts of a step computed, so that members go straight into its exchange."""
    for answer in [m.call("compute", virtual=8, size=SIZE, step=step) for m in members]:
        answer.result()


def gone(member: Member) -> float:
    """Wait for the end of a process; when it was seen."""
    member.process.join(20)
    assert member.process.exitcode is not None
    return time.monotonic()


def test_all_members_notice_a_rank_killed_in_the_exchange_and_the_next_generation_has_the_same_bits(
    relay: Relay,
) -> None:
    relay.start("a", "b", "c")
    relay.start("d", faults="worker.in_exchange@d:1")
    members = relay.together(1, "a", "b", "c", "d")
    pids = [m.process.pid for m in members[:3]]
    ready(members, 1)
    answers = totals(members, 1)
    died = gone(members[3])
    assert members[3].process.exitcode == -signal.SIGKILL
    for answer in answers[:3]:
        assert answer.wait().error == "GroupBroken" and answer.at - died < 1.0
    assert any("d" in answer.suspects for answer in answers[:3]), "no member names the one that died"
    survivors = relay.together(2, "a", "b", "c")
    results = [a.result() for a in totals(survivors, 1)]
    assert [r[0] for r in results] == [expected(8, SIZE, 1)] * 3
    # a held 0-1 and keeps them for its new run 0-2; what b and c must compute anew is theirs by the new runs.
    assert sum(r[2] for r in results) < 8, "parts that were computed already were computed again"
    assert [m.process.pid for m in survivors] == pids


def test_a_broadcast_abort_frees_members_that_wait_for_one_that_is_alive(relay: Relay) -> None:
    relay.start("a", "b", "c", "d")
    members = relay.together(1, "a", "b", "c", "d")
    ready(members, 1)
    answers = totals(members[:3], 1)  # d is alive and never comes: no connection breaks
    assert not answers[0].done.wait(0.3)
    began = time.monotonic()
    for member in members[:3]:
        member.abort("worker d is hung")
    for answer in answers:
        assert (answer.wait().error, answer.text) == ("CalledOff", "worker d is hung")
        assert answer.at - began < 1.0
    again = totals(members[:1], 1)[0].wait()
    assert (again.error, again.text) == ("CalledOff", "worker d is hung"), "a group that was called off works again"
    survivors = relay.together(2, "a", "b", "c")
    assert [a.result()[0] for a in totals(survivors, 1)] == [expected(8, SIZE, 1)] * 3


@pytest.mark.parametrize("early", [True, False])
def test_a_stopped_rank_that_continues_later_cannot_disturb_the_new_generation(relay: Relay, early: bool) -> None:
    relay.start("a", "b", "c", "d")
    members = relay.together(1, "a", "b", "c", "d")
    ready(members, 1)
    if early:  # it waits in the exchange with everything still to send
        late = totals(members[3:], 1)[0]
        assert not late.done.wait(0.2)
        members[3].signal(signal.SIGSTOP)
        answers = totals(members[:3], 1)
    else:  # the others have sent all they could, it is stopped with half of it in its hands
        answers = totals(members[:3], 1)
        assert not answers[0].done.wait(0.2)
        late = totals(members[3:], 1)[0]
        members[3].signal(signal.SIGSTOP)
    for member in members[:3]:
        member.abort("worker d does not move")
    # A member may see a connection end before it receives the reason; the second exchange may end before the signal.
    outcomes = {a.wait().error for a in answers}
    assert outcomes <= {"CalledOff", "GroupBroken"} or (not early and outcomes <= {"CalledOff", "GroupBroken", ""})
    survivors = relay.together(2, "a", "b", "c")
    assert [a.result()[0] for a in totals(survivors, 2)] == [expected(8, SIZE, 2)] * 3
    running = [m.call("totals", virtual=8, size=SIZE, steps=range(3, 8)) for m in survivors]
    members[3].signal(signal.SIGCONT)
    wanted = [expected(8, SIZE, step) for step in range(3, 8)]
    assert [a.result(60) for a in running] == [wanted] * 3
    if early:
        assert late.wait().error == "GroupBroken", "it can finish an exchange that the others have left"
    elif not late.wait().error:
        assert late.value[0] == expected(8, SIZE, 1)


def test_a_build_that_waits_for_a_missing_peer_can_be_interrupted(relay: Relay) -> None:
    relay.start("a", "b", "c")
    answers = relay.build(1, "a", "b", "c", absent=("c",))
    assert not answers[0].done.wait(0.3)
    began = time.monotonic()
    for name in ("a", "b"):
        relay.members[name].interrupt("c has died")
    for answer in answers:
        assert (answer.wait().error, answer.text) == ("CalledOff", "c has died")
        assert answer.at - began < 0.5
    members = relay.together(2, "a", "b")
    assert [a.result()[0] for a in totals(members, 1, size=10)] == [expected(8, 10, 1)] * 2


def test_a_build_ends_by_its_deadline_and_names_the_members_that_are_missing(relay: Relay) -> None:
    relay.start("a", "b", "c")
    began = time.monotonic()
    answers = relay.build(1, "a", "b", "c", absent=("c",), timeout_seconds=0.5)
    for answer in answers:
        assert answer.wait().error == "GroupBroken"
        assert answer.suspects == ("c",) and answer.text.endswith("(about c)")
        assert answer.at - began < 2.5


def test_a_peer_that_dies_while_the_group_is_built_is_survived(relay: Relay) -> None:
    relay.start("a", "b")
    relay.start("c", faults="worker.building@c:1")
    answers = relay.build(1, "a", "b", "c", timeout_seconds=3.0)
    gone(relay.members["c"])
    # The address of a dead process is refused or silent, depending on when it died; the master calls it off.
    for name in ("a", "b"):
        relay.members[name].interrupt("c has died")
    began = time.monotonic()
    for answer, name in zip(answers[:2], "ab", strict=True):
        if not answer.wait().error:  # the dead one's kernel had accepted the connection
            answer = relay.members[name].call("gather", mine=b"").wait()
        assert answer.error in ("CalledOff", "GroupBroken") and answer.at - began < 1.0
    members = relay.together(2, "a", "b")
    assert [a.result()[0] for a in totals(members, 1, size=10)] == [expected(8, 10, 1)] * 2


def test_a_peer_that_is_stopped_while_the_group_is_built_does_not_block_members_that_are_interrupted(
    relay: Relay,
) -> None:
    relay.start("a", "b", "c")
    relay.members["c"].signal(signal.SIGSTOP)
    answers = relay.build(1, "a", "b", "c", timeout_seconds=2.0)
    assert not answers[0].done.wait(0.3)
    for name in ("a", "b"):
        relay.members[name].interrupt("c does not move")
    for answer in answers[:2]:
        assert answer.wait(1.0).error == "CalledOff"
    members = relay.together(2, "a", "b")
    relay.members["c"].signal(signal.SIGCONT)
    assert answers[2].wait(30).error in ("GroupBroken", "CalledOff")
    assert [a.result()[0] for a in totals(members, 1, size=10)] == [expected(8, 10, 1)] * 2


def test_hundreds_of_generations_called_off_in_the_exchange_leave_nothing_behind(relay: Relay) -> None:
    members = relay.start("a", "b")

    def churn(generations: range) -> tuple[int, int, int]:
        for generation in generations:
            first, _ = relay.together(generation, "a", "b")
            answer = first.call("total", virtual=2, size=250_000, step=1)  # the other does not come
            first.abort("the next one, please")
            assert answer.wait().error == "CalledOff"
        relay.together(generations.stop, "a", "b")
        threads, files, kilobytes = members[0].call("resources").result()
        return threads, files, kilobytes

    before = churn(range(1, 40))
    after = churn(range(100, 300))
    assert after[0] <= before[0] + 2 and after[1] <= before[1] + 4, f"{before} threads, files and kB became {after}"
    # Each generation has buffers of 2 MB: kept, they would be 400 MB.
    assert after[2] < before[2] + 30_000, f"{before} threads, files and kB became {after}"


def test_the_end_of_the_process_does_not_wait_for_groups() -> None:
    ends = ("healthy", "called off", "closed", "building")
    programs = [
        subprocess.Popen([sys.executable, LEAVER, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for how in ends
    ]
    for how, program in zip(ends, programs, strict=True):
        out, err = program.communicate(timeout=60)
        ended = time.time()
        assert (program.returncode, err) == (0, ""), how
        assert ended - float(out) < 10, f"a process with a group that is {how} took {ended - float(out):.1f} s to end"
