"""Pushing gradients of distinct ids, full Adagrad: the row store and a dict of numpy rows, in one run on one core.

python benchmarks/row_store_push.py [--rows 10000000] [--dim 16] [--out benchmarks/results/row_store_push.json]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks import row_peers, row_tables


def measure(kind: str, plain: row_peers.DictOfRows, rows: int, dim: int, count: int, rounds: int) -> dict[str, Any]:
    drawn = row_tables.distinct(row_tables.batches(kind, rows, count))
    store = row_tables.empty_store(dim)
    row_tables.grow(store, 0, rows, dim, np.random.default_rng(0).permutation(rows))
    grads = np.random.default_rng(1).standard_normal((row_tables.BATCH, dim)).astype(np.float32)

    def push(number: int) -> None:
        store.push_unique(drawn[number], grads[: len(drawn[number])], row_tables.RATE, 1)

    found = row_tables.rates({"row store": push}, [len(ids) for ids in drawn], rounds)
    sizes = [len(ids) for ids in drawn[:2]]
    found |= row_tables.rates({"dict of numpy rows": lambda n: plain.push_unique(drawn[n], grads)}, sizes, 1)
    return {
        "million rows/s": found,
        "times a dict of numpy rows": row_tables.ratio(found, "row store", "dict of numpy rows"),
        "distinct ids in a batch": int(np.mean([len(ids) for ids in drawn])),
    }


def main() -> None:
    args = row_tables.arguments(__doc__, rows=10_000_000, dim=16, batches=10, rounds=3)
    result = row_tables.about() | {"rows": args.rows, "dim": args.dim, "batch": row_tables.BATCH}
    plain = row_peers.DictOfRows(args.dim, np.random.default_rng(0).permutation(args.rows))
    for kind in ("uniform", "zipf"):
        result[kind] = measured = measure(kind, plain, args.rows, args.dim, args.batches, args.rounds)
        print(f"push of distinct ids, {kind}, {args.rows:,} rows x {args.dim}")
        print(row_tables.table(measured["million rows/s"]))
        print(f"{measured['times a dict of numpy rows']} times a dict of numpy rows\n")
    row_tables.write(args.out, result)


if __name__ == "__main__":
    main()
