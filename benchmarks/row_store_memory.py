"""Resident bytes per byte of weights and slots while a table grows: its worst size, the kernel's count beside ours.

    python benchmarks/row_store_memory.py [--rows 5000000] [--out benchmarks/results/row_store_memory.json]

Each dimension in a process of its own; Adagrad, so that a row carries as many slots as weights. What counts is the
process's peak so far over the payload so far, every 20,000 rows, while the table grows to its last two doublings:
its worst size cannot hide, nor what it takes for a moment.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks import row_tables

DIMS = (1, 8, 16, 64)
STEP = 20_000


def grow(dim: int, rows: int) -> dict[str, float]:
    """In a fresh process, since the peak is that of the whole process."""
    ids = np.random.default_rng(0).permutation(rows)
    out, store = np.zeros((STEP, dim), np.float32), row_tables.empty_store(dim)
    store.pull(np.arange(1), out[:1])
    base = row_tables.resident_bytes()
    worst: dict[str, float] = {"worst": 0.0, "worst at rows": 0, "at the end": 0.0}
    for start in range(0, rows, STEP):
        part = np.ascontiguousarray(ids[start : start + STEP])
        store.pull(part, out[: len(part)])
        held = max(row_tables.peak_bytes(), base) - base
        now = held / (len(store) * 8 * dim)
        if start >= rows // 4 and now > worst["worst"]:
            worst |= {"worst": round(now, 3), "worst at rows": len(store)}
    worst["at the end"] = round((row_tables.resident_bytes() - base) / (len(store) * 8 * dim), 3)
    worst["at the end, by our own count"] = round(store.nbytes() / (len(store) * 8 * dim), 3)
    return worst


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[1] == "--grow":
        print(json.dumps(grow(int(sys.argv[2]), int(sys.argv[3]))))
        return
    args = row_tables.arguments(__doc__, rows=5_000_000)
    found = {}
    print(f"{'dim':>4}{'worst':>8}{'at rows':>12}{'at the end':>12}{'our count':>12}   bytes per byte of payload")
    for dim in DIMS:
        command = [sys.executable, __file__, "--grow", str(dim), str(args.rows)]
        found[dim] = f = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"{dim:4}{f['worst']:8.2f}{f['worst at rows']:12,}{f['at the end']:12.2f}"
            f"{f['at the end, by our own count']:12.2f}"
        )
    row_tables.write(args.out, row_tables.about() | {"rows": args.rows, "dims": found})


if __name__ == "__main__":
    main()
