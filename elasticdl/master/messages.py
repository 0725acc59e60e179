"""Messages of replicas of any strategy as events, and the messages about leases, where shards are handed out."""

from __future__ import annotations

from collections.abc import Callable, Collection

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.plan import Kind, Shard
from elasticdl.master.side import Effect, Send
from elasticdl.wire import control_pb2 as pb


def event_of(replica: str, message: pb.FromReplica) -> e.Event:
    match message.WhichOneof("body"):
        case "hello":
            h = message.hello
            holdings = tuple(
                e.Holding(x.shard, x.attempt, x.next_batch, x.completed, x.result, x.skipped) for x in h.holdings
            )
            return e.ReplicaJoined(
                replica, h.incarnation, h.address, holdings, h.capacity, h.timeline, h.generation, h.fingerprint
            )
        case "leaving":
            return e.ReplicaLeaving(replica)
        case "unfit":
            return e.WorkerUnfit(replica, message.unfit.error)
        case "wrote":
            w = message.wrote
            return e.ServerWrote(replica, w.cut, w.part, w.error)
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
        case kind:
            raise ValueError(f"a message from {replica} that this job does not know: {kind}")


def effects_of(
    command: c.Command, leased: Callable[[str], Shard | None], bad_records: Collection[int] = ()
) -> list[Effect]:
    """Messages about leases; other commands as they are."""
    match command:
        case c.GrantLease(worker, shard_id, attempt):
            s = leased(shard_id)
            if s is None or s.attempt != attempt:
                return []  # taken back by a later decision about the same event
            # Numbers of training records: they mean nothing for validation data.
            bad = bad_records if s.kind in (Kind.TRAIN, Kind.PROBE, Kind.AUDIT) else []
            grant = pb.Grant(
                shard=s.id, attempt=s.attempt, kind=s.kind, round=s.round, start=s.start, stop=s.stop,
                batches=s.batches, next_batch=s.next_batch, payload=s.payload, bad_records=bad, careful=s.careful,
            )  # fmt: skip
            return [Send(worker, pb.ToReplica(grant=grant))]
        case c.RevokeLease(worker, shard_id, attempt, reason):
            revoke = pb.Revoke(shard=shard_id, attempt=attempt, reason=reason)
            return [Send(worker, pb.ToReplica(revoke=revoke))]
        case c.CloseLease(worker, shard_id, attempt):
            return [Send(worker, pb.ToReplica(close=pb.Close(shard=shard_id, attempt=attempt)))]
        case _:
            return [command]
