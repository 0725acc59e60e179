"""A worker's side of the control stream of an all-reduce job, without any I/O: its world, and what comes next.

Every decision that does not need the model is here: when to leave a world, what to confirm, what to build, when to stop
for lack of a master. Nothing that matters is lost with a broken stream: the next Hello says all of it again.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from elasticdl.wire import PROTOCOL
from elasticdl.wire import control_pb2 as pb

State = tuple[int, int]  # the generation of the world that committed the last step, and how many steps there are
NOTHING: State = (0, 0)
REMEMBERED_EVALUATIONS = 16
REMEMBERED_STEPS = 15  # whose median is the step time


class Todo(StrEnum):
    """What the training thread does next."""

    END = "end"  # the job is over for this worker
    LEAVE = "leave"  # give the world up
    CONFIRM = "confirm"  # say that no world holds this worker any more, and which state it has
    BUILD = "build"  # the world that all its members have confirmed
    SAVE = "save"
    EXPORT = "export"
    TRAIN = "train"  # whatever the plan of the job says
    WAIT = "wait"  # for the master


@dataclass
class WorldSession:
    replica: str
    incarnation: str
    grace_seconds: float
    fingerprint: str = ""
    state: State = NOTHING
    records: int = 0  # that the steps of the state trained
    world: pb.Start | None = None  # the one this worker is in: started, and not left
    formed: bool = False  # its group stands, and this worker holds its state
    proposal: pb.Proposal | None = None  # the newest
    newest: int = 0  # generation that was heard of
    left: int = 0  # the newest generation that this worker gave up; it never goes back
    confirmed: int = 0
    start: pb.Start | None = None  # of the newest world, until it is entered
    answered: bool = False  # whether the newest proposal was confirmed since it was last said
    stopping: bool = False  # the members agreed in an exchange to stop after this step
    stored: dict[str, bytes] = field(default_factory=dict)  # what other members of the newest world put into its store
    saves: dict[int, pb.Save] = field(default_factory=dict)  # asked for and not begun
    export: pb.Export | None = None
    shutdown: str = ""
    leaving: bool = False
    master_epoch: int = 0
    away_since: float | None = None  # without a stream; before the first one, too
    evaluations: deque[pb.Evaluated] = field(default_factory=lambda: deque(maxlen=REMEMBERED_EVALUATIONS))
    wrote: dict[int, pb.Wrote] = field(default_factory=dict)  # without an answer yet
    unsettled: set[int] = field(default_factory=set)  # saves that were begun, and are no checkpoint yet
    exported: pb.Exported | None = None
    bad_records: dict[int, pb.SetAside] = field(default_factory=dict)  # that this worker left out
    phase: str = "wait"
    phase_since: float = 0.0
    loss: float | None = None
    first_step_seconds: float = 0.0  # of the present world
    left_seconds: float = 0.0  # from hearing of the newest proposal until the world before was left
    _step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_STEPS))
    _said: dict[str, bytes] = field(default_factory=dict)  # what this worker put into the store of the newest world
    _old_master: bool = False  # the stream leads to a master that has a successor
    _broken: pb.Broken | None = None  # of the generation left last, if it broke by itself
    _urgent: str = ""  # why the present world is to be left at once
    _midway: bool = False  # the world left last was left in the middle of a step
    _released: int = 0  # the newest generation that does without this worker: it trains, or nobody does

    # What is heard.

    def hello(self) -> pb.FromReplica:
        hello = pb.Hello(
            protocol=PROTOCOL,
            replica=self.replica,
            incarnation=self.incarnation,
            capacity=0 if self.leaving else 1,
            generation=self.generation,
            state=self._named,
            fingerprint=self.fingerprint,
            evaluations=self.evaluations,
            wrote=self.wrote.values(),
            set_aside=self.bad_records.values(),
        )
        if self.exported is not None:
            hello.exported.CopyFrom(self.exported)
        return pb.FromReplica(hello=hello)

    def receive(self, message: pb.ToReplica) -> list[pb.FromReplica]:
        """Take in what the master says; what to answer at once."""
        kind = message.WhichOneof("body")
        if kind == "welcome":
            return self._welcomed(message.welcome.master_epoch)
        if self._old_master:
            return []
        if kind == "proposal":
            self._proposed(message.proposal)
        elif kind == "start":
            return self._started(message.start)
        elif kind == "stored":
            if message.stored.generation == self.newest:
                self.stored[message.stored.key] = message.stored.value
        elif kind == "save":
            if message.save.cut in self.wrote:
                return [pb.FromReplica(wrote=self.wrote[message.save.cut])]
            if message.save.cut not in self.unsettled:  # what is being written is not begun again, in the same folder
                self.saves[message.save.cut] = message.save
        elif kind == "settle":
            self.saves.pop(message.settle.cut, None)
            self.wrote.pop(message.settle.cut, None)
            self.unsettled.discard(message.settle.cut)
        elif kind == "export":
            if self.exported is not None and _answers(self.exported, message.export):
                return [pb.FromReplica(exported=self.exported)]
            self.export = message.export
        elif kind == "shutdown":
            self.shutdown = message.shutdown.reason or "the job is over"
        return []

    def connected(self) -> None:
        """There is a stream, and the master said something on it."""
        self.away_since = None

    def disconnected(self, now: float) -> None:
        """There is no stream."""
        if self.away_since is None:
            self.away_since = now

    def cut_off(self, now: float) -> bool:
        """Whether the master was away for so long that it may have started another world: nothing counts any more."""
        return self.away_since is not None and now - self.away_since > self.grace_seconds

    def _welcomed(self, epoch: int) -> list[pb.FromReplica]:
        self._old_master = epoch < self.master_epoch
        if self._old_master:
            return []
        self.master_epoch = epoch
        # What a breaking stream may have swallowed: what others need to build their groups, or that this one stands.
        if self.world is None:
            return []
        if self.formed:
            return [pb.FromReplica(formed=pb.Formed(generation=self.world.generation))]
        return [self._stored(self.world.generation, key, value) for key, value in self._said.items()]

    def _proposed(self, proposal: pb.Proposal) -> None:
        if proposal.generation < self.newest:
            return
        self._hear_of(proposal.generation)
        self.proposal, self.answered = proposal, False
        if not proposal.members:  # what is to be saved was asked for before
            self._released = max(self._released, proposal.generation)
        if proposal.urgent and self.world is not None and proposal.generation > self.world.generation:
            # It stays so, whatever is proposed next: others have left this world, and no step of it will end.
            self._urgent = proposal.reason or f"world {proposal.generation} comes"

    def _started(self, start: pb.Start) -> list[pb.FromReplica]:
        if self.replica not in start.members:
            self._released = max(self._released, start.generation)
            return []
        if start.generation < self.newest:
            return []
        self._hear_of(start.generation)
        if start.generation > max(self.left, self.generation):
            self.start = start
        elif self._broken is not None and self._broken.generation == start.generation:
            return [pb.FromReplica(broken=self._broken)]  # the master has not heard it
        return []

    def _hear_of(self, generation: int) -> None:
        if generation > self.newest:
            self.newest = generation
            self.stored.clear()
            self.start = None

    # What comes next.

    @property
    def generation(self) -> int:
        return self.world.generation if self.world is not None else 0

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self.world.members) if self.world is not None else ()

    @property
    def rank(self) -> int:
        """In the present world."""
        return self.members.index(self.replica)

    @property
    def flag(self) -> bool:
        """What an exchange carries: whether this member knows that the world is to end with the step."""
        return self.world is not None and self.newest > self.world.generation

    @property
    def called_off(self) -> str:
        """Why not even the step in flight is to be finished; empty when it is."""
        if self.shutdown:
            return self.shutdown
        return self._urgent

    def todo(self, idle: bool = False) -> Todo:
        """Between two parts of a step, where the model is what was committed last. `idle`: every step is done."""
        if self.shutdown:
            return Todo.END
        if self.world is not None:
            if self.called_off or self.stopping or (idle and self._newer is not None):
                return Todo.LEAVE
            if not self.formed:
                return Todo.BUILD
            if self.save_due() is not None:
                return Todo.SAVE
            if idle:
                return Todo.WAIT if self.export is None else Todo.EXPORT
            return Todo.TRAIN
        if self.save_due() is not None:
            return Todo.SAVE
        if self.start is not None and self.left < self.start.generation == self.confirmed:
            return Todo.BUILD
        wanted = self.proposal is not None and self.replica in self.proposal.members
        wanted = wanted and self.newest > self.left
        if self.leaving and not wanted:
            # Others may need what it is writing; the master says when that is safe, or that it is not needed. After a
            # world that broke it may be the only one left with the state, until it hears of one that goes on.
            return Todo.WAIT if self.unsettled or self._needed else Todo.END
        return Todo.CONFIRM if wanted and not self.answered else Todo.WAIT

    @property
    def _needed(self) -> bool:
        return self._midway and self.state[1] > 0 and self._released <= self.left

    def save_due(self) -> pb.Save | None:
        """The checkpoint to write now."""
        return next((save for save in self.saves.values() if save.at <= self.state[1]), None)

    @property
    def _newer(self) -> pb.Proposal | None:
        """A proposal that ends the present world."""
        if self.proposal is None or self.world is None or self.proposal.generation <= self.world.generation:
            return None
        return self.proposal

    # What the worker does.

    def confirm(self) -> list[pb.FromReplica]:
        """No world holds this worker any more; it will be in the newest one, once that starts."""
        assert self.world is None and self.proposal is not None
        self.confirmed, self.answered = self.proposal.generation, True
        confirmed = pb.Confirmed(generation=self.confirmed, state=self._named, left_seconds=self.left_seconds)
        return [pb.FromReplica(confirmed=confirmed)]

    def enter(self) -> pb.Start | None:
        """Begin to build the world that was started, unless another one was proposed since `todo` was asked."""
        assert self.world is None
        if self.start is None:
            return None
        self.world, self.start = self.start, None
        self.formed = self.stopping = False
        self.first_step_seconds = self.left_seconds = 0.0
        self._said.clear()
        return self.world

    def loaded(self, records: int) -> None:
        """The state of the world that is being built is here, whole: so it is called, whatever becomes of the world."""
        assert self.world is not None
        self.state, self.records = (self.world.state.generation, self.world.state.step), records
        for evaluation in [e for e in self.evaluations if e.version > self.state[1]]:
            self.evaluations.remove(evaluation)  # of steps that are lost

    def form(
        self, build_seconds: float, copy_seconds: float, copied_bytes: int, unheard: Collection[int] = ()
    ) -> list[pb.FromReplica]:
        """The group stands and the state is that of the world. `unheard`: evaluations that this member is to say."""
        assert self.world is not None
        self.formed = True
        if self.state != (self.world.state.generation, self.world.state.step):
            self.loaded(self.records)
        formed = pb.Formed(
            generation=self.world.generation,
            build_seconds=build_seconds,
            copy_seconds=copy_seconds,
            copied_bytes=copied_bytes,
        )
        again = [pb.FromReplica(evaluated=e) for e in self.evaluations if e.version in unheard]
        return [pb.FromReplica(formed=formed), *again]

    def commit(self, loss: float | None, seconds: float, stop: bool, records: int = 0) -> bool:
        """One more step is in the model; whether it is the world's first. `stop`: some member knew of a world to come,
        so all stop here. A loss that is None is not known yet. `records` are those of all steps so far."""
        assert self.world is not None and self.formed
        self.state, self.records = (self.world.generation, self.state[1] + 1), records
        self.loss = self.loss if loss is None else loss
        self._step_seconds.append(seconds)
        self.stopping = self.stopping or stop
        first = not self.first_step_seconds
        if first:
            self.first_step_seconds = seconds
        return first

    def leave_world(self, error: str = "", suspects: Sequence[str] = (), unreadable: str = "") -> list[pb.FromReplica]:
        """Give the present world up for good; with an error, because it broke by itself."""
        assert self.world is not None
        self._midway = bool(error or self._urgent)
        self.left, self.world, self._urgent = self.world.generation, None, ""
        self.formed = self.stopping = False
        self._broken = None
        if not error:
            return []
        self._broken = pb.Broken(
            generation=self.left, step=self.state[1], error=error, suspects=suspects, unreadable=unreadable
        )
        return [pb.FromReplica(broken=self._broken)]

    def store(self, generation: int, key: str, value: bytes) -> list[pb.FromReplica]:
        """Put something into the store of the world that is being built."""
        if generation != self.generation:
            return []
        self._said[key] = value
        return [self._stored(generation, key, value)]

    def evaluated(self, version: int, metrics: str, say: bool) -> list[pb.FromReplica]:
        """The metrics of a version are known to every member; one of them says so, all can."""
        found = pb.Evaluated(version=version, metrics=metrics)
        if all(e.version != version for e in self.evaluations):
            self.evaluations.append(found)
        return [pb.FromReplica(evaluated=found)] if say else []

    def begin_save(self, cut: int) -> None:
        self.saves.pop(cut, None)
        self.unsettled.add(cut)

    def saved(self, cut: int, part: str, error: str) -> list[pb.FromReplica]:
        self.wrote[cut] = pb.Wrote(cut=cut, part=part, error=error)
        return [pb.FromReplica(wrote=self.wrote[cut])]

    def export_done(self, asked: pb.Export, error: str, audit: str) -> list[pb.FromReplica]:
        self.exported = pb.Exported(directory=asked.directory, error=error, audit=audit, number=asked.number)
        if self.export is not None and _answers(self.exported, self.export):  # and it was not asked anew meanwhile
            self.export = None
        return [pb.FromReplica(exported=self.exported)]

    def leave(self) -> list[pb.FromReplica]:
        """SIGTERM came: go at the end of the step, when the master has seen to it that the others can go on."""
        self.leaving = True
        return [pb.FromReplica(leaving=pb.Leaving())]

    def set_aside(self, record: int, name: str, error: str) -> list[pb.FromReplica]:
        """A record was left out; said once, and again with each Hello."""
        if record in self.bad_records:
            return []
        self.bad_records[record] = pb.SetAside(record=record, name=name, error=error)
        return [pb.FromReplica(set_aside=self.bad_records[record])]

    def unfit(self, error: str) -> list[pb.FromReplica]:
        """The user's model or data is wrong: no other worker would do better."""
        return [pb.FromReplica(unfit=pb.Unfit(error=error))]

    def doing(self, phase: str, now: float) -> float:
        """The training thread begins something else, or the same once more; how long the last thing took."""
        took = now - self.phase_since
        self.phase, self.phase_since = phase, now
        return took

    def pulse(self, now: float) -> pb.FromReplica:
        pulse = pb.Pulse(
            generation=self.generation,
            step=self.state[1],
            phase=self.phase,
            seconds=max(0.0, now - self.phase_since),
            step_seconds=self.step_seconds,
            first_step_seconds=self.first_step_seconds,
            records=self.records,
        )
        if self.loss is not None:
            pulse.loss, pulse.has_loss = self.loss, True
        return pb.FromReplica(pulse=pulse)

    @property
    def step_seconds(self) -> float:
        return statistics.median(self._step_seconds) if self._step_seconds else 0.0

    def stored_for(self, generation: int) -> Mapping[str, bytes]:
        """What others have put into the store of this world so far."""
        return dict(self.stored) if generation == self.newest else {}

    def _stored(self, generation: int, key: str, value: bytes) -> pb.FromReplica:
        return pb.FromReplica(stored=pb.Stored(generation=generation, key=key, value=value))

    @property
    def _named(self) -> pb.StateName:
        return pb.StateName(generation=self.state[0], step=self.state[1], records=self.records)


def _answers(exported: pb.Exported, asked: pb.Export) -> bool:
    return (exported.directory, exported.number) == (asked.directory, asked.number)
