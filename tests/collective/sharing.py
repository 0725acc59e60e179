"""Worlds whose members are all in this process, and share memory for their sums."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from elasticdl.collective.group import Group
from elasticdl.collective.shared import Segment, Shared, reached
from elasticdl.collective.store import RelayedStore
from elasticdl.collective.words import Door, Words

SECONDS = 20.0


def world(size: int, generation: int = 1) -> list[Group]:
    """All members of one world."""
    stores: list[RelayedStore] = []

    def say(key: str, value: bytes) -> None:
        for store in stores:
            store.deliver(key, value)

    stores += [RelayedStore(generation, say, SECONDS) for _ in range(size)]
    names = list("abcd"[:size])
    with ThreadPoolExecutor(size) as pool:
        built = [pool.submit(Group, generation, r, names, stores[r], "127.0.0.1", SECONDS) for r in range(size)]
        return [group.result() for group in built]


def talking(size: int) -> list[Words]:
    """The words of all members, by rank."""
    doors = [Door() for _ in range(size)]
    offers = [door.offer() for door in doors]
    with ThreadPoolExecutor(size) as pool:
        met = [pool.submit(door.meet, rank, offers, SECONDS) for rank, door in enumerate(doors)]
        found = [words for answer in met if (words := answer.result()) is not None]
    for door in doors:
        door.close()
    assert len(found) == size
    return found


def sharing(size: int, floats: int, segments: Sequence[Segment] = ()) -> tuple[list[Group], Sequence[Segment]]:
    groups, segments = world(size), segments or [Segment(floats) for _ in range(size)]
    offers, words = [segment.offer(1) for segment in segments], talking(size)
    for rank, group in enumerate(groups):
        theirs = [reached(offer, floats) for offer in offers]
        places = [segments[rank].place if r == rank else place for r, place in enumerate(theirs)]
        group.share(Shared([place for place in places if place is not None], rank, 1, words[rank]))
    return groups, segments
