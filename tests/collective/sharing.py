"""Worlds whose members are all in this process, and share memory for their sums."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from elasticdl.collective.group import Group
from elasticdl.collective.peer_sockets import PeerListener, PeerSockets
from elasticdl.collective.shared import Segment, Shared, mapped
from elasticdl.collective.store import RelayedStore

SECONDS = 20.0


def world(size: int, generation: int = 1) -> list[Group]:
    """All members of one world."""
    stores: list[RelayedStore] = []

    def send(key: str, value: bytes) -> None:
        for store in stores:
            store.deliver(key, value)

    stores += [RelayedStore(generation, send, SECONDS) for _ in range(size)]
    names = list("abcd"[:size])
    with ThreadPoolExecutor(size) as pool:
        built = [pool.submit(Group, generation, r, names, stores[r], "127.0.0.1", SECONDS) for r in range(size)]
        return [group.result() for group in built]


def connected(size: int) -> list[PeerSockets]:
    """The sockets of all members, by rank."""
    listeners = [PeerListener() for _ in range(size)]
    addresses = [listener.address() for listener in listeners]
    with ThreadPoolExecutor(size) as pool:
        answers = [pool.submit(it.connect, rank, addresses, SECONDS) for rank, it in enumerate(listeners)]
        found = [sockets for answer in answers if (sockets := answer.result()) is not None]
    for listener in listeners:
        listener.close()
    assert len(found) == size
    return found


def sharing(size: int, floats: int, segments: Sequence[Segment] = ()) -> tuple[list[Group], Sequence[Segment]]:
    groups, segments = world(size), segments or [Segment(floats) for _ in range(size)]
    offers, sockets = [segment.offer(1) for segment in segments], connected(size)
    for rank, group in enumerate(groups):
        theirs = [mapped(offer, floats) for offer in offers]
        places = [segments[rank].place if r == rank else place for r, place in enumerate(theirs)]
        group.share(Shared([place for place in places if place is not None], rank, 1, sockets[rank]))
    return groups, segments
