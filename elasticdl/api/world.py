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
from elasticdl.collective.shared import MOST_MEMBERS, Segment, Shared, reached
from elasticdl.collective.store import RelayedStore
from elasticdl.collective.transfer import receive_state, send_state
from elasticdl.collective.tree import one_node_each, runs
from elasticdl.collective.words import Door, door
from elasticdl.wire import control_pb2 as pb

log = logging.getLogger(__name__)

BUILD_SECONDS = 30.0  # in which all members reach each other, or the world is given up
DEVICES_SECONDS = 120.0  # the same for their GPUs
DOOR_SECONDS = 5.0  # the same for those on one machine, which are all there at the time
# Who is slow, and whether an exchange or a copy will ever end, is for the master to judge, by the pulses; without a
# master nobody goes on for long. Both end it from outside, so that Gloo's own limit only has to be long enough.
UNLIMITED_SECONDS = 86_400.0

Tensors = dict[str, torch.Tensor]


@dataclass
class World:
    """A group that stands, with the state that its members agreed on."""

    group: Group
    members: tuple[str, ...]
    rank: int
    virtual: int  # into how many parts a step is cut
    evaluated: tuple[int, ...]  # versions that some member has evaluated

    @property
    def run(self) -> tuple[int, int]:
        """The virtual workers of this member."""
        return runs(self.virtual, len(self.members))[self.rank]

    def share(self, parts: int) -> tuple[int, int]:
        """Those of some parts that are this member's; none where there are more members than parts."""
        busy = min(parts, len(self.members))
        return runs(parts, busy)[self.rank] if self.rank < busy else (parts, parts)

    def gather(self, mine: bytes) -> list[bytes]:
        """What every member has, by rank."""
        return gather_bytes(self.group, mine)


def unheard(known: Sequence[set[int]], rank: int, heard: Iterable[int]) -> set[int]:
    """The evaluations that a member is to say: whoever said them is gone, without the master having heard of them.

    One says each, the first that knows it. If that one is lost as well, the next world sees to it.
    """
    return known[rank].difference(heard, *known[:rank])


@dataclass
class Formation:
    """How a started world becomes one that trains."""

    control: SharedSession
    host: str  # where other members reach this one
    parts: Callable[[int], int]  # into how many a step is cut by so many members
    state: Callable[[], Mapping[str, torch.Tensor]]
    load: Callable[[Mapping[str, torch.Tensor], int], None]  # a state, and how many steps are in it
    device: torch.device  # where sums are made: on a GPU only those whose order does not matter
    segment: Segment | None = None  # for sums, where all members can read it
    ordered: bool = False  # sums along the tree: only one node of it has room there

    def form(self, start: pb.Start) -> World:
        """Build the group, take the state over, and say so. CalledOff, GroupBroken and DataError end it."""
        control, members = self.control, tuple(start.members)
        rank = members.index(control.call(lambda s: s.replica))
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
                group.abort("the world was given up")
                group.close()
                raise
        took = time.monotonic() - built
        again = unheard(known, rank, start.evaluated)
        control.send(lambda s: s.form(built - began, took, copied, again))
        control.doing("program")  # it waits for nobody
        return World(group, members, rank, self.parts(len(members)), tuple(sorted(set().union(*known))))

    def _take_over(self, start: pb.Start, group: Group, rank: int) -> int:
        """The state of the world: from disk, from a peer, or it is here already; bytes received or sent."""
        members, bytes_moved = list(start.members), 0

        def moved() -> None:
            self.control.moved("copy")

        if start.directory and rank == 0:
            self.control.doing("load")  # which the others wait for
            state, _ = state_files.read(Path(start.directory), start.state.step)
            self.load(state, start.state.step)
            self.control.doing("copy")
        # In one order for all, so that nobody waits for someone who waits for him.
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
        """Which versions each member knows the metrics of, by rank, since the master may not.

        Each says its GPU as well. Where no two share one, NCCL adds up what is on them. And each says where its memory
        for sums is: they go through that where all members can read it.
        """
        mine: dict[str, Any] = {
            "evaluated": sorted(self.control.call(lambda s: [e.version for e in s.evaluations])),
            "device": nccl.device_name(self.device),
        }
        opened = door() if self._fits(group.size) else None
        try:
            if opened is not None and self.segment is not None:
                mine["memory"] = {**self.segment.offer(group.generation), "door": opened.offer()}
            found = [json.loads(text) for text in gather_bytes(group, json.dumps(mine).encode())]
            if nccl.usable([said["device"] for said in found]):
                self.control.doing("build")
                group.connect_devices(self.device, DEVICES_SECONDS)
            elif opened is not None and all("memory" in said for said in found):
                self._share(group, [said["memory"] for said in found], opened)
        finally:
            if opened is not None:
                opened.close()
        return [set(said["evaluated"]) for said in found]

    def _fits(self, members: int) -> bool:
        """Whether sums of so many can go through memory that they share, if they can read it."""
        if self.segment is None or not 1 < members <= MOST_MEMBERS:
            return False
        return not self.ordered or one_node_each(self.parts(members), members)

    def _share(self, group: Group, offers: Sequence[Mapping[str, Any]], opened: Door) -> None:
        """One for whom the memory of another is out of reach is enough to do without it."""
        assert self.segment is not None
        mine = self.segment.place
        places = [mine if r == group.rank else reached(o, mine.vector.numel()) for r, o in enumerate(offers)]
        there = [place for place in places if place is not None]
        rank, doors = group.rank, [offer["door"] for offer in offers]
        near = len(there) == group.size and len({door["network"] for door in doors}) == 1
        if not all(gather_bytes(group, b"near" if near else b"")):
            return
        words = group.run(lambda link: opened.meet(rank, doors, DOOR_SECONDS), DOOR_SECONDS + 1)
        try:
            ready = words is not None and self.segment.reserve()
            all_ready = all(gather_bytes(group, b"ready" if ready else b""))
            if words is None or not all_ready:
                return
            group.share(Shared(there, rank, group.generation, words))
        finally:
            if words is not None and group.shared is None:
                words.close()
        log.info("All workers are on one machine: sums go through memory that they share")
