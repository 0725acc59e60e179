"""A world as one of its members sees it: the group, its share of the virtual workers, and what is exchanged."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from elasticdl.api import state_files
from elasticdl.collective import nccl
from elasticdl.collective.control import SharedSession
from elasticdl.collective.exchange import gather_bytes
from elasticdl.collective.group import Group
from elasticdl.collective.peer_sockets import PeerListener, listen
from elasticdl.collective.shared import MOST_MEMBERS, Segment, Shared, mapped
from elasticdl.collective.store import RelayedStore
from elasticdl.collective.transfer import receive_state, send_state
from elasticdl.collective.tree import one_node_each, runs
from elasticdl.errors import CalledOff, DataError, GroupBroken
from elasticdl.wire import control_pb2 as pb

log = logging.getLogger(__name__)

BUILD_SECONDS = 30.0  # in which all members must connect to each other
DEVICES_SECONDS = 120.0  # the same for their GPUs
LOCAL_SECONDS = 5.0  # the same for the sockets of members on one machine, which are all running by then
# The master finds out by the pulses whether an exchange or a copy will ever end, and the worker ends it when the master
# says so or is away for too long. So Gloo's own limit only has to be long enough.
UNLIMITED_SECONDS = 86_400.0

Tensors = dict[str, torch.Tensor]


@dataclass
class World:
    """A connected group whose members have the same state."""

    group: Group
    members: tuple[str, ...]
    rank: int
    virtual: int  # into how many parts a step is cut
    evaluated: tuple[int, ...]  # versions that some member has evaluated

    @property
    def run(self) -> tuple[int, int]:
        """The virtual workers of this member: [first, stop)."""
        return runs(self.virtual, len(self.members))[self.rank]

    def share(self, parts: int) -> tuple[int, int]:
        """Which of so many parts are this member's. With fewer parts than members, some have none."""
        busy = min(parts, len(self.members))
        return runs(parts, busy)[self.rank] if self.rank < busy else (parts, parts)

    def gather(self, mine: bytes) -> list[bytes]:
        """Every member's bytes, by rank."""
        return gather_bytes(self.group, mine)

    def close(self, reason: str) -> None:
        self.group.abort(reason)
        self.group.close()


def to_resend(known: Sequence[set[int]], rank: int, reported: Iterable[int]) -> set[int]:
    """The evaluations that this member sends: the one that should have is gone, and the master did not receive them.

    The first member that knows an evaluation sends it. If that one is lost as well, the next world repeats this.
    """
    return known[rank].difference(reported, *known[:rank])


