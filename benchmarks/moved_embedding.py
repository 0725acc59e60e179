"""An embedding as a dense variable and as a table on the servers: what a step costs with each, by its size.

One worker, two servers, Adagrad, batches of 1,024 x 10 ids: the model is pulled and its gradients are pushed as a
worker does it; nothing is computed. The size at which the table becomes cheaper is what --table_threshold_bytes means.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.ps_servers import TIMELINE, TOKEN, serving
from benchmarks.report import machine
from elasticdl.job.parameters import OptimizerSpec, ParametersSpec, TableSpec, VariableSpec
from elasticdl.ps.client import Batch, Client

DIM, OTHER_VALUES = 16, 10_000
SIZES_MIB = (0.125, 0.25, 0.5, 1, 2, 4, 8, 32)
RESULTS = Path(__file__).parent / "results" / "moved_embedding.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=10_240, help="ids of a batch")
    parser.add_argument("--sizes", type=float, nargs="*", default=SIZES_MIB)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    found = []
    print(f"{'MiB':>8} {'dense ms':>9} {'table ms':>9} {'table/dense':>12}")
    for size in options.sizes:
        rows = int(size * 2**20 / 4 / DIM)
        dense, table = (measure(rows, moved, options.steps, options.batch) for moved in (False, True))
        found.append({"mib": size, "dense_ms": dense, "table_ms": table, "ratio": table / dense})
        print(f"{size:>8} {dense:>9.2f} {table:>9.2f} {table / dense:>12.2f}")
    if options.write:
        RESULTS.write_text(
            json.dumps({"machine": machine(), "batch_ids": options.batch, "sizes": found}, indent=2) + "\n"
        )


def measure(rows: int, moved: bool, steps: int, batch_ids: int) -> float:
    """Median milliseconds of a step."""
    dense = OTHER_VALUES + (0 if moved else rows * DIM)
    spec = ParametersSpec(
        variables=(VariableSpec(name="dense", shape=(dense,)),),
        tables=(TableSpec(name="items", dim=DIM, input_dim=rows),) if moved else (),
        optimizer=OptimizerSpec(kind="adagrad", learning_rate=0.01, initial_accumulator=0.1),
    )
    draw = np.random.default_rng(0)
    gradients, none = np.full(dense, 1e-3, np.float32), np.zeros(0, np.float32)
    with serving(2) as addresses:
        client = Client(addresses, TOKEN, spec, TIMELINE)
        client.declare(np.zeros(dense, np.float32), none)
        times = []
        for number in range(steps):
            ids = np.unique(draw.integers(0, rows, batch_ids))
            began = time.perf_counter()
            client.pull()
            pushed = {}
            if moved:
                pushed["items"] = ids, client.rows("items", ids) * np.float32(1e-3)
            client.push(Batch(0, 0, 1, number), gradients, none, pushed)
            times.append(time.perf_counter() - began)
        client.close()
    return 1000 * statistics.median(times[steps // 10 :])


if __name__ == "__main__":
    main()
