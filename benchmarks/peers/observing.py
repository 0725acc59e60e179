"""What the lines of a step log say: worlds, recoveries after a kill, gaps, throughput.

A line is `<CLOCK_MONOTONIC> <step> <pid> <generation>`: this process committed its step-th step in the world of that
generation, a number that no other world has, and a later world has a higher one. A word in place of the step marks
something else that happened to the process, like `ready`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple


class Commit(NamedTuple):
    when: float
    step: int
    pid: int
    generation: int


class Mark(NamedTuple):
    when: float
    name: str
    pid: int
    generation: int


@dataclass(frozen=True)
class Seen:
    """A step log, read once."""

    commits: tuple[Commit, ...]
    marks: tuple[Mark, ...]

    @classmethod
    def read(cls, path: Path) -> Seen:
        commits: list[Commit] = []
        marks: list[Mark] = []
        text = path.read_text() if path.exists() else ""
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # being written
            when, what, pid, generation, *_ = line.split()
            if what.isdecimal():
                commits.append(Commit(float(when), int(what), int(pid), int(generation)))
            else:
                marks.append(Mark(float(when), what, int(pid), int(generation)))
        return cls(tuple(sorted(commits)), tuple(sorted(marks)))

    @property
    def pids(self) -> set[int]:
        return {line.pid for line in (*self.commits, *self.marks)}

    def worlds(self) -> list[World]:
        """The steps that were committed, each as one: by all that took part, when the last of them had it."""
        found: dict[tuple[int, int], list[Commit]] = defaultdict(list)
        for commit in self.commits:
            found[commit.generation, commit.step].append(commit)
        steps = [World(g, s, max(c.when for c in cs), frozenset(c.pid for c in cs)) for (g, s), cs in found.items()]
        return sorted(steps, key=lambda w: w.when)

    def steady(self, workers: int, steps: int, after: float = 0.0) -> bool:
        """Whether the last so many steps were committed by so many workers, in one world."""
        last = [w for w in self.worlds() if w.when > after][-steps - 1 : -1]  # the very last may lack some lines
        return len(last) == steps and len({(w.generation, w.pids) for w in last}) == 1 and len(last[0].pids) == workers


class World(NamedTuple):
    """One committed step and the process that committed it."""

    generation: int
    step: int
    when: float
    pids: frozenset[int]


def step_seconds(worlds: Sequence[World]) -> float:
    """The median time from one step to the next."""
    pairs = pairwise(worlds)
    gaps = [b.when - a.when for a, b in pairs if a.generation == b.generation and b.step == a.step + 1]
    if not gaps:
        raise ValueError("no two consecutive steps were seen")
    return statistics.median(gaps)


@dataclass(frozen=True)
class Recovery:
    """What one lost worker cost."""

    seconds: float  # until every survivor had committed a step of a new world
    caught_up_seconds: float  # until a step was committed that had not been before
    step_before: float
    step_after: float
    steps_redone: int
    steps_missing: int
    skipped: int  # steps of survivors that were computed and thrown away with their records
    restarted: int  # survivors whose process is another one afterwards
    marks: dict[str, float]  # seconds after the loss of what the new world's processes marked on the way, the last's

    @property
    def less_one_step(self) -> float:
        return self.seconds - self.step_after


def recovery(seen: Seen, lost: int, when: float) -> Recovery:
    """After process `lost` got its signal at `when`."""
    worlds = seen.worlds()
    before = [w for w in worlds if w.when <= when and lost in w.pids]
    if not before:
        raise ValueError(f"process {lost} had committed no step when it was lost")
    old = before[-1].generation
    # A step that was all but done may still be committed in the old world; that is no recovery.
    after = [w for w in worlds if w.generation > old and w.when > when]
    if not after:
        raise ValueError("no step was committed in a new world")
    survivors = before[-1].pids - {lost}
    kept = survivors & {c.pid for c in seen.commits if c.generation > old}
    first = {}
    for commit in seen.commits:
        if commit.generation > old and (commit.pid in kept or not kept):
            first.setdefault(commit.pid, commit.when)
    if not kept:  # all were started again; the first world of those counts
        first = {pid: t for pid, t in first.items() if pid in after[0].pids}
    done = max(first.values())
    last_step = max(c.step for c in seen.commits if c.generation == old)
    new = [w for w in after if w.when >= done and w.pids == frozenset(first)]
    beyond = next((w.when for w in after if w.step > last_step), float("nan"))
    marks: dict[str, float] = {}
    for mark in seen.marks:
        if when < mark.when <= done and mark.pid in first:
            marks[mark.name] = round(mark.when - when, 4)
    return Recovery(
        seconds=done - when,
        caught_up_seconds=beyond - when,
        step_before=step_seconds([w for w in before if w.generation == old]),
        step_after=step_seconds(new),
        steps_redone=max(0, last_step - after[0].step + 1),
        steps_missing=max(0, after[0].step - last_step - 1),
        skipped=sum(m.name == "skipped" and m.pid in survivors and when <= m.when <= done for m in seen.marks),
        restarted=len(survivors - kept),
        marks=marks,
    )


def longest_gap(seen: Seen, since: float, until: float, pids: Iterable[int] = ()) -> float:
    """The longest time without a committed step (of these processes, if given) from the last step before `since`."""
    wanted = set(pids)
    times = sorted(w.when for w in seen.worlds() if not wanted or wanted & w.pids)
    before = [t for t in times if t <= since][-1:]
    if not before:
        raise ValueError("no step was committed before the gap; were two worlds logged under one number?")
    inside = before + [t for t in times if since < t <= until]
    return max((b - a for a, b in pairwise(inside)), default=float("nan"))


def full_strength(seen: Seen, workers: int, lost: int, when: float) -> float | None:
    """Seconds from the loss of a process until so many workers committed a step without it."""
    whole = (w.when - when for w in seen.worlds() if w.when > when and len(w.pids - {lost}) >= workers)
    return next(whole, None)
