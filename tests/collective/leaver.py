"""A program that ends while it still has groups: two ranks in one process, whose groups allow 40 seconds for a wait."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from elasticdl.collective.exchange import tree_total
from elasticdl.collective.group import Group
from elasticdl.collective.store import RelayedStore
from elasticdl.errors import CalledOff

stores: list[RelayedStore] = []
groups: list[Group] = []


def build(rank: int) -> None:
    groups.append(Group(1, rank, ["a", "b"], stores[rank], "127.0.0.1", 40.0))


def main(how: str) -> None:
    stores.append(RelayedStore(1, lambda key, value: stores[1].deliver(key, value), 40.0))
    stores.append(RelayedStore(1, lambda key, value: stores[0].deliver(key, value), 40.0))
    if how == "building":  # the other never comes
        threading.Timer(0.2, stores[0].interrupt, ("enough",)).start()
        try:
            build(0)
        except CalledOff:
            return
        raise AssertionError("it was built")
    ranks = [threading.Thread(target=build, args=(rank,)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    first = min(groups, key=lambda group: group.rank)
    if how == "called off":
        threading.Timer(0.2, first.abort, ("enough",)).start()
        try:
            tree_total(first, {(0, 1): torch.ones(1_000_000)}, 2, False)
        except CalledOff:
            return
        raise AssertionError("one rank alone has exchanged something")
    if how == "closed":
        for group in groups:
            group.close()


main(sys.argv[1])
print(time.time())
