"""Pushing gradients as they come, repeated ids and all: the row store beside FBGEMM (or torch), on one core.

    python benchmarks/row_store_push_raw.py [--rows 10000000] [--out benchmarks/results/row_store_push_raw.json]

Deduplicate, sum, full Adagrad. FBGEMM is `fbgemm-gpu-cpu` 1.8.0; where it is not installed, torch's own sparse
embedding takes its place.
"""

from __future__ import annotations

import statistics
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks import row_peers, row_tables


def measure(kind: str, rows: int, dim: int, count: int, rounds: int) -> dict[str, Any]:
    drawn = row_tables.batches(kind, rows, count)
    store = row_tables.empty_store(dim)
    row_tables.grow(store, 0, rows, dim, np.random.default_rng(0).permutation(rows))
    grads = np.random.default_rng(1).standard_normal((row_tables.BATCH, dim)).astype(np.float32)
    Peer = row_peers.Fbgemm if find_spec("fbgemm_gpu") else row_peers.TorchSparse
    peer = Peer(rows, dim, drawn, grads)
    seconds: dict[str, list[float]] = {"row store": [], peer.name: []}
    for turn in range(rounds + 1):
        for ids in drawn:
            start = time.perf_counter()
            store.push(ids, grads, row_tables.RATE, 1)
            if turn:
                seconds["row store"].append((time.perf_counter() - start) / len(ids))
        for number, ids in enumerate(drawn):
            peer.prepare(number)
            start = time.perf_counter()
            peer.push(number)
            if turn:
                seconds[peer.name].append((time.perf_counter() - start) / len(ids))
    found = {
        name: {"median": round(1e-6 / statistics.median(s), 3), "best": round(1e-6 / min(s), 3)}
        for name, s in seconds.items()
    }
    return {
        "million rows/s": found,
        f"times {peer.name}": row_tables.ratio(found, "row store", peer.name),
        "distinct ids in a batch": int(np.mean([len(np.unique(ids)) for ids in drawn])),
    }


def main() -> None:
    args = row_tables.arguments(__doc__, rows=10_000_000, dim=16, batches=5, rounds=2)
    torch.set_num_threads(1)
    result = row_tables.about("torch", "fbgemm-gpu-cpu") | {
        "rows": args.rows, "dim": args.dim, "batch": row_tables.BATCH,
    }  # fmt: skip
    for kind in ("uniform", "zipf"):
        result[kind] = measured = measure(kind, args.rows, args.dim, args.batches, args.rounds)
        print(f"push, repeated ids included, {kind}, {args.rows:,} rows x {args.dim}")
        print(row_tables.table(measured["million rows/s"]))
        print("\n".join(f"{value} {name}" for name, value in measured.items() if name != "million rows/s"), "\n")
    row_tables.write(args.out, result)


if __name__ == "__main__":
    main()
