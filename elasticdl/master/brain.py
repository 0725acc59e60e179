"""Between core and the wire: messages become events, commands become messages. No I/O: simulations run it as it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.plan import Kind, Shard
from elasticdl.core.replicas import State
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
from elasticdl.wire import control_pb2 as pb


@dataclass(frozen=True)
class Send:
    """A message for one replica, to go out on its stream if it has one."""

    replica: str
    message: pb.ToReplica


Effect = Send | c.Command


def event_of(replica: str, message: pb.FromReplica) -> e.Event:
    """What a replica's message says, as an event."""
    match message.WhichOneof("body"):
        case "hello":
            h = message.hello
            holdings = tuple(
                e.Holding(x.shard, x.attempt, x.next_batch, x.completed, x.result, x.skipped) for x in h.holdings
            )
            return e.ReplicaJoined(
                replica, h.incarnation, h.address, holdings, h.capacity, h.timeline, h.generation, h.fingerprint
            )
        case "progress":
            p = message.progress
            return e.BatchesCommitted(replica, p.shard, p.attempt, p.next_batch, p.loss, p.skipped)
        case "completed":
            d = message.completed
            return e.ShardCompleted(replica, d.shard, d.attempt, d.result)
        case "failed":
            f = message.failed
            return e.BatchFailed(replica, f.shard, f.attempt, f.batch, f.error)
        case "returned":
            r = message.returned
            return e.LeaseReturned(replica, r.shard, r.attempt, r.reason)
        case "leaving":
            return e.ReplicaLeaving(replica)
        case "unfit":
            return e.WorkerUnfit(replica, message.unfit.error)
        case "held":
            counters = tuple((x.shard, x.next_batch) for x in message.held.counters)
            return e.ServerHeld(replica, message.held.cut, counters, message.held.at, message.held.coming)
        case "frozen":
            return e.ServerCut(replica, message.frozen.cut)
        case "wrote":
            w = message.wrote
            return e.ServerWrote(replica, w.cut, w.part, w.error)
        case "restored":
            return e.ServerRestored(replica, message.restored.timeline, message.restored.error)
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
    raise ValueError(f"an empty message from {replica}")


def events_of_hello(replica: str, hello: pb.Hello) -> list[e.Event]:
    """That a replica is there, and what it says again, since the stream before may not have carried it.

    Which records it set aside comes first: as soon as the last worker is back, the audit may be asked for.
    """
    said = [pb.FromReplica(set_aside=x) for x in hello.set_aside]
    said.append(pb.FromReplica(hello=hello))
    said += [pb.FromReplica(evaluated=x) for x in hello.evaluations]
    said += [pb.FromReplica(wrote=x) for x in hello.wrote]
    if hello.HasField("exported"):
        said.append(pb.FromReplica(exported=hello.exported))
    return [event_of(replica, message) for message in said]


@dataclass
class Brain:
    """The job's decisions as effects: messages to send, and commands that only the shell can carry out."""

    job: ParameterServerMachine
    checkpoint_dir: str = ""

    def decide(self, event: e.Event, now: float) -> list[Effect]:
        out: list[Effect] = []
        for command in self.job.handle(event, now):
            out += self._effects(command)
        return out

    def _effects(self, command: c.Command) -> Iterable[Effect]:
        match command:
            case c.GrantLease(worker, shard_id, attempt):
                shard = self.job.shards.leased.get(shard_id)
                if shard is None or shard.attempt != attempt:
                    return []  # taken back by a later decision about the same event
                grants = [Send(worker, pb.ToReplica(grant=self._grant(shard)))]
                if shard.kind is Kind.TRAIN:
                    opened = pb.ToReplica(opened=_opened(shard))
                    return [*(Send(s, opened) for s in self._servers()), *grants]
                return grants
            case c.RevokeLease(worker, shard_id, attempt, reason):
                revoke = pb.Revoke(shard=shard_id, attempt=attempt, reason=reason)
                return [Send(worker, pb.ToReplica(revoke=revoke))]
            case c.CloseLease(worker, shard_id, attempt):
                return [Send(worker, pb.ToReplica(close=pb.Close(shard=shard_id, attempt=attempt)))]
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
                directory = partial_directory(self.checkpoint_dir, self.job.terms.job, cut)
                freeze = pb.Freeze(cut=cut, purpose=purpose, directory=directory)
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
                plan = self.job.terms.plan
                restore = pb.Restore(
                    timeline=timeline, directory=directory, version=position.version, open=reached, servers=servers,
                    round_batches=plan.round_batches, epoch_batches=plan.batches_per_epoch, tolerance=plan.tolerance,
                )  # fmt: skip
                return [Send(server, pb.ToReplica(restore=restore))]
            case c.DropView(cut):
                return self._to_servers(pb.ToReplica(drop_view=pb.DropView(cut=cut)))
            case _:
                return [command]

    def _servers(self) -> list[str]:
        return [r.name for r in self.job.replicas.joined("ps") if r.name in self.job.servers.names]

    def _to_servers(self, message: pb.ToReplica, server: str = "") -> list[Effect]:
        return [Send(s, message) for s in ([server] if server else self._servers())]

    def _grant(self, s: Shard) -> pb.Grant:
        # Numbers of training records: they mean nothing for validation data.
        trains = s.kind in (Kind.TRAIN, Kind.PROBE, Kind.AUDIT)
        bad = [b.record for b in self.job.shards.searches.bad_records] if trains else []
        return pb.Grant(
            shard=s.id, attempt=s.attempt, kind=s.kind, round=s.round, start=s.start, stop=s.stop,
            batches=s.batches, next_batch=s.next_batch, payload=s.payload, bad_records=bad, careful=s.careful,
        )  # fmt: skip

    def _tell(self, name: str) -> list[Effect]:
        replicas = self.job.replicas.replicas
        if name and replicas[name].role == "ps":
            opened = [_opened(s) for s in self.job.shards.open_training()]
            return [Send(name, pb.ToReplica(open_shards=pb.OpenShards(open=opened)))]
        servers = sorted((r for r in replicas.values() if r.role == "ps" and r.address), key=lambda r: r.index)
        known = [r.address for r in servers if r.state is not State.GONE and r.name in self.job.servers.names]
        whole = not self.job.shards.paused and len(known) == len(self.job.servers.names)
        addresses = known if whole else []
        timeline = self.job.servers.checkpoints.timeline
        members = pb.ToReplica(members=pb.Members(timeline=timeline, servers=addresses))
        names = [name] if name else [r.name for r in self.job.replicas.joined("worker")]
        return [Send(n, members) for n in names]


def partial_directory(checkpoint_dir: str, job: str, cut: int | str) -> str:
    """Where servers write their parts of a cut: a checkpoint only once the master has renamed it."""
    return f"{checkpoint_dir}/{job}.cut-{cut}.partial"


def _opened(s: Shard) -> pb.Opened:
    return pb.Opened(shard=s.id, attempt=s.attempt, next_batch=s.next_batch, batches=s.batches)
