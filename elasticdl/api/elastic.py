"""The step loop of elastic all-reduce.

A step is cut into parts, one for each virtual worker, which the workers share. The result of a part depends only on
what was committed, not on the worker that computes it. So a change of the world loses only the exchange in flight.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from elasticdl import faults
from elasticdl.api import audit, state_files
from elasticdl.api.evaluation import Evaluations
from elasticdl.api.overlap import PlainSums
from elasticdl.api.pass_width import PassWidth, combined
from elasticdl.api.saving import Saver, export
from elasticdl.api.step_metrics import StepMetrics
from elasticdl.api.terms import Hooks, LoopTerms, Model, StepPart
from elasticdl.api.tree_sums import TreeSums
from elasticdl.api.world import World, Worlds
from elasticdl.collective.control import Alone, SharedSession
from elasticdl.collective.session import Todo
from elasticdl.collective.shared import segment
from elasticdl.core import steps
from elasticdl.core.plan import BadRecord
from elasticdl.errors import CalledOff, DataError, ElasticDLError, GroupBroken, JobFailed, ModelError
from elasticdl.wire import control_pb2 as pb

log = logging.getLogger(__name__)

WITNESS = "audit/witness"
POSITION = "job/position"  # the number of trained records: in the state where the batch follows the workers


class Elastic:
    """Use: `for part in elastic.parts(): compute loss of part.records; loss.backward(); elastic.step(loss)`."""

    def __init__(
        self,
        model: Model,
        terms: LoopTerms,
        control: SharedSession,
        numbers: Callable[[int, int, int], npt.NDArray[np.int64]],
        hooks: Hooks | None = None,
    ) -> None:
        """`numbers` gives the records at positions [start, stop) of an epoch."""
        self._model, self._terms, self._control, self._numbers = model, terms, control, numbers
        self._hooks = hooks or Hooks()
        self._witness = torch.zeros(terms.plan.records if terms.audit else 0, device=model.device)
        more = len(self._witness)
        self._sums = TreeSums(model, more) if terms.deterministic else PlainSums(model, more, terms.bucket_floats)
        apart = isinstance(control, Alone) or model.device.type != "cpu"
        shared = None if apart else segment(self._sums.size)
        self._worlds = Worlds(
            control, terms.host, terms.plan.parts, self.state, self._load,
            torch.device("cpu") if terms.deterministic else model.device, shared, terms.deterministic,
        )  # fmt: skip
        # Parts are not combined where a framework compiles for their size: every world would have to compile again.
        most_records = 0 if terms.deterministic or model.values is None else terms.most_records
        self._pass_width = PassWidth(most_records, measured=model.device.type == "cpu")
        self._trained = 0  # records, where that does not follow from the number of steps
        self._current: StepPart | None = None
        self._virtuals: list[int] = []  # that it belongs to
        self._sizes: set[int] = set()  # of the parts computed so far
        self._bad_records: set[int] = set()  # that this worker left out
        self._evaluations = Evaluations(control, self._hooks, terms.plan.virtual, terms.evaluation_steps)
        self._saver = Saver(lambda cut, part, error: control.send(lambda s: s.saving.saved(cut, part, error)))
        self._committed_at = time.monotonic()
        self._metrics = StepMetrics(terms.skip_nonfinite, self._report, self._unfit)

    # Its progress.

    @property
    def committed_steps(self) -> int:
        return self._control.call(lambda s: s.world.state[1])

    @property
    def records_trained(self) -> int:
        """By all workers together, each record exactly once per epoch."""
        return self._terms.plan.trained(self.committed_steps, self._trained)

    @property
    def skipped_steps(self) -> int:
        """By this worker, since a number in them was not finite."""
        return self._metrics.skipped_steps

    @property
    def world_size(self) -> int:
        """The number of workers that train together now; 0 between two worlds."""
        return len(self._worlds.current.members) if self._worlds.current is not None else 0

    @property
    def rank(self) -> int:
        return self._worlds.current.rank if self._worlds.current is not None else -1

    @property
    def finished(self) -> bool:
        """Whether every step is committed; False if this worker has to leave before that."""
        return self._terms.plan.over(self.committed_steps, self.records_trained)

    def upcoming(self, count: int) -> list[steps.Part]:
        """The parts that this worker computes next if the world does not change, for reading them ahead."""
        world, plan = self._worlds.current, self._terms.plan
        if world is None:
            return []
        found: list[steps.Part] = []
        first, stop = world.run
        number, trained = self.committed_steps, self.records_trained
        todo = self._sums.missing(first, stop)
        while not plan.over(number, trained) and len(found) < count:
            step = plan.step(number, trained, len(world.members))
            todo = [v for v in todo if step.part(v).records]
            while todo:
                virtuals = self._pass_width.next_pass(step, todo, ahead=number - self.committed_steps)
                found.append(combined(step, virtuals))
                todo = todo[len(virtuals) :]
            number, trained, todo = number + 1, trained + step.records, list(range(first, stop))
        return found[:count]

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that was committed, by name."""
        self._metrics.settle()
        held = dict(self._model.state())
        if self._terms.plan.share:
            held[POSITION] = torch.tensor([self._trained])
        return held | {WITNESS: self._witness} if self._terms.audit else held

    def save(self, directory: Path) -> None:
        """Write the state to a folder that `restore` accepts. Call it between two parts."""
        generation, step = self._control.call(lambda s: s.world.state)
        state_files.write(directory, state_files.snapshot(self.state()), step, generation, self.records_trained)

    # The loop.

    def parts(self) -> Iterator[StepPart]:
        """The parts for this worker to compute, until the job is over or the worker has to leave."""
        try:
            while True:
                with self.reporting_errors():
                    part = self._advance()
                if part is None:
                    return
                self._current = part
                self._model.begin(part.seed)
                self._control.doing("program")
                yield part
                if self._current is not None:
                    raise ElasticDLError("elastic.step(loss) was not called for the part; call it once for each")
        finally:
            self._end()

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """While inside, an error in the model or the data ends the job: it would occur on any other worker, too. The
        worker reports it at once, since an error that leaves the loop ends the stream to the master."""
        try:
            yield
        except (ModelError, DataError) as error:
            self._unfit(str(error), error)

    def computing(self, part: StepPart) -> None:
        """The part's records are there, and its computation begins. From now on the worker is considered stuck after
        ten times the usual step, and not only after --hang_seconds."""
        # A framework may compile for a new size, which has no usual time.
        self._control.doing("compute" if len(part) in self._sizes else "compile")

    def leave_out(self, bad: Mapping[int, str]) -> StepPart:
        """Drop records that cannot be trained from the current part, before it is computed; `bad` gives the reasons.

        Dropped records count in the step's mean like records with zero gradients. The master sets them aside, or ends
        the job (--max_bad_records).
        """
        part = self._current
        assert part is not None
        for number, error in bad.items():
            if number not in self._bad_records:  # else it was dropped in another epoch
                self._set_aside(number, error, part.step)
        keep = ~np.isin(part.records, list(bad))
        self._sums.scale_weight(int(keep.sum()) / len(part))
        self._current = replace(part, records=part.records[keep])
        return self._current

    def _set_aside(self, number: int, error: str, step: int) -> None:
        name = self._hooks.name_of(number)
        self._bad_records.add(number)
        log.warning("Left %s out of step %d, since it cannot be trained: %s", name, step, error)
        self._control.send(lambda s: s.set_aside(number, name, error))
        if len(self._bad_records) > self._terms.max_bad_records:  # the master will end the job: commit nothing more
            raise JobFailed(BadRecord(number, name, error).one_too_many(self._terms.max_bad_records))

    def step(self, loss: float | torch.Tensor | None) -> bool:
        """The current part is computed, or cannot be trained (None). With this worker's last part of a step, add up all
        parts and commit the step; whether that happened."""
        if self._current is None:
            raise ElasticDLError("elastic.step(loss) takes one part of elastic.parts(), and there is none")
        part, self._current = self._current, None
        if loss is None:
            self._model.abandon()
            self._sums.abandon(self._virtuals)
        else:
            with self.reporting_errors():  # a forward pass may have changed what it must not
                self._sums.add(self._virtuals, loss, part.records if self._terms.audit else None)
        self._pass_width.end()
        self._sizes.add(len(part))
        world = self._worlds.current
        committed = world is not None and not self._missing(world) and self._exchange(world)
        self._control.doing("program")
        return committed

    def _advance(self) -> StepPart | None:
        """Do everything that comes before the next part; None when there is none."""
        while True:
            due = self._evaluations.due(self.committed_steps, self.finished)
            idle = self.finished and not due
            match self._control.todo(idle):
                case Todo.END:
                    return None
                case Todo.LEAVE:
                    self._worlds.leave()
                case Todo.CONFIRM:
                    faults.point("worker.confirming")
                    self._control.send(lambda s: s.world.confirm())
                case Todo.BUILD:
                    self._enter()
                case Todo.SAVE:
                    self._save()
                case Todo.EXPORT:
                    self._export()
                case Todo.WAIT:
                    self._control.wait(idle)
                case Todo.TRAIN:
                    world = self._worlds.current
                    assert world is not None
                    if due:
                        self._evaluate(world)
                    elif missing := self._missing(world):
                        return self._part(world, missing)
                    else:
                        self._exchange(world)

    def _part(self, world: World, missing: list[int]) -> StepPart:
        """The first of the missing ones; with the last one the exchange may begin."""
        step = self._step(world)
        self._virtuals = self._pass_width.next_pass(step, missing)
        self._pass_width.begin()
        part = combined(step, self._virtuals)
        last = len(self._virtuals) == len(missing)
        self._sums.begin(sum(map(step.weight, self._virtuals)), world.group, last)
        self._control.doing("data")
        numbers = self._numbers(part.epoch, part.start, part.stop)
        seed = steps.part_seed(self._terms.seed, step.number, part.virtual)
        return StepPart(step.number, part.virtual, part.epoch, part.start, part.stop, numbers, seed)

    def _step(self, world: World) -> steps.Step:
        """The current one."""
        return self._terms.plan.step(self.committed_steps, self.records_trained, len(world.members))

    def _missing(self, world: World) -> list[int]:
        """The virtual workers that this worker still has to compute; a part without records is zeros."""
        found, step = [], self._step(world)
        for virtual in self._sums.missing(*world.run):
            if step.part(virtual).records:
                found.append(virtual)
            else:
                self._sums.skip(virtual)
        return found

    def _enter(self) -> None:
        world = self._worlds.enter()
        if world is None:
            return
        if self._sums.virtual != world.virtual:  # the finished parts belong to a step that was cut in another way
            self._sums.reset(world.virtual)
        self._pass_width.enter(world.run, self._terms.plan.batch, world.virtual)
        self._evaluations.entered(world)
        self._committed_at = time.monotonic()

    def _load(self, state: Mapping[str, torch.Tensor], step: int) -> None:
        """Take over the state of another worker or a checkpoint."""
        held, plan = dict(state), self._terms.plan
        position = held.pop(POSITION, None)
        if (position is None) == bool(plan.share):
            what = f"it was saved with --batch_policy={'fixed' if plan.share else 'per_worker'}"
            raise DataError("the state", what, "Use the same --batch_policy.")
        if self._terms.audit:
            self._witness.copy_(held.pop(WITNESS, torch.zeros_like(self._witness)))
        else:
            held.pop(WITNESS, None)
        self._model.load(held)
        self._reset_step()
        self._trained = 0 if position is None else int(position)
        self._control.call(lambda s: s.loaded(plan.trained(step, self._trained)))

    def _reset_step(self) -> None:
        """Results that were computed on another state are useless."""
        self._sums.reset(self._sums.virtual)
        self._evaluations.reset()

    # A step's end.

    def _exchange(self, world: World) -> bool:
        self._control.doing("exchange")
        try:
            with self._control.interruptible(world.group.abort):
                superseded = self._control.call(lambda s: s.world.superseded)
                total, stop = self._sums.total(world.group, world.run, superseded)
        except (CalledOff, GroupBroken) as lost:
            self._worlds.abandon(lost, f"step {self.committed_steps}")
            return False
        faults.point("worker.before_commit")
        self._control.may_commit()
        self._commit(world, total, stop)
        faults.point("worker.after_commit")
        return True

    def _commit(self, world: World, total: torch.Tensor, stop: bool) -> None:
        step = self._step(world)
        self._control.doing("apply")
        size = self._model.size
        if self._metrics.take(step.number, total[: size + 1], total[size]):
            with self.reporting_errors():
                self._model.apply(total[:size], step.number, step.epoch, step.rate_scale)
        if self._terms.audit:
            self._witness += total[size + 1 :]
        self._reset_step()
        self._pass_width.committed(usual=step.records == self._terms.plan.batch)
        now = time.monotonic()
        self._trained = self.records_trained + step.records
        self._control.commit(self._metrics.loss, now - self._committed_at, stop, self._trained)
        self._committed_at = now
        if not self._metrics.late:
            assert self._metrics.loss is not None
            self._report(step.number + 1, self._metrics.loss)
        elif self.finished:
            self._metrics.settle()

    def _report(self, steps: int, loss: float) -> None:
        self._control.doing("program")
        self._hooks.committed(steps, loss)
        self._control.doing("apply")

    def _unfit(self, reason: str, cause: Exception | None = None) -> None:
        self._control.send(lambda _: [pb.FromReplica(unfit=pb.Unfit(error=reason))])
        raise JobFailed(reason) from cause

    # Evaluations, checkpoints and the export.

    def _evaluate(self, world: World) -> None:
        try:
            self._evaluations.evaluate(world, self.committed_steps)
        except (CalledOff, GroupBroken) as lost:
            self._worlds.abandon(lost, f"the evaluation of step {self.committed_steps}")

    def _save(self) -> None:
        save = self._control.call(lambda s: s.saving.begin(s.world.state[1]))
        if save is not None:
            self._control.doing("save")
            generation, step = self._control.call(lambda s: s.world.state)
            directory, records = Path(save.directory), self.records_trained
            self._saver.save(save.cut, directory, self.state(), step, generation, records)

    def _export(self) -> None:
        request = self._control.call(lambda s: s.saving.export)
        assert request is not None
        self._control.doing("save")

        def check() -> str:
            audited, bad = self._terms.audit, request.bad_records
            return audit.verdict(self._witness, self.records_trained, bad) if audited else ""

        error, verdict = export(request, self._hooks.export, check)
        self._control.send(lambda s: s.saving.export_done(request, error, verdict))

    def _end(self) -> None:
        """Finish the checkpoints that were begun, and send the last messages."""
        self._saver.finish()
        self._current = None
        self._sums.close()
        self._worlds.close()
        self._control.close()
