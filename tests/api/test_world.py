"""A world as a member sees it: which member repeats what the master did not receive."""

from __future__ import annotations

from elasticdl.api.world import to_resend


def test_each_evaluation_that_the_master_lacks_is_sent_by_the_first_member_that_knows_it() -> None:
    known = [{50}, {50, 100}, set(), {100, 150}]
    assert [to_resend(known, rank, []) for rank in range(4)] == [{50}, {100}, set(), {150}]
    assert [to_resend(known, rank, [50, 100]) for rank in range(4)] == [set(), set(), set(), {150}]
    assert not any(to_resend(known, rank, [50, 100, 150, 200]) for rank in range(4)), "nothing is sent twice"
