"""The cost of a row as a table grows from one to a hundred million rows: pull, push and birth, a table and a plot.

    python benchmarks/growth.py [--rows 100000000] [--dim 8] [--out benchmarks/results/growth.json]

One store, measured at 1, 2, 5, 10 … million rows; the plot (SVG) goes beside the numbers where matplotlib is
installed. 100 million rows of 8 with Adagrad's slot need about 12 GB.
"""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks import row_tables

SIZES = [size * 10**power for power in range(6, 9) for size in (1, 2, 5)]


def scattered(numbers: row_tables.Ids) -> row_tables.Ids:
    """Ids all over the 64 bits, each number its own: what hashed features look like. No list of them is needed."""
    return (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def measure(rows: int, dim: int, count: int) -> list[dict[str, float]]:
    store, found, random = row_tables.empty_store(dim), [], np.random.default_rng(3)
    out = np.empty((row_tables.BATCH, dim), np.float32)
    grads = random.standard_normal((row_tables.BATCH, dim)).astype(np.float32)
    for size in [s for s in SIZES if s <= rows]:
        begun, start = time.perf_counter(), len(store)
        for first in range(start, size, row_tables.BATCH):
            ids = scattered(np.arange(first, min(first + row_tables.BATCH, size)))
            store.pull(ids, out[: len(ids)])
        birth = (time.perf_counter() - begun) / (size - start)
        drawn = [scattered(random.integers(0, size, row_tables.BATCH)) for _ in range(count)]
        known = row_tables.distinct(drawn)

        def push(n: int, known: list[row_tables.Ids] = known) -> None:
            store.push_unique(known[n], grads[: len(known[n])], row_tables.RATE, 1)

        def pull(n: int, drawn: list[row_tables.Ids] = drawn) -> None:
            store.pull(drawn[n], out)

        rates = row_tables.rates({"pull": pull, "push": push}, [row_tables.BATCH] * count, 2)
        found.append(
            {
                "rows": size,
                "pull ns": round(1e3 / rates["pull"]["median"], 1),
                "push ns": round(
                    1e3 / rates["push"]["median"] * row_tables.BATCH / np.mean([len(k) for k in known]), 1
                ),
                "birth ns": round(birth * 1e9, 1),
                "resident GB": round(store.nbytes() / 1e9, 3),
                "bytes per byte of payload": round(store.nbytes() / (size * dim * 8), 3),
            }
        )
        print("  ".join(f"{name} {value:,}" for name, value in found[-1].items()), flush=True)
    return found


def plot(found: list[dict[str, float]], dim: int, where: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name in ("pull ns", "push ns"):
        axes.plot([f["rows"] for f in found], [f[name] for f in found], marker="o", label=name.removesuffix(" ns"))
    axes.set(xscale="log", xlabel="rows in the table", ylabel="nanoseconds per row", ylim=0)
    axes.set_title(f"One core, rows of {dim} with Adagrad, uniform ids")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(where, bbox_inches="tight")


def main() -> None:
    args = row_tables.arguments(__doc__, rows=100_000_000, dim=8, batches=8)
    result: dict[str, Any] = row_tables.about("matplotlib") | {"dim": args.dim, "batch": row_tables.BATCH}
    result["sizes"] = measure(args.rows, args.dim, args.batches)
    row_tables.write(args.out, result)
    if args.out and find_spec("matplotlib"):
        plot(result["sizes"], args.dim, args.out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
