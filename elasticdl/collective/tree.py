"""The fixed binary tree over the virtual workers of a step, and how the workers share its leaves.

The number of virtual workers is rounded up to a power of two; leaves beyond it do not exist, and a node without a right
half is its left half. A node is (start, size): an aligned power of two. A worker with all leaves of a node adds them up
by itself, and sends one vector for each maximal node of its run. So runs that follow the tree cause the least traffic,
and runs of even length take the least time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import TypeVar

Node = tuple[int, int]
Run = tuple[int, int]
T = TypeVar("T")

MOST_NODES = 2  # of a run: (2 + 1) / 2 = 1.5 times the traffic of a ring
MOST_LOAD = 1.5  # times the even load


def root(virtual: int) -> Node:
    """The node over everything: its value is the sum of a step."""
    return 0, 1 << (virtual - 1).bit_length()


def halves(node: Node, virtual: int) -> tuple[Node, ...]:
    """The one or two nodes that a node is the sum of: the leaves of the second may not exist."""
    start, half = node[0], node[1] // 2
    return ((start, half), (start + half, half)) if start + half < virtual else ((start, half),)


def subtrees(start: int, stop: int, virtual: int | None = None) -> tuple[Node, ...]:
    """The maximal nodes that cover the run [start, stop) and nothing else, from left to right.

    With the number of virtual workers, a run that ends with the last one may be covered by a node that reaches beyond.
    """
    found = []
    last = stop == virtual
    while start < stop:
        size = start & -start or root(stop)[1]
        while start + size > stop and not last:
            size //= 2
        found.append((start, size))
        start += size
    return tuple(found)


def value(node: Node, virtual: int, held: Mapping[Node, T], add: Callable[[T, T], T]) -> T:
    """The value of a node from those below it: always the same additions in the same order."""
    if node in held:
        return held[node]
    if node[1] == 1:
        raise ValueError(f"no node covers virtual worker {node[0]} of {virtual}")
    parts = [value(half, virtual, held, add) for half in halves(node, virtual)]
    return parts[0] if len(parts) == 1 else add(*parts)


@cache
def runs(virtual: int, world: int) -> tuple[Run, ...]:
    """Which virtual workers each rank computes: contiguous runs [start, stop), none empty.

    No run is longer than 1.5 times the even length, nor has more than two nodes. Among such, the longest run is as
    short as possible (the slowest worker sets the pace), and then the nodes are as few as possible (they are the
    traffic). In worlds of a power of two each gets one node, which is the traffic of a ring, unless that makes a run
    too long: with a number of virtual workers a little above a power of two, they get at most two as well.
    """
    if not 1 <= world <= virtual:
        raise ValueError(f"{world} workers cannot share {virtual} virtual workers: there must be 1 to {virtual}")
    even = -(-virtual // world)
    aligned = 1 if world & (world - 1) == 0 else MOST_NODES
    for most in dict.fromkeys((aligned, MOST_NODES)):
        for longest in range(even, int(MOST_LOAD * even) + 1):
            found = _least_traffic(virtual, world, longest, most)
            if found:
                return found
    raise AssertionError(f"no runs for {virtual} virtual workers over {world} workers")  # a test tries all


def one_node_each(virtual: int, world: int) -> bool:
    """Whether every run is one node."""
    return all(len(subtrees(*run, virtual)) == 1 for run in runs(virtual, world))


def _least_traffic(virtual: int, world: int, longest: int, most: int) -> tuple[Run, ...]:
    """Runs of at most this length and number of nodes, with the fewest nodes in total; () where there are none."""
    # For each rank and each stop that the ranks up to it can reach: the nodes they need, and where its run starts.
    reached: list[dict[int, tuple[int, int]]] = [{0: (0, 0)}]
    for left in reversed(range(world)):
        further: dict[int, tuple[int, int]] = {}
        for start, (nodes, _) in reached[-1].items():
            for stop, count in _stops(start, virtual, most):
                fits = stop - start <= longest and left <= virtual - stop <= left * longest
                if fits and (nodes + count, start) < further.get(stop, (virtual + 1, 0)):
                    further[stop] = (nodes + count, start)
        reached.append(further)
    if virtual not in reached[-1]:
        return ()
    stops = [virtual]
    for rank in reversed(range(1, world + 1)):
        stops.append(reached[rank][stops[-1]][1])
    return tuple(pairwise(reversed(stops)))


@cache
def _stops(start: int, virtual: int, most: int) -> tuple[tuple[int, int], ...]:
    """Where a run of at most so many nodes may stop if it starts here, and the number of its nodes."""
    stops = {start}
    for _ in range(most):
        stops |= {min(stop + size, virtual) for stop in stops if stop < virtual for size in _sizes(stop, virtual)}
    return tuple((stop, len(subtrees(start, stop, virtual))) for stop in sorted(stops) if start < stop)


def _sizes(start: int, virtual: int) -> Iterator[int]:
    """Of the nodes that start here."""
    size = 1
    while size <= (start & -start or root(virtual)[1]):
        yield size
        size *= 2
