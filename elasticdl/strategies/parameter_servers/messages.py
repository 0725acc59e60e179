"""Between the machine of a parameter-server job and the wire, without I/O: simulations run it as it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.plan import Kind, Shard
from elasticdl.core.replicas import State
from elasticdl.master import messages
from elasticdl.master.checkpoint_folder import CheckpointFolder
from elasticdl.master.side import Effect, Send
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
from elasticdl.wire import control_pb2 as pb


def event_of(replica: str, message: pb.FromReplica) -> e.Event:
    match message.WhichOneof("body"):
        case "held":
            counters = tuple((x.shard, x.next_batch) for x in message.held.counters)
            return e.ServerHeld(replica, message.held.cut, counters, message.held.at, message.held.coming)
        case "frozen":
            return e.ServerCut(replica, message.frozen.cut)
        case "restored":
            return e.ServerRestored(replica, message.restored.timeline, message.restored.error)
        case _:
            return messages.event_of(replica, message)


@dataclass
class Commands:
    """The machine's decisions as messages to send; those that only the master can carry out stay as they are."""

    machine: ParameterServerMachine
    folder: CheckpointFolder

    def effects(self, command: c.Command) -> Iterable[Effect]:
        match command:
            case c.GrantLease(_, shard_id):
                shard = self.machine.shards.leased.get(shard_id)
                bad = [b.record for b in self.machine.shards.searches.bad_records]
                grant = messages.effects_of(command, self.machine.shards.leased.get, bad)
                if not grant or shard is None or shard.kind is not Kind.TRAIN:
                    return grant
                return [*self._to_servers(pb.ToReplica(opened=_opened(shard))), *grant]
            case c.CloseShard(shard_id):
                return self._to_servers(pb.ToReplica(close_shard=pb.CloseShard(shard=shard_id)))
            case c.CloseEpoch(epoch):
                return self._to_servers(pb.ToReplica(close_epoch=pb.CloseEpoch(epoch=epoch)))
            case c.TellMembers(name):
                return self._tell(name)
            case c.HoldServers(cut, at, server):
                return self._to_servers(pb.ToReplica(hold=pb.Hold(cut=cut, at=at)), server)
            case c.AdvanceServers(cut, counters, server):
                pairs = [pb.Counter(shard=s, next_batch=n) for s, n in counters]
                return self._to_servers(pb.ToReplica(advance=pb.Advance(cut=cut, counters=pairs)), server)
            case c.CutServers(cut, purpose, server):
                freeze = pb.Freeze(cut=cut, purpose=purpose, directory=self.folder.partial(cut))
                return self._to_servers(pb.ToReplica(freeze=freeze), server)
            case c.ReleaseServers(cut, server):
                return self._to_servers(pb.ToReplica(release=pb.Release(cut=cut)), server)
            case c.SettleSave(cut, directory, server):
                settle = pb.Settle(cut=cut, published=bool(directory), directory=directory)
                return self._to_servers(pb.ToReplica(settle=settle), server)
            case c.RestoreServer(server, timeline, directory, position, servers):
                reached = [
                    pb.Opened(shard=s, next_batch=n, batches=batches) for s, (n, batches) in position.open.items()
                ]
                plan = self.machine.terms.plan
                restore = pb.Restore(
                    timeline=timeline, directory=directory, version=position.version, open=reached, servers=servers,
                    round_batches=plan.round_batches, epoch_batches=plan.batches_per_epoch, tolerance=plan.tolerance,
                )  # fmt: skip
                return [Send(server, pb.ToReplica(restore=restore))]
            case c.DropView(cut):
                return self._to_servers(pb.ToReplica(drop_view=pb.DropView(cut=cut)))
            case _:
                return messages.effects_of(command, self.machine.shards.leased.get)

    def _servers(self) -> list[str]:
        return [r.name for r in self.machine.replicas.joined("ps") if r.name in self.machine.servers.names]

    def _to_servers(self, message: pb.ToReplica, server: str = "") -> list[Effect]:
        return [Send(s, message) for s in ([server] if server else self._servers())]

    def _tell(self, name: str) -> list[Effect]:
        replicas = self.machine.replicas.replicas
        if name and replicas[name].role == "ps":
            opened = [_opened(s) for s in self.machine.shards.open_training()]
            return [Send(name, pb.ToReplica(open_shards=pb.OpenShards(open=opened)))]
        servers = sorted((r for r in replicas.values() if r.role == "ps" and r.address), key=lambda r: r.index)
        known = [r.address for r in servers if r.state is not State.GONE and r.name in self.machine.servers.names]
        whole = not self.machine.shards.paused and len(known) == len(self.machine.servers.names)
        addresses = known if whole else []
        timeline = self.machine.servers.checkpoints.timeline
        members = pb.ToReplica(members=pb.Members(timeline=timeline, servers=addresses))
        names = [name] if name else [r.name for r in self.machine.replicas.joined("worker")]
        return [Send(n, members) for n in names]


def _opened(s: Shard) -> pb.Opened:
    return pb.Opened(shard=s.id, attempt=s.attempt, next_batch=s.next_batch, batches=s.batches)
