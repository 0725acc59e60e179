"""Worlds played by hand: what workers say in, proposals and starts out."""

from __future__ import annotations

from typing import Any

from elasticdl.core import commands as c
from elasticdl.strategies.allreduce.core.membership import (
    LAST_CALL_SECONDS,
    MARGIN_SECONDS,
    NOTHING,
    Membership,
    State,
)

GRACE = 30.0 + MARGIN_SECONDS


class Play:
    """A machine under test; time stands still unless it is moved."""

    def __init__(self, wanted: int = 2, **what: Any) -> None:
        self.m = Membership(wanted, **what)
        self.now = 100.0

    def join(self, *names: str, generation: int = 0, fingerprint: str = "cpu") -> list[c.Command]:
        out: list[c.Command] = []
        for name in names:
            out += self.m.joined(name, f"inc-{name}", generation, fingerprint, False, self.now)
        return out

    def drop(self, *names: str) -> list[c.Command]:
        return [x for name in names for x in self.m.dropped(name, self.now)]

    def gone(self, name: str) -> list[c.Command]:
        return self.m.gone(name, self.now)

    def confirm(self, **states: State) -> list[c.Command]:
        return [x for n, state in states.items() for x in self.m.confirm(n, self.m.generation, state, self.now)]

    def form(self, *names: str) -> list[c.Command]:
        return [x for n in names or self.m.members for x in self.m.form(n, self.m.generation, self.now)]

    def step(self, step: int) -> list[c.Command]:
        return self.m.stepped(self.m.running_generation, step, self.now)

    def broken(self, name: str, *suspects: str) -> list[c.Command]:
        return self.m.broken(name, self.m.running_generation, suspects, self.now)

    def wait(self, seconds: float) -> list[c.Command]:
        self.now += seconds
        return self.m.time_passed(self.now)

    def trains(self, *names: str, step: int = 5) -> None:
        """A world of these trains, and stands at a step."""
        self.join(*names)
        self.wait(LAST_CALL_SECONDS)
        self.confirm(**dict.fromkeys(names, NOTHING))
        self.form()
        assert self.m.training and self.m.members == names
        self.step(step)

    @property
    def at(self) -> State:
        """The name of what the world that runs holds."""
        return self.m.running_generation, self.m.committed[1]

    def restart(self) -> None:
        self.now += 3.0
        self.m.master_started(self.now)


def proposal(out: list[c.Command]) -> c.ProposeWorld:
    (found,) = [x for x in out if isinstance(x, c.ProposeWorld)]
    return found


def start(out: list[c.Command]) -> c.StartWorld:
    (found,) = [x for x in out if isinstance(x, c.StartWorld)]
    return found
