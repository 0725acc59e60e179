"""Between the core of an all-reduce job and the wire: commands become messages. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.master.brain import Effect, Send, partial_directory
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.wire import control_pb2 as pb

EVALUATIONS_TOLD = 64  # far more than a worker remembers


@dataclass
class WorldBrain:
    """The job's decisions as effects: messages to send, and commands that only the shell can carry out."""

    job: AllreduceMachine
    checkpoint_dir: str = ""
    output: str = ""
    run: int = 0  # tells this run of the job from others that write their model to the same place

    def decide(self, event: e.Event, now: float) -> list[Effect]:
        out: list[Effect] = []
        for command in self.job.handle(event, now):
            out += self._effects(command)
        return out

    def _effects(self, command: c.Command) -> Iterable[Effect]:
        match command:
            case c.ProposeWorld(generation, members, to, urgent, reason):
                proposal = pb.Proposal(generation=generation, members=members, urgent=urgent, reason=reason)
                return [Send(name, pb.ToReplica(proposal=proposal)) for name in to]
            case c.StartWorld(generation, members, to, state, copies, directory):
                start = pb.Start(
                    generation=generation, members=members, copies=copies, directory=directory,
                    state=pb.StateName(generation=state[0], step=state[1]),
                    evaluated=[version for version, _ in self.job.evaluations[-EVALUATIONS_TOLD:]],
                )  # fmt: skip
                return [Send(name, pb.ToReplica(start=start)) for name in to]
            case c.SaveState(worker, cut, at):
                directory = partial_directory(self.checkpoint_dir, self.job.terms.job, cut)
                return [Send(worker, pb.ToReplica(save=pb.Save(cut=cut, directory=directory, at=at)))]
            case c.SettleSave(cut, directory, worker):
                settle = pb.ToReplica(settle=pb.Settle(cut=cut, published=bool(directory), directory=directory))
                # Whoever is leaving may wait for it.
                names = [worker] if worker else list(self.job.membership.workers)
                return [Send(name, settle) for name in names]
            case c.AskForStack(worker, reason):
                return [Send(worker, pb.ToReplica(hung=pb.Hung(reason=reason)))]
            case c.ExportModel(worker, number):
                directory = self.output if self.job.terms.export else ""
                bad = [b.record for b in self.job.bad_records]
                export = pb.Export(
                    directory=directory, audit=self.job.terms.audit, bad_records=bad, number=number, run=self.run
                )
                return [Send(worker, pb.ToReplica(export=export))]
            case _:
                return [command]
