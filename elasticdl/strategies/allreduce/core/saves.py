"""What becomes of the states that workers of an all-reduce job write: asked for, written, published, or lost."""

from __future__ import annotations

import json
from dataclasses import dataclass

from elasticdl.core.commands import Announce, Command, FinishJob, SaveState, SettleSave
from elasticdl.core.plan import Position
from elasticdl.job.outcome import Outcome
from elasticdl.strategies.allreduce.core.state import NEXT, AllreduceState, Save


@dataclass
class SavingJob(AllreduceState):
    """Everything that is decided about checkpoints."""

    def _save(self, at: int, lasting: bool, worker: str = "") -> list[Command]:
        worker = worker or self.membership.holder()
        self.cuts += 1
        self.saves.append(Save(self.cuts, worker, at, lasting, self.now if at <= self.step else None))
        return [SaveState(worker, self.cuts, at)]

    def _due(self, now: float) -> list[Command]:
        """Saves that the schedule asks for: of the lasting ones the worker is told in time."""
        c = self.checkpoints
        if self.owed and self.trained_out and (keeper := self.membership.keeper()):
            # No step is to come, and maybe no world: whoever holds the last one writes it, if it is the last one.
            self.owed = False
            return self._save(self.step, True, keeper)
        if not self.membership.training or self.stopping or not self.membership.holder():
            return []
        out: list[Command] = []
        if self.owed:  # at a later step, but not an interval later
            self.owed = False
            out += self._save(NEXT, True)
        elif c.schedule.steps and not any(s.lasting for s in self.saves):
            done = [k.position.version for k in c.known if k.lasting] + [w[1] for w in self.written]
            done += [c.writing.position.version] if c.writing is not None and c.writing.lasting else []
            at = (max([*done, self.unsaved, self.step - 1]) // c.schedule.steps + 1) * c.schedule.steps
            if at <= (self.terms.plan.total_steps or (self.step if self.trained_out else at)):
                out += self._save(at, True)
        if self._may_save and c.next_time is not None and now >= c.next_time:
            out += self._save(NEXT, False)
        return out

    def _wrote(self, worker: str, cut: int, part: str, error: str, now: float) -> list[Command]:
        save = next((s for s in self.saves if s.cut == cut), None)
        if save is None:
            return [SettleSave(cut, "", worker)]
        self.saves.remove(save)
        if error:
            told = Announce(f"the checkpoint could not be written ({worker}: {error}); training goes on")
            if self.stopping:
                return [FinishJob(Outcome.FAILED, f"the checkpoint could not be written: {worker}: {error}")]
            self.checkpoints.started(now)
            self.unsaved = max(self.unsaved, save.at)  # not tried again at each step: the next one that is due
            return [SettleSave(cut, "", worker), told]
        self.written.append((save, int(json.loads(part)["step"]), part))
        return self._publish(now)

    def _overdue(self, now: float) -> list[Command]:
        """Saves that nothing comes of: whoever was to write one may wait for its disk for ever."""
        out: list[Command] = []
        for save in list(self.saves):
            if save.since is None and save.at <= self.step:
                save.since = now
            if save.since is not None and now >= save.since + self.save_seconds:
                out += self._wrote(save.worker, save.cut, "", f"it takes longer than {self.save_seconds:.0f} s", now)
        return out

    def _publish(self, now: float) -> list[Command]:
        if self.checkpoints.writing is not None or not self.written:
            return []
        save, step, part = self.written.pop(0)
        self.checkpoints.servers = (save.worker,)
        records = self.terms.plan.trained(step, int(json.loads(part).get("records", 0)))
        self.checkpoints.begin(save.cut, Position(version=step, records=records), save.lasting, False, now)
        return self.checkpoints.wrote(save.worker, save.cut, part)

    def _published(self, cut: int, directory: str, error: str, now: float) -> list[Command]:
        writing = self.checkpoints.writing
        if writing is None or writing.cut != cut:
            return []
        if error:
            out = self.checkpoints.give_up()
            self.unsaved = max(self.unsaved, writing.position.version if writing.lasting else 0)
            if self.stopping:
                return [*out, FinishJob(Outcome.FAILED, f"the checkpoint could not be published: {error}")]
            out.append(Announce(f"the checkpoint could not be published ({error}); training goes on"))
            return out + self._publish(now)
        checkpoint, out = self.checkpoints.published(directory)
        step, newest = checkpoint.position.version, self.checkpoints.newest
        self.checkpoint = newest.directory
        self.membership.checkpoint = (newest.directory, newest.position.version)
        out.append(Announce(f"the checkpoint of step {step} is in {directory}"))
        if self.stopping and cut == self.last_cut:
            return [*out, FinishJob(Outcome.STOPPED, f"{self.stopping}; the checkpoint holds step {step}")]
        return out + self._publish(now)

    def _damaged(self, error: str) -> list[Command]:
        """The newest checkpoint cannot be read: the one before it, if there is one."""
        bad = self.checkpoints.newest
        if self.checkpoints.damaged() is None:
            return [FinishJob(Outcome.FAILED, f"nothing to go on from: {bad}: {error}")]
        to = self.checkpoints.newest
        self.membership.checkpoint = (to.directory, to.position.version)
        return [Announce(f"the checkpoint of {bad} cannot be used: {error}; going on from {to}")]

    def _save_before_all_leave(self, lost: str = "") -> list[Command]:
        """What leavers hold would be gone with them."""
        leavers = self.membership.only_leavers(but=lost)
        if not leavers or not self.step or any(s.at == NEXT and s.worker in leavers for s in self.saves):
            return []
        return self._save(NEXT, False, leavers[-1])

    def _end_saves(self) -> list[Command]:
        """Where the number of steps was not known beforehand, some step to save at may never come."""
        never = [s for s in self.saves if s.at > self.step]
        self.saves = [s for s in self.saves if s not in never]
        return [SettleSave(s.cut, "", s.worker) for s in never]
