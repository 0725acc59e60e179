"""Which workers should train together, and what to do about it: each a table whose first row that holds decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

# Which workers train.


@dataclass(frozen=True)
class Candidate:
    """A worker that may train, in the order of their coming; leaving ones in the order of their SIGTERM."""

    name: str
    leaving: bool = False
    holds: bool = False  # the state of the last world
    ran: bool = False  # in the last world: it may hold that state without having reported it
    rank: int = 0  # in the newest world; the same number behind all of them for those outside


def desired(candidates: Sequence[Candidate], wanted: int, least: int, holder_away: bool) -> tuple[str, ...]:
    """Those that train already, then those that came first. Empty: too few, so that none can train."""
    stay = [c for c in candidates if not c.leaving]
    stay = sorted(stay, key=lambda c: (not c.holds, not c.ran, c.rank))[:wanted]
    last = kept(stay, [c for c in candidates if c.leaving], holder_away)
    if last is not None:
        stay = [*stay[: max(1, wanted - 1)], last]
    return tuple(c.name for c in stay) if len(stay) >= least else ()


def kept(stay: Sequence[Candidate], leave: Sequence[Candidate], holder_away: bool) -> Candidate | None:
    """Which of those that leave stays until another has the state."""
    if any(c.holds for c in stay) or not (stay or holder_away):
        return None
    holders = [c for c in leave if c.holds]
    if not holders and not any(c.ran for c in stay):
        holders = [c for c in leave if c.ran]  # it alone knows when the last world is over
    return holders[0] if holders else None


# What to do.


class Phase(StrEnum):
    NONE = "none"  # no worker trains
    PROPOSED = "proposed"
    RUNNING = "running"


@dataclass(frozen=True)
class Scene:
    """What a decision about worlds depends on."""

    desired: tuple[str, ...] = ()  # workers that should train together now; empty: none can
    members: tuple[str, ...] = ()  # of the newest world
    lost: str = ""  # a worker of the last world that has just turned out to be gone
    silent: tuple[str, ...] = ()  # members that are gone, or out of touch for too long
    gone: tuple[str, ...] = ()  # those of them that are gone
    enough: bool = False  # all are there that are wanted, or the rest was waited for
    urgent: bool = False  # of the proposal: members leave an exchange at once
    confirmed: bool = False  # by at least one of its members
    rescued: bool = False  # a worker outside brings the state, or the word that the last world is over
    training: bool = False  # all members of the world that runs have formed it
    leaving: bool = False  # a member received SIGTERM

    @property
    def leavers(self) -> list[str]:
        return [n for n in self.members if n not in self.desired and n not in self.silent]

    @property
    def comers(self) -> list[str]:
        return [n for n in self.desired if n not in self.members]


@dataclass(frozen=True)
class Proposal:
    members: tuple[str, ...]
    urgent: bool
    reason: str


class Else(Enum):
    WAIT = "wait"
    START = "start"  # the world that is proposed, once all have confirmed it


@dataclass(frozen=True)
class Rule:
    when: str
    holds: Callable[[Scene], bool]
    then: Callable[[Scene], Proposal | Else]


def decide(phase: Phase, scene: Scene) -> Proposal | Else:
    return next((rule.then(scene) for rule in TABLES[phase] if rule.holds(scene)), Else.WAIT)


def _propose(scene: Scene, urgent: bool, reason: str) -> Proposal:
    return Proposal(scene.desired, urgent, reason)


def _are(names: Sequence[str], what: str) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}"


def _missing(scene: Scene) -> str:
    lost = (scene.lost,) if scene.lost else scene.gone
    return _are(lost, "gone") if lost else _are(scene.silent, "disconnected")


def _ready(count: int) -> str:
    return "1 worker is ready" if count == 1 else f"{count} workers are ready"


def _changed(scene: Scene) -> Proposal:
    return _propose(scene, scene.urgent, "the available workers changed")


NOBODY_TRAINS = (
    Rule(
        "enough workers are ready",
        lambda s: bool(s.desired) and s.enough,
        lambda s: _propose(s, True, _ready(len(s.desired))),
    ),
    Rule(
        "a worker is gone that others wait for at the end of the step",
        lambda s: bool(s.lost) and not s.urgent,
        lambda s: Proposal((), True, f"{s.lost} is gone"),
    ),
)
PROPOSED = (
    Rule(
        "a member is gone or out of touch",
        lambda s: bool(s.silent) or (bool(s.lost) and not s.urgent),
        lambda s: _propose(s, s.urgent or bool(s.lost), _missing(s)),
    ),
    Rule("a worker outside brings what all members lack", lambda s: s.rescued, _changed),
    Rule(
        "other workers should train, and the step can still be finished",
        lambda s: not s.urgent and set(s.desired) != set(s.members),
        _changed,
    ),
    Rule(
        "a member should not train, and none has confirmed",
        lambda s: not set(s.members) <= set(s.desired) and not s.confirmed,
        _changed,
    ),
    Rule("nothing speaks against it", lambda s: True, lambda s: Else.START),
)
RUNNING = (
    Rule("a member is gone", lambda s: bool(s.lost), lambda s: _propose(s, True, f"{s.lost} is gone")),
    Rule(
        "the world is being formed, and no member leaves: one change after the other",
        lambda s: not s.training and not s.leaving,
        lambda s: Else.WAIT,
    ),
    Rule(
        "a member leaves; a world that is not formed has no end of a step to wait for",
        lambda s: bool(s.leavers),
        lambda s: _propose(s, not s.training, _are(s.leavers, "leaving")),
    ),
    Rule(
        "a worker can join",
        lambda s: bool(s.comers) and not s.silent and s.training,
        lambda s: _propose(s, False, _are(s.comers, "joining")),
    ),
)
TABLES = {Phase.NONE: NOBODY_TRAINS, Phase.PROPOSED: PROPOSED, Phase.RUNNING: RUNNING}
