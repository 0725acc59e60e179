"""The states that workers of an all-reduce job write: asked for, written, published, or lost."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Self

from elasticdl.core.checkpoints import Checkpoints
from elasticdl.core.commands import Announce, Command, FinishJob, SaveState, SettleSave
from elasticdl.core.plan import Position
from elasticdl.core.steps import StepPlan
from elasticdl.job.outcome import Outcome
from elasticdl.strategies.allreduce.core.membership import Membership
from elasticdl.strategies.allreduce.core.terms import AllreduceTerms

NEXT = 0  # save at the next step
SAVE_HANGS = 4  # a state that is not written in so many times --hang_seconds never will be


@dataclass
class Save:
    """A state that a worker was asked to write."""

    cut: int
    worker: str
    at: int
    lasting: bool
    since: float | None = None  # when that step was there


@dataclass
class Saves:
    plan: StepPlan
    limit_seconds: float  # how long a state may take to be written
    checkpoints: Checkpoints
    asked: list[Save] = field(default_factory=list)
    written: list[tuple[Save, int, str]] = field(default_factory=list)  # on disk and not yet published: step, part
    cuts: int = 0
    owed: bool = False  # the worker that was to write a lasting checkpoint left after its step
    unsaved: int = 0  # the newest step whose lasting checkpoint could not be written
    stopping: str = ""  # why a stop was requested
    last_cut: int = 0  # the one that a stop waits for

    @classmethod
    def new(cls, terms: AllreduceTerms) -> Self:
        return cls(terms.plan, SAVE_HANGS * terms.budget.hang_seconds, Checkpoints((), terms.schedule))

    # Questions.

    @property
    def open_cuts(self) -> set[int]:
        """Those that were asked for and have yet to be published, in any order."""
        writing = self.checkpoints.writing
        cuts = {s.cut for s in self.asked} | {s.cut for s, _, _ in self.written}
        return cuts | ({writing.cut} if writing is not None else set())

    @property
    def lasting_open(self) -> bool:
        """Whether something that the user asked for is not yet on disk."""
        return any(s.lasting for s in self.asked) or self.checkpoints.writing is not None or bool(self.written)

    def may_save(self, step: int, over: bool, membership: Membership) -> bool:
        """Whether the clock may ask for a checkpoint."""
        idle = self.checkpoints.writing is None and all(s.lasting for s in self.asked) and not self.stopping
        news = step > self.checkpoints.newest.position.version and not over
        return idle and news and membership.training and bool(membership.holder())

    def deadlines(self, step: int, over: bool, membership: Membership) -> list[float | None]:
        times = [s.since + self.limit_seconds for s in self.asked if s.since is not None]
        return [*times, self.checkpoints.next_time if self.may_save(step, over, membership) else None]

    # Asking.

    def ask(self, worker: str, at: int, lasting: bool, step: int, now: float) -> list[Command]:
        self.cuts += 1
        self.asked.append(Save(self.cuts, worker, at, lasting, now if at <= step else None))
        return [SaveState(worker, self.cuts, at)]

    def again(self, worker: str) -> list[Command]:
        """Its stream is back."""
        return [SaveState(s.worker, s.cut, s.at) for s in self.asked if s.worker == worker]

    def due(self, step: int, over: bool, membership: Membership, now: float) -> list[Command]:
        """Saves that the schedule asks for; lasting ones are requested before their step."""
        c = self.checkpoints
        if self.owed and over and (keeper := membership.keeper()):
            # No step is to come, and maybe no world: a worker that holds the last one writes it.
            self.owed = False
            return self.ask(keeper, step, True, step, now)
        holder = membership.holder()
        if not membership.training or not holder:
            return []
        out: list[Command] = []
        if self.owed:  # at a later step, but not an interval later
            self.owed = False
            out += self.ask(holder, NEXT, True, step, now)
        elif c.schedule.steps and not any(s.lasting for s in self.asked):
            done = [k.position.version for k in c.known if k.lasting] + [w[1] for w in self.written]
            done += [c.writing.position.version] if c.writing is not None and c.writing.lasting else []
            at = (max([*done, self.unsaved, step - 1]) // c.schedule.steps + 1) * c.schedule.steps
            if at <= (self.plan.total_steps or (step if over else at)):
                out += self.ask(holder, at, True, step, now)
        if self.may_save(step, over, membership) and c.next_time is not None and now >= c.next_time:
            out += self.ask(holder, NEXT, False, step, now)
        return out

    def before_all_leave(self, leavers: list[str], step: int, now: float) -> list[Command]:
        """The state would be lost with the leaving workers."""
        if not leavers or not step or any(s.at == NEXT and s.worker in leavers for s in self.asked):
            return []
        return self.ask(leavers[-1], NEXT, False, step, now)

    # The worker that was asked may never write it.

    def forget(self, worker: str, step: int) -> None:
        self.owed = self.owed or any(s.worker == worker and s.lasting and s.at <= step for s in self.asked)
        self.asked = [s for s in self.asked if s.worker != worker]

    def begin(self, members: tuple[str, ...], step: int) -> list[Command]:
        """A world starts: a worker outside it never comes to a later step at which it was to save."""
        return self._drop([s for s in self.asked if s.at > step and s.worker not in members])

    def end(self, step: int) -> list[Command]:
        """Drop saves at later steps: they never come where the number of steps was not known beforehand."""
        return self._drop([s for s in self.asked if s.at > step])

    def _drop(self, never: list[Save]) -> list[Command]:
        self.asked = [s for s in self.asked if s not in never]
        return [SettleSave(s.cut, "", s.worker) for s in never]

    # Writing.

    def overdue(self, step: int, now: float) -> list[Command]:
        """Give up saves that take too long: the worker may wait for its disk forever."""
        out: list[Command] = []
        for save in list(self.asked):
            if save.since is None and save.at <= step:
                save.since = now
            if save.since is not None and now >= save.since + self.limit_seconds:
                out += self.wrote(save.worker, save.cut, "", f"not written within {self.limit_seconds:.0f} s", now)
        return out

    def wrote(self, worker: str, cut: int, part: str, error: str, now: float) -> list[Command]:
        save = next((s for s in self.asked if s.cut == cut), None)
        if save is None:
            return [SettleSave(cut, "", worker)]
        self.asked.remove(save)
        if error:
            told = Announce(f"Cannot write the checkpoint ({worker}: {error}); training continues")
            if self.stopping:
                return [FinishJob(Outcome.FAILED, f"the checkpoint could not be written: {worker}: {error}")]
            self.checkpoints.started(now)
            self.unsaved = max(self.unsaved, save.at)  # not tried again at each step: the next one that is due
            return [SettleSave(cut, "", worker), told]
        self.written.append((save, int(json.loads(part)["step"]), part))
        return self._publish(now)

    def _publish(self, now: float) -> list[Command]:
        if self.checkpoints.writing is not None or not self.written:
            return []
        save, step, part = self.written.pop(0)
        self.checkpoints.servers = (save.worker,)
        records = self.plan.trained(step, int(json.loads(part).get("records", 0)))
        self.checkpoints.begin(save.cut, Position(version=step, records=records), save.lasting, False, now)
        return self.checkpoints.wrote(save.worker, save.cut, part)

    def published(self, cut: int, directory: str, error: str, now: float) -> list[Command]:
        writing = self.checkpoints.writing
        if writing is None or writing.cut != cut:
            return []
        if error:
            out = self.checkpoints.give_up()
            self.unsaved = max(self.unsaved, writing.position.version if writing.lasting else 0)
            if self.stopping:
                return [*out, FinishJob(Outcome.FAILED, f"the checkpoint could not be published: {error}")]
            out.append(Announce(f"Cannot publish the checkpoint ({error}); training continues"))
            return out + self._publish(now)
        checkpoint, out = self.checkpoints.published(directory)
        step = checkpoint.position.version
        out.append(Announce(f"Saved the checkpoint of step {step} in {directory}"))
        if self.stopping and cut == self.last_cut:
            return [*out, FinishJob(Outcome.STOPPED, f"{self.stopping}; the checkpoint holds step {step}")]
        return out + self._publish(now)
