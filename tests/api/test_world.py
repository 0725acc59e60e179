"""A world as a member sees it: who says what the master has not heard."""

from __future__ import annotations

from elasticdl.api.world import unheard


def test_each_evaluation_that_the_master_lacks_is_said_by_the_first_that_knows_it() -> None:
    known = [{50}, {50, 100}, set(), {100, 150}]
    assert [unheard(known, rank, []) for rank in range(4)] == [{50}, {100}, set(), {150}]
    assert [unheard(known, rank, [50, 100]) for rank in range(4)] == [set(), set(), set(), {150}]
    assert not any(unheard(known, rank, [50, 100, 150, 200]) for rank in range(4)), "nothing is said twice"
