"""The tables of worlds, row by row: which workers should train together, and what is done about it."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.strategies.allreduce.core.proposals import (
    TABLES,
    Candidate,
    Else,
    Phase,
    Proposal,
    Scene,
    decide,
    desired,
)

AB = ("a", "b")


def propose(*members: str, urgent: bool, reason: str) -> Proposal:
    return Proposal(members, urgent, reason)


ROWS: list[tuple[Phase, str, dict[str, Any], Proposal | Else]] = [
    (Phase.NONE, "enough workers are ready", {"desired": AB, "enough": True},
     propose("a", "b", urgent=True, reason="2 workers are ready")),
    (Phase.NONE, "a worker is gone that others wait for at the end of the step", {"lost": "c", "members": AB},
     propose(urgent=True, reason="c is gone")),
    (Phase.NONE, "", {"desired": AB}, Else.WAIT),
    (Phase.NONE, "", {"lost": "c", "urgent": True}, Else.WAIT),
    (Phase.NONE, "", {"enough": True}, Else.WAIT),
    (Phase.PROPOSED, "a member is gone or out of touch",
     {"members": AB, "desired": ("a",), "silent": ("b",), "gone": ("b",)},
     propose("a", urgent=False, reason="b is gone")),
    (Phase.PROPOSED, "a member is gone or out of touch",
     {"members": AB, "desired": ("a",), "silent": ("b",), "urgent": True},
     propose("a", urgent=True, reason="b is disconnected")),
    (Phase.PROPOSED, "a member is gone or out of touch", {"members": AB, "silent": AB},
     propose(urgent=False, reason="a, b are disconnected")),
    (Phase.PROPOSED, "a member is gone or out of touch", {"members": AB, "desired": AB, "lost": "c"},
     propose("a", "b", urgent=True, reason="c is gone")),
    (Phase.PROPOSED, "a worker outside brings what all members lack",
     {"members": ("a",), "desired": AB, "rescued": True, "urgent": True, "confirmed": True},
     propose("a", "b", urgent=True, reason="the available workers changed")),
    (Phase.PROPOSED, "other workers should train, and the step can still be finished",
     {"members": ("a",), "desired": AB, "confirmed": True},
     propose("a", "b", urgent=False, reason="the available workers changed")),
    (Phase.PROPOSED, "a member should not train, and none has confirmed",
     {"members": AB, "desired": ("a",), "urgent": True},
     propose("a", urgent=True, reason="the available workers changed")),
    (Phase.PROPOSED, "nothing speaks against it",
     {"members": AB, "desired": ("a",), "urgent": True, "confirmed": True}, Else.START),
    (Phase.PROPOSED, "nothing speaks against it",
     {"members": AB, "desired": AB, "lost": "c", "urgent": True}, Else.START),
    (Phase.RUNNING, "a member is gone", {"members": AB, "desired": ("a",), "lost": "b", "training": True},
     propose("a", urgent=True, reason="b is gone")),
    (Phase.RUNNING, "the world is being formed, and no member leaves: one change after the other",
     {"members": ("a",), "desired": AB}, Else.WAIT),
    (Phase.RUNNING, "a member leaves; a world that is not formed has no end of a step to wait for",
     {"members": AB, "desired": ("a",), "leaving": True, "training": True},
     propose("a", urgent=False, reason="b is leaving")),
    (Phase.RUNNING, "a member leaves; a world that is not formed has no end of a step to wait for",
     {"members": AB, "desired": ("a",), "leaving": True},
     propose("a", urgent=True, reason="b is leaving")),
    (Phase.RUNNING, "a worker can join", {"members": ("a",), "desired": AB, "training": True},
     propose("a", "b", urgent=False, reason="b is joining")),
    (Phase.RUNNING, "", {"members": ("a", "c"), "desired": AB, "silent": ("c",), "training": True}, Else.WAIT),
    (Phase.RUNNING, "", {"members": AB, "desired": AB, "training": True}, Else.WAIT),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "when", "scene", "decision"), ROWS)
def test_each_row_decides_where_it_is_the_first_that_holds(
    phase: Phase, when: str, scene: dict[str, Any], decision: Proposal | Else
) -> None:
    seen = Scene(**scene)
    assert next((rule.when for rule in TABLES[phase] if rule.holds(seen)), "") == when
    assert decide(phase, seen) == decision


@pytest.mark.parametrize("phase", Phase)
def test_every_row_has_a_test(phase: Phase) -> None:
    assert {rule.when for rule in TABLES[phase]} <= {when for tested, when, _, _ in ROWS if tested is phase}


def candidate(name: str, **more: Any) -> Candidate:
    return Candidate(name, rank=more.pop("rank", 9), **more)


@pytest.mark.parametrize(
    ("candidates", "trains"),
    [
        ("a b c", "a b"),  # that came first
        ("a b c:rank=0", "c a"),  # that train already
        ("a b c:ran", "c a"),  # that were in the last world
        ("a:rank=0 b:ran c:holds", "c b"),  # and before all those that hold its state
        ("a", ""),  # too few
        ("a b:leaving", ""),
        ("a b c:leaving", "a b"),
        ("a b:holds c:leaving,holds", "b a"),  # the state stays without it
        ("a b c:leaving,holds d:leaving,holds", "a c"),  # the first that was told stays until another has it
        ("a b c:leaving,ran", "a c"),  # it may hold it, and alone knows when the last world is over
        ("a:ran b c:leaving,ran", "a b"),
        ("a b:leaving,ran c:leaving,holds", "a c"),
        ("a:leaving,holds b:leaving", ""),  # only those that leave: the state is saved instead
    ],
)
def test_which_workers_should_train_together(candidates: str, trains: str) -> None:
    found = []
    for text in candidates.split():
        name, _, marks = text.partition(":")
        fields = dict(mark.partition("=")[::2] for mark in marks.split(",") if mark)
        found.append(candidate(name, **{k: int(v) if v else True for k, v in fields.items()}))
    assert desired(found, wanted=2, least=2, holder_away=False) == tuple(trains.split())


@pytest.mark.parametrize("away", [False, True])
def test_where_a_holder_is_out_of_touch_one_that_leaves_trains_alone(away: bool) -> None:
    alone = [candidate("a", leaving=True, holds=True)]
    assert desired(alone, wanted=2, least=1, holder_away=away) == (("a",) if away else ())
