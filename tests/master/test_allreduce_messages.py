"""What the master of an all-reduce job makes of a worker's Hello, and says at the end."""

from __future__ import annotations

from elasticdl.core import events as e
from elasticdl.core.steps import StepPlan
from elasticdl.master.side import Send
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.strategies.allreduce.core.membership import NOTHING
from elasticdl.strategies.allreduce.core.terms import AllreduceTerms
from elasticdl.strategies.allreduce.master import AllreduceSide
from elasticdl.strategies.allreduce.messages import events_of
from elasticdl.wire import control_pb2 as pb
from tests.master.sides import context

W = ("elasticdl-j-worker-0", "elasticdl-j-worker-1")


def test_the_audit_hears_of_every_record_that_the_last_worker_to_come_back_set_aside() -> None:
    job = AllreduceMachine.new(AllreduceTerms("j", 2, StepPlan(8, 4, 2, 1), audit=True, max_bad_records=2))
    side = AllreduceSide(job, context(started_at=77e-6))
    side.decide(e.MasterStarted(), 0.0)
    for name in W:
        side.decide(e.ReplicaStarted(name, f"uid-{name}"), 0.0)
        for event in events_of(name, pb.FromReplica(hello=pb.Hello(replica=name, incarnation=name, capacity=1))):
            side.decide(event, 0.0)
    for name in W:
        side.decide(e.WorldConfirmed(name, 1, NOTHING), 1.0)
    for name in W:
        side.decide(e.WorldFormed(name, 1), 1.0)
    side.decide(e.ReplicaDropped(W[1], W[1]), 2.0)
    assert side.decide(e.StepsCommitted(W[0], 1, 2, 0.5), 3.0) == []

    hello = pb.Hello(replica=W[1], incarnation=W[1], capacity=1, generation=1)
    hello.set_aside.add(record=5, name="record 5 of f", error="torn")
    heard = [x for event in events_of(W[1], pb.FromReplica(hello=hello)) for x in side.decide(event, 4.0)]
    sent = [x for x in heard if isinstance(x, Send) and x.message.WhichOneof("body") == "export"]
    assert [(x.replica, list(x.message.export.bad_records)) for x in sent] == [(W[0], [5])]
    assert [(x.message.export.run, x.message.export.number) for x in sent] == [(77, 1)]
    hello = pb.Hello(replica=W[0], incarnation=W[0], exported=pb.Exported(number=1))
    said = events_of(W[0], pb.FromReplica(hello=hello))
    assert e.ModelExported(W[0], "", number=1) in said


def test_a_world_is_told_which_evaluations_need_not_be_said_again() -> None:
    job = AllreduceMachine.new(AllreduceTerms("j", 2, StepPlan(8, 4, 2, 1), validation_records=8))
    side = AllreduceSide(job, context())
    side.decide(e.MasterStarted(), 0.0)
    for name in W:
        side.decide(e.ReplicaStarted(name, f"uid-{name}"), 0.0)
        side.decide(e.ReplicaJoined(name, name, capacity=1), 0.0)

    def starts(state: tuple[int, int]) -> list[list[int]]:
        generation = job.membership.generation
        effects = [x for name in W for x in side.decide(e.WorldConfirmed(name, generation, state), 1.0)]
        sent = [x.message for x in effects if isinstance(x, Send)]
        return [list(m.start.evaluated) for m in sent if m.WhichOneof("body") == "start"]

    assert starts(NOTHING) == [[], []]
    side.decide(e.StepsCommitted(W[0], 1, 1, 0.5), 2.0)
    side.decide(e.ModelEvaluated(W[0], 1, '{"accuracy": 0.5}'), 2.0)
    side.decide(e.WorldBroken(W[0], 1, 1, "connection reset"), 2.0)
    assert starts((1, 1)) == [[1], [1]]
