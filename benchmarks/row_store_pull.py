"""Pulling rows: the row store, a dict of numpy rows and gathers that know every slot, in one run on one core.

python benchmarks/row_store_pull.py [--rows 10000000] [--dim 16] [--out benchmarks/results/row_store_pull.json]

The dict of ten million rows needs 5 GB, and a while to make.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks import row_peers, row_tables


def measure(kind: str, plain: row_peers.DictOfRows, rows: int, dim: int, count: int, rounds: int) -> dict[str, Any]:
    drawn = row_tables.batches(kind, rows, count)
    store = row_tables.empty_store(dim)
    row_tables.grow(store, 0, rows, dim, np.random.default_rng(0).permutation(rows))
    out = np.empty((row_tables.BATCH, dim), np.float32)
    contenders = {"row store": lambda n: store.pull(drawn[n], out), **row_peers.known_slots(rows, dim, drawn, out)}
    found = row_tables.rates(contenders, [row_tables.BATCH] * count, rounds)
    dicts = {
        "dict of numpy rows": lambda n: plain.pull_stacked(drawn[n]),
        "dict of numpy rows, into a given array": lambda n: plain.pull(drawn[n], out),
    }
    found |= row_tables.rates(dicts, [row_tables.BATCH] * 2, 2)
    best = max((name for name in found if name.startswith("slots known")), key=lambda name: found[name]["median"])
    return {
        "million rows/s": found,
        **{f"times a {name}": row_tables.ratio(found, "row store", name) for name in dicts},
        f"of {best}": row_tables.ratio(found, "row store", best),
    }


def main() -> None:
    args = row_tables.arguments(__doc__, rows=10_000_000, dim=16, batches=10, rounds=3)
    torch.set_num_threads(1)
    result = row_tables.about("torch") | {"rows": args.rows, "dim": args.dim, "batch": row_tables.BATCH}
    plain = row_peers.DictOfRows(args.dim, np.random.default_rng(0).permutation(args.rows))
    for kind in ("uniform", "zipf"):
        result[kind] = measured = measure(kind, plain, args.rows, args.dim, args.batches, args.rounds)
        print(f"pull, {kind} ids, {args.rows:,} rows x {args.dim}")
        print(row_tables.table(measured["million rows/s"]))
        print("   ".join(f"{value} {name}" for name, value in measured.items() if name != "million rows/s"), "\n")
    row_tables.write(args.out, result)


if __name__ == "__main__":
    main()
