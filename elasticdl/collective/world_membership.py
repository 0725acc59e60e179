"""Which world a worker is in, without any I/O: proposed, confirmed, started, formed and left.

Part of it is the store of the newest world, through which its members exchange their addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticdl.wire import control_pb2 as pb

State = tuple[int, int]  # the generation of the world that committed the last step, and the number of steps
NOTHING: State = (0, 0)


@dataclass
class WorldMembership:
    replica: str
    state: State = NOTHING
    records: int = 0  # trained by the steps of the state
    current: pb.Start | None = None  # the world of this worker: started and not left
    formed: bool = False  # the group of the current world is connected, and this worker has its state
    stopping: bool = False  # the members agreed in an exchange to stop after this step
    proposal: pb.Proposal | None = None  # the newest
    newest: int = 0  # generation that a message named
    left: int = 0  # the newest generation that this worker left; it never returns
    confirmed: int = 0
    answered: bool = False  # whether the newest proposal was confirmed since it was last received
    start: pb.Start | None = None  # of the newest world, until this worker enters it
    left_seconds: float = 0.0  # from the newest proposal until the previous world was left
    _stored: dict[str, bytes] = field(default_factory=dict)  # by other members, in the store of the newest world
    _own: dict[str, bytes] = field(default_factory=dict)  # stored by this worker, in the same store
    _broken: pb.Broken | None = None  # how the world left last broke, if it did
    called_off: str = ""  # why the step in flight must not be finished
    _midway: bool = False  # the world left last was left in the middle of a step
    _released: int = 0  # the newest generation without this worker: it trains, or no world does

    # Messages of the master.

    def proposed(self, proposal: pb.Proposal) -> None:
        if proposal.generation < self.newest:
            return
        self._advance(proposal.generation)
        self.proposal, self.answered = proposal, False
        if not proposal.members:  # the master requested what must be saved before
            self._released = max(self._released, proposal.generation)
        if proposal.urgent and self.superseded:
            # A later proposal does not undo this: other members have left this world, and none of its steps will end.
            self.called_off = proposal.reason or f"world {proposal.generation} replaces it"

    def started(self, start: pb.Start) -> list[pb.FromReplica]:
        if self.replica not in start.members:
            self._released = max(self._released, start.generation)
            return []
        if start.generation < self.newest:
            return []
        self._advance(start.generation)
        if start.generation > max(self.left, self.generation):
            self.start = start
        elif self._broken is not None and self._broken.generation == start.generation:
            return [pb.FromReplica(broken=self._broken)]  # the master has not received it
        return []

    def stored(self, stored: pb.Stored) -> None:
        if stored.generation == self.newest:
            self._stored[stored.key] = stored.value

    def resend(self) -> list[pb.FromReplica]:
        """What a broken stream may have lost: that the world is formed, or what others need to form it."""
        if self.current is None:
            return []
        if self.formed:
            return [pb.FromReplica(formed=pb.Formed(generation=self.generation))]
        return [_stored(self.generation, key, value) for key, value in self._own.items()]

    def _advance(self, generation: int) -> None:
        if generation > self.newest:
            self.newest = generation
            self._stored.clear()
            self.start = None

    # What holds now.

    @property
    def generation(self) -> int:
        return self.current.generation if self.current is not None else 0

    @property
    def rank(self) -> int:
        """In the current world."""
        assert self.current is not None
        return list(self.current.members).index(self.replica)

    @property
    def superseded(self) -> bool:
        """Whether a newer world will replace the current one. Members exchange this, to stop after the same step."""
        return self.current is not None and self.newest > self.current.generation

    @property
    def replacement_proposed(self) -> bool:
        if self.current is None or self.proposal is None:
            return False
        return self.proposal.generation > self.current.generation

    @property
    def invited(self) -> bool:
        """Whether the newest proposal names this worker, and it has not left that world."""
        return self.proposal is not None and self.replica in self.proposal.members and self.newest > self.left

    @property
    def buildable(self) -> bool:
        return self.start is not None and self.left < self.start.generation == self.confirmed

    @property
    def needed(self) -> bool:
        """After a world broke, this worker may hold the only copy of the state, until another world trains."""
        return self._midway and self.state[1] > 0 and self._released <= self.left

    @property
    def state_name(self) -> pb.StateName:
        return pb.StateName(generation=self.state[0], step=self.state[1], records=self.records)

    def stored_for(self, generation: int) -> Mapping[str, bytes]:
        """What other members have put into the store of this world so far."""
        return dict(self._stored) if generation == self.newest else {}

    # What the worker does.

    def confirm(self) -> list[pb.FromReplica]:
        """This worker is in no world, and will enter the newest one once it starts."""
        assert self.current is None and self.proposal is not None
        self.confirmed, self.answered = self.proposal.generation, True
        confirmed = pb.Confirmed(generation=self.confirmed, state=self.state_name, left_seconds=self.left_seconds)
        return [pb.FromReplica(confirmed=confirmed)]

    def enter(self) -> pb.Start | None:
        """Begin to build the world that was started; None where another one was proposed meanwhile."""
        assert self.current is None
        if self.start is None:
            return None
        self.current, self.start = self.start, None
        self.formed = self.stopping = False
        self.left_seconds = 0.0
        self._own.clear()
        return self.current

    def store(self, generation: int, key: str, value: bytes) -> list[pb.FromReplica]:
        """Put a value into the store of the world that is being built."""
        if generation != self.generation:
            return []
        self._own[key] = value
        return [_stored(generation, key, value)]

    def loaded(self, records: int) -> None:
        """This worker has the whole state of the current world, also if the world is never formed."""
        assert self.current is not None
        self.state, self.records = (self.current.state.generation, self.current.state.step), records

    def commit(self, stop: bool, records: int) -> None:
        assert self.current is not None and self.formed
        self.state, self.records = (self.current.generation, self.state[1] + 1), records
        self.stopping = self.stopping or stop

    def leave(self, broken: pb.Broken | None = None, seconds: float = 0.0) -> list[pb.FromReplica]:
        """Leave the current world for good, `seconds` after the proposal; `broken` tells why it broke, if it did."""
        assert self.current is not None
        self._midway = broken is not None or bool(self.called_off)
        self.left, self.current, self.called_off, self.left_seconds = self.current.generation, None, "", seconds
        self.formed = self.stopping = False
        self._broken = broken
        if broken is None:
            return []
        broken.generation, broken.step = self.left, self.state[1]
        return [pb.FromReplica(broken=broken)]


def _stored(generation: int, key: str, value: bytes) -> pb.FromReplica:
    return pb.FromReplica(stored=pb.Stored(generation=generation, key=key, value=value))
