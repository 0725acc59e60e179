"""A worker's side of the control stream of an all-reduce job, without any I/O.

It decides whatever does not need the model: when to leave a world, what to confirm, what to build, and when to stop
because the master stays away. A broken stream loses nothing that matters: the next Hello repeats it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from elasticdl.collective.activity import Activity
from elasticdl.collective.save_requests import SaveRequests
from elasticdl.collective.world_membership import WorldMembership
from elasticdl.wire import PROTOCOL
from elasticdl.wire import control_pb2 as pb

REMEMBERED_EVALUATIONS = 16


class Todo(StrEnum):
    """What the training thread does next."""

    END = "end"  # the job is over for this worker
    LEAVE = "leave"  # the current world
    CONFIRM = "confirm"  # that this worker is in no world, and which state it has
    BUILD = "build"  # the world that all its members have confirmed
    SAVE = "save"
    EXPORT = "export"
    TRAIN = "train"
    WAIT = "wait"  # for the master


@dataclass
class WorldSession:
    replica: str
    incarnation: str
    grace_seconds: float
    fingerprint: str = ""
    world: WorldMembership = field(init=False)
    saving: SaveRequests = field(default_factory=SaveRequests)
    activity: Activity = field(default_factory=Activity)
    shutdown: str = ""  # the reason, once the master ends this worker
    leaving: bool = False
    master_epoch: int = 0
    away_since: float | None = None  # without a stream, also before the first one
    evaluations: deque[pb.Evaluated] = field(default_factory=lambda: deque(maxlen=REMEMBERED_EVALUATIONS))
    bad_records: dict[int, pb.SetAside] = field(default_factory=dict)  # left out by this worker
    _old_master: bool = False  # the stream leads to a master that has a successor

    def __post_init__(self) -> None:
        self.world = WorldMembership(self.replica)

    # Messages.

    def hello(self) -> pb.FromReplica:
        hello = pb.Hello(
            protocol=PROTOCOL,
            replica=self.replica,
            incarnation=self.incarnation,
            capacity=0 if self.leaving else 1,
            generation=self.world.generation,
            state=self.world.state_name,
            fingerprint=self.fingerprint,
            evaluations=self.evaluations,
            wrote=self.saving.wrote.values(),
            set_aside=self.bad_records.values(),
            exported=self.saving.exported,
        )
        return pb.FromReplica(hello=hello)

    def receive(self, message: pb.ToReplica) -> list[pb.FromReplica]:
        """Take in a message of the master; what to answer at once."""
        match message.WhichOneof("body"):
            case "welcome":
                self._old_master = message.welcome.master_epoch < self.master_epoch
                if not self._old_master:
                    self.master_epoch = message.welcome.master_epoch
                    return self.world.resend()
            case _ if self._old_master:
                pass
            case "proposal":
                self.world.proposed(message.proposal)
            case "start":
                return self.world.started(message.start)
            case "stored":
                self.world.stored(message.stored)
            case "save":
                return self.saving.save_requested(message.save)
            case "settle":
                self.saving.settled(message.settle.cut)
            case "export":
                return self.saving.export_requested(message.export)
            case "shutdown":
                self.shutdown = message.shutdown.reason or "the job is over"
        return []

    def pulse(self, now: float) -> pb.FromReplica:
        world = self.world
        return pb.FromReplica(pulse=self.activity.pulse(world.generation, world.state[1], world.records, now))

    def connected(self) -> None:
        """There is a stream, and the master sent a message on it."""
        self.away_since = None

    def disconnected(self, now: float) -> None:
        """There is no stream."""
        if self.away_since is None:
            self.away_since = now

    def cut_off(self, now: float) -> bool:
        """Whether the master was away for so long that it may have started another world."""
        return self.away_since is not None and now - self.away_since > self.grace_seconds

    # What comes next.

    @property
    def called_off(self) -> str:
        """Why the step in flight must not be finished; empty where it may be."""
        return self.shutdown or self.world.called_off

    def todo(self, idle: bool = False) -> Todo:
        """Between two parts of a step, where the model is what was committed last. `idle`: every step is done."""
        if self.shutdown:
            return Todo.END
        world = self.world
        if world.current is not None:
            if world.called_off or world.stopping or (idle and world.replacement_proposed):
                return Todo.LEAVE
            if not world.formed:
                return Todo.BUILD
        if self.saving.due(world.state[1]) is not None:
            return Todo.SAVE
        if world.current is not None:
            if idle:
                return Todo.WAIT if self.saving.export is None else Todo.EXPORT
            return Todo.TRAIN
        if world.buildable:
            return Todo.BUILD
        if world.invited:
            return Todo.WAIT if world.answered else Todo.CONFIRM
        # Others may need what a leaving worker writes or holds; the master tells when they do not.
        return Todo.END if self.leaving and not (self.saving.unsettled or world.needed) else Todo.WAIT

    # What the worker does.

    def enter(self) -> pb.Start | None:
        """Begin to build the world that was started; None where another one was proposed meanwhile."""
        start = self.world.enter()
        if start is not None:
            self.activity.first_step_seconds = 0.0
        return start

    def loaded(self, records: int) -> None:
        """This worker has the whole state of the current world, also if the world is never formed."""
        self.world.loaded(records)
        for evaluation in [e for e in self.evaluations if e.version > self.world.state[1]]:
            self.evaluations.remove(evaluation)  # of steps that are lost

    def form(self, formed: pb.Formed, resend: Collection[int] = ()) -> list[pb.FromReplica]:
        """The group is connected, and this worker has the state. It sends the evaluations in `resend` again."""
        world = self.world
        assert world.current is not None
        world.formed = True
        if world.state != (world.current.state.generation, world.current.state.step):
            self.loaded(world.records)
        formed.generation = world.generation
        again = [pb.FromReplica(evaluated=e) for e in self.evaluations if e.version in resend]
        return [pb.FromReplica(formed=formed), *again]

    def commit(self, loss: float | None, seconds: float, stop: bool, records: int = 0) -> bool:
        """One more step is in the model; whether it is the world's first. `stop`: some member knows of a newer world,
        so all stop here. A loss of None is not known yet. `records` are those of all steps so far."""
        self.world.commit(stop, records)
        return self.activity.stepped(loss, seconds)

    def evaluated(self, version: int, metrics: str, send: bool) -> list[pb.FromReplica]:
        """Every member knows the metrics of this version; one of them sends them."""
        found = pb.Evaluated(version=version, metrics=metrics)
        if all(e.version != version for e in self.evaluations):
            self.evaluations.append(found)
        return [pb.FromReplica(evaluated=found)] if send else []

    def leave(self) -> list[pb.FromReplica]:
        """SIGTERM came: leave after the step, once the master has made sure that the others can go on."""
        self.leaving = True
        return [pb.FromReplica(leaving=pb.Leaving())]

    def set_aside(self, record: int, name: str, error: str) -> list[pb.FromReplica]:
        """A record was left out: sent once, and again with each Hello."""
        if record in self.bad_records:
            return []
        self.bad_records[record] = pb.SetAside(record=record, name=name, error=error)
        return [pb.FromReplica(set_aside=self.bad_records[record])]
