"""Requests to save: each is carried out once, and answered as often as the master asks."""

from __future__ import annotations

from elasticdl.collective.save_requests import SaveRequests
from elasticdl.wire import control_pb2 as pb


def save(cut: int, at: int = 0) -> pb.Save:
    return pb.Save(cut=cut, directory="d", at=at)


def test_a_save_is_begun_once_at_its_step() -> None:
    it = SaveRequests()
    it.save_requested(save(1, at=5))
    assert it.begin(4) is None and not it.unsettled
    assert it.begin(5) == save(1, at=5) and it.unsettled == {1}
    assert it.save_requested(save(1, at=5)) == [] and it.begin(6) is None


def test_an_earlier_request_for_a_later_step_does_not_hold_up_another() -> None:
    it = SaveRequests()
    it.save_requested(save(1, at=5))
    it.save_requested(save(2))
    assert it.begin(0) == save(2) and it.begin(5) == save(1, at=5)


def test_an_answer_is_repeated_until_it_is_settled() -> None:
    it = SaveRequests()
    it.save_requested(save(1))
    it.begin(0)
    answer = it.saved(1, "{}", "the disk is full")
    assert it.save_requested(save(1)) == answer and it.wrote[1].error == "the disk is full"
    it.settled(1)
    assert not it.wrote and not it.unsettled and it.begin(0) is None


def test_a_save_that_is_settled_before_it_began_is_dropped() -> None:
    it = SaveRequests()
    it.save_requested(save(1))
    it.settled(1)
    assert it.begin(0) is None


def test_an_export_that_was_requested_anew_stays_requested() -> None:
    it = SaveRequests()
    first, second = (pb.Export(directory="model", number=number) for number in (1, 2))
    it.export_requested(first)
    it.export_requested(second)
    it.export_done(first)
    assert it.export == second
    answer = it.export_done(second, audit="all is well")
    assert it.export is None and it.export_requested(second) == answer
