"""A death in the ring in which worlds without determinism add up, where they are too large to share memory."""

from __future__ import annotations

import signal
import time

import pytest

from elasticdl.collective.shared import MOST_MEMBERS
from tests.collective.member import contribution
from tests.collective.relay import Answer, Member, Relay

pytestmark = pytest.mark.processes

NAMES = [f"w{n}" for n in range(MOST_MEMBERS + 1)]
SIZE = 300_007
NOTICED_SECONDS = 0.5


def sums(members: list[Member], step: int, size: int) -> list[Answer]:
    return [m.call("plain", size=size, step=step) for m in members]


@pytest.mark.parametrize("inside", [True, False], ids=["inside the sum", "before its part in it"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_death_is_noticed_by_the_whole_ring_at_once_and_the_others_go_on(
    rank: int, inside: bool, relay: Relay
) -> None:
    victim = NAMES[rank]
    relay.start(*NAMES, faults=f"worker.in_exchange@{victim}:2" if inside else "")
    members = relay.together(1, *NAMES)
    for answer in sums(members, 1, SIZE):
        answer.result()  # all know that they have the same: the next sum begins with the ring
    survivors = [m for m in members if m.name != victim]
    pids = [m.process.pid for m in survivors]
    answers = sums(survivors, 2, SIZE)
    process = relay.members[victim].process
    if inside:
        relay.members[victim].call("plain", size=SIZE, step=2)
    else:
        assert not any(answer.done.wait(0.1) for answer in answers), "the others wait for it"
        relay.members[victim].signal(signal.SIGKILL)
    process.join(20)
    died = time.monotonic()
    assert process.exitcode == -signal.SIGKILL
    for answer in answers:
        assert answer.wait().error == "GroupBroken" and answer.at - died < NOTICED_SECONDS, answer.at - died
    relay.together(2, *(m.name for m in survivors))
    totals = [answer.result()[0] for answer in sums(survivors, 3, 50)]
    wanted = sum(contribution(50, 3, r) for r in range(len(survivors)))
    assert all(total == totals[0] for total in totals)
    assert totals[0] == pytest.approx(wanted.tolist(), rel=1e-4)
    assert [m.process.pid for m in survivors] == pids
