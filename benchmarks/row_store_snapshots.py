"""What ten snapshots do to a 1 GB table: the pause of a mark, pulls and pushes before, during and after, memory.

    python benchmarks/row_store_snapshots.py [--rows 8000000] [--out benchmarks/results/row_store_snapshots.json]

A second table of the same size is never snapshotted; each batch is timed on both, one after the other, so that the
ratio says what the snapshots did and not what else the machine was doing. While one runs, a server's thread hands
out the changed rows piece by piece between two requests, and so does this script.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks import row_tables
from elasticdl.ps import _native

PIECE = 1 << 16  # rows handed out at a time


class Pair:
    """The table with snapshots and the one without, under the same load."""

    def __init__(self, rows: int, dim: int, count: int) -> None:
        self.stores = {name: row_tables.empty_store(dim) for name in ("snapshots", "control")}
        order = np.random.default_rng(0).permutation(rows)
        for store in self.stores.values():
            row_tables.grow(store, 0, rows, dim, order)
        self.drawn = row_tables.distinct(row_tables.batches("uniform", rows, count))
        self.grads = np.random.default_rng(1).standard_normal((row_tables.BATCH, dim)).astype(np.float32)
        self.out = np.empty((row_tables.BATCH, dim), np.float32)
        self.turn = 0

    def once(self, seconds: dict[str, list[float]]) -> None:
        """A pull and a push of one batch on each."""
        ids = self.drawn[self.turn % len(self.drawn)]
        self.turn += 1
        order = list(self.stores.items())
        for name, store in order if self.turn % 2 else order[::-1]:
            start = time.perf_counter()
            store.pull(ids, self.out[: len(ids)])
            middle = time.perf_counter()
            store.push_unique(ids, self.grads[: len(ids)], row_tables.RATE, 1)
            seconds.setdefault(f"pull, {name}", []).append((middle - start) / len(ids))
            seconds.setdefault(f"push, {name}", []).append((time.perf_counter() - middle) / len(ids))


def speeds(seconds: dict[str, list[float]]) -> dict[str, float]:
    found = {name: round(1e-6 / statistics.median(s), 2) for name, s in seconds.items()}
    for work in ("pull", "push"):
        pairs = zip(seconds[f"{work}, snapshots"], seconds[f"{work}, control"], strict=True)
        found[f"{work}, of the control"] = round(statistics.median(theirs / ours for ours, theirs in pairs), 3)
    return found


def snapshot(pair: Pair, store: _native.RowStore, during: dict[str, list[float]]) -> dict[str, float]:
    start = time.perf_counter()
    view = store.mark()
    pause = time.perf_counter() - start
    changed, at, first = store.changed(view), 0, True
    result: dict[str, float] = {"mark ms": round(pause * 1e3, 3), "rows changed": changed}
    longest = 0.0
    while at != -1:
        pair.once(during)
        if first:
            result["first push ms"] = round(during["push, snapshots"][-1] * 1e3 * len(pair.drawn[0]), 1)
            first = False
        start = time.perf_counter()
        _, _, at = store.export_changed(view, at, PIECE)
        longest = max(longest, time.perf_counter() - start)
    result["longest piece ms"] = round(longest * 1e3, 1)
    result["held MB"] = round(store.nbytes() / 1e6)
    start = time.perf_counter()
    store.release(view)
    result["release ms"] = round((time.perf_counter() - start) * 1e3, 2)
    return result


def main() -> None:
    args = row_tables.arguments(__doc__, rows=8_000_000, dim=16, batches=20, snapshots=10)
    pair = Pair(args.rows, args.dim, args.batches)
    store = pair.stores["snapshots"]
    result: dict[str, Any] = row_tables.about() | {
        "rows": args.rows,
        "dim": args.dim,
        "payload MB": args.rows * 128 // 10**6,
    }
    phases: dict[str, dict[str, list[float]]] = {"before": {}, "during": {}, "after": {}}
    for _ in range(2 * args.batches):
        pair.once(phases["before"])
    resting = store.nbytes()
    taken = []
    for number in range(args.snapshots):
        for _ in range(3):
            pair.once({})
        taken.append(snapshot(pair, store, phases["during"]))
        print(f"snapshot {number + 1}: {taken[-1]}", flush=True)
    for _ in range(2 * args.batches):
        pair.once(phases["after"])
    result["million rows/s"] = {name: speeds(seconds) for name, seconds in phases.items()}
    result["snapshots"] = taken
    result["MB"] = {
        "before": round(resting / 1e6), "at most, one view": max(t["held MB"] for t in taken),
        "after": round(store.nbytes() / 1e6), "peak of the process, both tables": round(row_tables.peak_bytes() / 1e6),
    }  # fmt: skip
    for name, figures in result["million rows/s"].items():
        print(f"{name:8}" + "  ".join(f"{what} {figure}" for what, figure in figures.items()))
    print(result["MB"])
    row_tables.write(args.out, result)


if __name__ == "__main__":
    main()
