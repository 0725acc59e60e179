"""Which server holds which parameters: rows by a hash of their id, dense variables in equal shares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.job.parameters import VariableSpec
from elasticdl.ps import _native

PARTITIONS = 1024
SPLIT_BYTES = 1 << 20  # a larger variable is cut into one piece for each server

Ids = npt.NDArray[np.int64]


def partitions(ids: Ids) -> npt.NDArray[np.int64]:
    """The partition of each id: the same in every process and release."""
    z = ids.astype(np.uint64)
    z = (z ^ (z >> np.uint64(31))) * np.uint64(0x7FB5D329728EA185)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x81DADEF4BC2DD44D)
    z ^= z >> np.uint64(33)
    return (z & np.uint64(PARTITIONS - 1)).astype(np.int64)


def servers_of(ids: Ids, servers: int) -> npt.NDArray[np.int64]:
    """The server of each id. A further server takes an equal share from each of the others; nothing else moves."""
    return _native.partition_owners(servers)[partitions(ids)]


@dataclass(frozen=True)
class Split:
    """Ids grouped by server: `order` sorts them (None: they are sorted), server s has `bounds[s]:bounds[s+1]`."""

    order: Ids | None
    bounds: list[int]

    def pieces(self, at_once: int) -> Iterator[list[tuple[int, int, int]]]:
        """(server, start, stop) of pieces of at most so many ids: each server's first one, then each second one …"""
        ends = list(enumerate(zip(self.bounds, self.bounds[1:], strict=False)))
        longest = max(stop - start for _, (start, stop) in ends)
        for done in range(0, longest, at_once):
            yield [(s, a + done, min(a + done + at_once, b)) for s, (a, b) in ends if a + done < b]

    def take(self, start: int, stop: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The values of the grouped ids [start, stop), without a copy if the ids were grouped before."""
        return values[start:stop] if self.order is None else np.take(values, self.order[start:stop], axis=0)

    def put(self, start: int, stop: int, rows: npt.NDArray[np.float32], out: npt.NDArray[np.float32]) -> None:
        """Write the rows of the grouped ids [start, stop) to the places of these ids."""
        if self.order is None:
            out[start:stop] = rows
        else:
            _native.scatter_rows(self.order[start:stop], rows, out)


def split(ids: Ids, servers: int) -> Split:
    return Split(*_native.split(ids, servers))


def unique(ids: Ids, servers: int) -> tuple[Ids, Ids]:
    """The distinct ids, grouped by server, and the position of each id in them."""
    found, positions, _ = _native.unique(ids, servers)
    return found, positions


def place(variables: tuple[VariableSpec, ...], servers: int) -> list[list[range]]:
    """For each server its pieces of the flat buffer of all variables, in the order of the buffer.

    Large variables are cut evenly; small ones go whole to the server that holds the least so far.
    """
    pieces: list[list[range]] = [[] for _ in range(servers)]
    load = [0] * servers
    offsets = np.cumsum([0, *(v.size for v in variables)]).tolist()
    by_size = sorted(range(len(variables)), key=lambda i: (-variables[i].size, i))
    for i in by_size:
        start, size = offsets[i], variables[i].size
        if 4 * size > SPLIT_BYTES and servers > 1:
            cuts = [start + size * s // servers for s in range(servers + 1)]
            for s in range(servers):
                pieces[s].append(range(cuts[s], cuts[s + 1]))
                load[s] += cuts[s + 1] - cuts[s]
        elif size:
            s = min(range(servers), key=lambda s: (load[s], s))
            pieces[s].append(range(start, start + size))
            load[s] += size
    return [sorted(p, key=lambda x: x.start) for p in pieces]


def gather_index(pieces: list[range]) -> npt.NDArray[np.int64]:
    """Positions in the flat buffer of one server's elements, in its own order."""
    if not pieces:
        return np.empty(0, np.int64)
    return np.concatenate([np.arange(p.start, p.stop) for p in pieces])
