"""Between the machine of an all-reduce job and the wire, without I/O: simulations run it as it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.master import messages
from elasticdl.master.checkpoint_folder import CheckpointFolder
from elasticdl.master.side import Effect, Send
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.wire import control_pb2 as pb

EVALUATIONS_TOLD = 64  # far more than a worker remembers


def events_of(replica: str, message: pb.FromReplica) -> list[e.Event]:
    """A hello repeats what the previous stream may have lost.

    Records that were set aside come first: as soon as the last worker is back, the audit may be requested.
    """
    said = [message]
    if message.WhichOneof("body") == "hello":
        hello = message.hello
        said = [*(pb.FromReplica(set_aside=x) for x in hello.set_aside), message]
        said += [pb.FromReplica(evaluated=x) for x in hello.evaluations]
        said += [pb.FromReplica(wrote=x) for x in hello.wrote]
        if hello.HasField("exported"):
            said.append(pb.FromReplica(exported=hello.exported))
    return [_event_of(replica, one) for one in said]


def _event_of(replica: str, message: pb.FromReplica) -> e.Event:
    match message.WhichOneof("body"):
        case "confirmed":
            k = message.confirmed
            held = (k.state.generation, k.state.step)
            return e.WorldConfirmed(replica, k.generation, held, k.left_seconds, k.state.records)
        case "broken":
            b = message.broken
            return e.WorldBroken(replica, b.generation, b.step, b.error, tuple(b.suspects), b.unreadable)
        case "formed":
            m = message.formed
            return e.WorldFormed(replica, m.generation, m.build_seconds, m.copy_seconds, m.copied_bytes)
        case "set_aside":
            s = message.set_aside
            return e.RecordLeftOut(replica, s.record, s.name, s.error)
        case "evaluated":
            return e.ModelEvaluated(replica, message.evaluated.version, message.evaluated.metrics)
        case "exported":
            x = message.exported
            return e.ModelExported(replica, x.directory, x.error, x.audit, x.number)
        case _:
            return messages.event_of(replica, message)


@dataclass
class Commands:
    """The machine's decisions as messages to send; those that only the master can carry out stay as they are."""

    machine: AllreduceMachine
    folder: CheckpointFolder
    output: str = ""
    run: int = 0  # tells this run of the job from others that write their model to the same place

    def effects(self, command: c.Command) -> Iterable[Effect]:
        match command:
            case c.ProposeWorld(generation, members, to, urgent, reason):
                proposal = pb.Proposal(generation=generation, members=members, urgent=urgent, reason=reason)
                return [Send(name, pb.ToReplica(proposal=proposal)) for name in to]
            case c.StartWorld(generation, members, to, state, copies, directory):
                start = pb.Start(
                    generation=generation, members=members, copies=copies, directory=directory,
                    state=pb.StateName(generation=state[0], step=state[1]),
                    evaluated=[version for version, _ in self.machine.evaluations[-EVALUATIONS_TOLD:]],
                )  # fmt: skip
                return [Send(name, pb.ToReplica(start=start)) for name in to]
            case c.SaveState(worker, cut, at):
                return [Send(worker, pb.ToReplica(save=pb.Save(cut=cut, directory=self.folder.partial(cut), at=at)))]
            case c.SettleSave(cut, directory, worker):
                settle = pb.ToReplica(settle=pb.Settle(cut=cut, published=bool(directory), directory=directory))
                # A worker that is leaving may wait for it.
                names = [worker] if worker else list(self.machine.membership.workers)
                return [Send(name, settle) for name in names]
            case c.AskForStack(worker, reason):
                return [Send(worker, pb.ToReplica(hung=pb.Hung(reason=reason)))]
            case c.ExportModel(worker, number):
                directory = self.output if self.machine.terms.export else ""
                bad = [b.record for b in self.machine.bad_records]
                export = pb.Export(
                    directory=directory, audit=self.machine.terms.audit, bad_records=bad, number=number, run=self.run
                )
                return [Send(worker, pb.ToReplica(export=export))]
            case _:
                return [command]
