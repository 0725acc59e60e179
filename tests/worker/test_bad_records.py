"""Bad records of a part are found by halving it."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.errors import DataError, ModelError
from elasticdl.worker.bad_records import Sieve

NUMBERS = [30, 10, 50, 20, 40, 60, 0]


def sieve(unreadable: set[int], unfed: set[int], least: int = 1) -> tuple[Sieve, list[list[int]]]:
    fed: list[list[int]] = []

    def read(start: int, stop: int) -> tuple[list[Any], Any]:
        if unreadable & set(NUMBERS[start:stop]):
            raise DataError("f", "torn", "mend it")
        return [f"record {n}" for n in NUMBERS[start:stop]], NUMBERS[start:stop]

    def feed(records: list[Any]) -> None:
        fed.append([int(r.split()[1]) for r in records])
        if unfed & set(fed[-1]) or len(records) < least:
            raise ModelError("m.py", "no")

    return Sieve(read, feed, NUMBERS.__getitem__), fed


@pytest.mark.parametrize(("unreadable", "unfed"), [({50}, {0}), (set(), {30}), ({30, 10, 50, 20, 40, 60}, set())])
def test_what_is_left_keeps_its_order_and_each_bad_record_is_named(unreadable: set[int], unfed: set[int]) -> None:
    found, _ = sieve(unreadable, unfed)
    found.sift(0, len(NUMBERS))
    assert set(found.bad) == unreadable | unfed
    assert found.numbers == [n for n in NUMBERS if n not in found.bad]
    assert found.records == [f"record {n}" for n in found.numbers]
    assert all(("torn" in error) == (n in unreadable) for n, error in found.bad.items())


def test_a_feed_that_takes_no_single_record_costs_the_bad_one_s_neighbour_too() -> None:
    found, _ = sieve(set(), {0}, least=2)
    found.sift(0, len(NUMBERS))
    assert found.numbers == [30, 10, 50, 20, 40] and set(found.bad) == {60, 0}


def test_what_can_be_fed_as_a_whole_is_fed_once() -> None:
    found, fed = sieve(set(), set())
    found.sift(2, 6)
    assert fed == [[50, 20, 40, 60]] and found.numbers == [50, 20, 40, 60] and not found.bad