@dataclass
class Worlds:
    """The worlds of this worker, one after the other."""

    control: SharedSession
    host: str  # at which other members reach this one
    parts: Callable[[int], int]  # of a step, by the number of members
    state: Callable[[], Mapping[str, torch.Tensor]]
    load: Callable[[Mapping[str, torch.Tensor], int], None]  # a state and the number of its steps
    device: torch.device  # where sums are made: on a GPU only if their order does not matter
    segment: Segment | None = None  # memory for sums, where all members can read it
    ordered: bool = False  # sums along the tree: the memory has room for one node
    current: World | None = None
    _previous: World | None = None  # kept open: slower members may still be reading the last exchange from it

    def enter(self) -> World | None:
        """The world that the master has started; None where it could not be formed."""
        start = self.control.call(lambda s: s.enter())
        if start is None:
            return None
        try:
            world = self._form(start)
        except CalledOff as reason:
            log.info("Abandoned world %d: %s", start.generation, reason)
            self.control.leave_world()
            return None
        except GroupBroken as broken:
            log.warning("Could not form world %d: %s", start.generation, broken)
            self.control.leave_world(_report(broken))
            return None
        except DataError as error:
            log.warning("Could not form world %d: %s", start.generation, error)
            self.control.leave_world(pb.Broken(error=str(error), unreadable=start.directory))
            return None
        self._close_previous()
        self.current = world
        first, stop = world.run
        log.info(
            "World %d: rank %d of %d, virtual workers %d to %d, step %d",
            start.generation, world.rank, len(world.members), first, stop - 1, start.state.step,
        )  # fmt: skip
        return world

    def leave(self, broken: GroupBroken | None = None) -> None:
        """Leave the current world: after a step at which all members stop, or in the middle of one."""
        world, self.current = self.current, None
        in_order = broken is None and not self.control.call(lambda s: s.called_off)
        self.control.leave_world(None if broken is None else _report(broken))
        self._close_previous()
        if in_order:
            self._previous = world
        elif world is not None:
            world.close("the world was abandoned")

    def abandon(self, reason: CalledOff | GroupBroken, what: str) -> None:
        """Leave the current world, since `what` it did was called off or broke it."""
        if isinstance(reason, GroupBroken):
            log.warning("The world broke at step %d: %s", self.control.call(lambda s: s.world.state[1]), reason)
            self.leave(reason)
        else:
            log.info("Abandoned %s: %s", what, reason)
            self.leave()

    def close(self) -> None:
        self._close_previous()
        world, self.current = self.current, None
        if world is not None:
            world.close("this worker ends")

    def _close_previous(self) -> None:
        previous, self._previous = self._previous, None
        if previous is not None:
            previous.group.close()

    def _form(self, start: pb.Start) -> World:
        """Build the group, take over the state and report it. Raises CalledOff, GroupBroken or DataError."""
        control, members = self.control, tuple(start.members)
        rank = control.call(lambda s: s.world.rank)
        began = time.monotonic()
        control.doing("build")
        store = RelayedStore(
            start.generation,
            lambda key, value: control.send(lambda s: s.world.store(start.generation, key, value)),
            BUILD_SECONDS,
        )
        with control.delivering(start.generation, store.deliver), control.interruptible(store.interrupt):
            group = Group(start.generation, rank, members, store, self.host, UNLIMITED_SECONDS, BUILD_SECONDS)
            built = time.monotonic()
            try:
                with control.interruptible(group.abort):
                    control.doing("copy")
                    copied = self._take_over(start, group, rank)
                    known = self._agree(group)
            except BaseException:
                group.abort("the world was abandoned")
                group.close()
                raise
        took, again = time.monotonic() - built, to_resend(known, rank, start.evaluated)
        formed = pb.Formed(build_seconds=built - began, copy_seconds=took, copied_bytes=copied)
        control.send(lambda s: s.form(formed, again))
        control.doing("program")
        return World(group, members, rank, self.parts(len(members)), tuple(sorted(set().union(*known))))

    def _take_over(self, start: pb.Start, group: Group, rank: int) -> int:
        """Get the state of the world from disk or from a peer, unless it is here; the bytes received or sent."""
        members, bytes_moved = list(start.members), 0

        def moved() -> None:
            self.control.moved("copy")

        if start.directory and rank == 0:
            self.control.doing("load")  # the others wait for this
            state, _ = state_files.read(Path(start.directory), start.state.step)
            self.load(state, start.state.step)
            self.control.doing("copy")
        # All members copy in the same order, so that no two wait for each other.
        for to, member in enumerate(members):
            source = start.copies.get(member, "")
            if not source:
                continue
            if source == members[rank]:
                bytes_moved += send_state(group, to, self.state(), moved)
            elif to == rank:
                received = receive_state(group, members.index(source), moved)
                self.control.doing("load")
                self.load(received, start.state.step)
                self.control.doing("copy")
                bytes_moved += sum(t.numel() * t.element_size() for t in received.values())
        return bytes_moved

    def _agree(self, group: Group) -> list[set[int]]:
        """The evaluated versions that each member knows, by rank: the master may not know them.

        The members also exchange which GPU each has: where no two share one, NCCL makes the sums. And where their
        memory for sums is: it is used where all members can read it.
        """
        mine: dict[str, Any] = {
            "evaluated": sorted(self.control.call(lambda s: [e.version for e in s.evaluations])),
            "device": nccl.device_name(self.device),
        }
        listener = listen() if self._fits(group.size) else None
        try:
            if listener is not None and self.segment is not None:
                mine["memory"] = {**self.segment.offer(group.generation), "socket": listener.address()}
            found = [json.loads(text) for text in gather_bytes(group, json.dumps(mine).encode())]
            if nccl.usable([it["device"] for it in found]):
                self.control.doing("build")
                group.connect_devices(self.device, DEVICES_SECONDS)
            elif listener is not None and all("memory" in it for it in found):
                self._share(group, [it["memory"] for it in found], listener)
        finally:
            if listener is not None:
                listener.close()
        return [set(it["evaluated"]) for it in found]

    def _fits(self, members: int) -> bool:
        """Whether so many members can share memory for their sums, if they can read it."""
        if self.segment is None or not 1 < members <= MOST_MEMBERS:
            return False
        return not self.ordered or one_node_each(self.parts(members), members)

    def _share(self, group: Group, offers: Sequence[Mapping[str, Any]], listener: PeerListener) -> None:
        """Share memory if every member can read that of all others."""
        assert self.segment is not None
        mine = self.segment.place
        places = [mine if r == group.rank else mapped(o, mine.vector.numel()) for r, o in enumerate(offers)]
        there = [place for place in places if place is not None]
        rank, addresses = group.rank, [offer["socket"] for offer in offers]
        near = len(there) == group.size and len({address["network"] for address in addresses}) == 1
        if not all(gather_bytes(group, b"near" if near else b"")):
            return
        sockets = group.run(lambda link: listener.connect(rank, addresses, LOCAL_SECONDS), LOCAL_SECONDS + 1)
        try:
            ready = sockets is not None and self.segment.reserve()
            all_ready = all(gather_bytes(group, b"ready" if ready else b""))
            if sockets is None or not all_ready:
                return
            group.share(Shared(there, rank, group.generation, sockets))
        finally:
            if sockets is not None and group.shared is None:
                sockets.close()
        log.info("All workers are on one machine; sums go through shared memory")


def _report(broken: GroupBroken) -> pb.Broken:
    return pb.Broken(error=str(broken), suspects=broken.suspects)
