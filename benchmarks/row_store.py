"""Rows per second and bytes per row of the native row store, beside a dict of numpy rows, in one run on one core.

    python -m benchmarks.row_store [--rows 10000000] [--dim 16] [--output benchmarks/results/row_store.json]

Ids are uniform over the table unless a line says Zipf. Every figure is a median over batches, beside the best one
and the median by CPU time, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.ps import _native

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]

RATE, EPSILON, ACCUMULATOR = 0.01, 1e-7, 0.1
DICT_ROWS = 1_000_000  # a dict of ten million small arrays would need several gigabytes more


class DictOfRows:
    """What a parameter server in plain Python does: one numpy array per id."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.rows: dict[int, Floats] = {}
        self.accumulators: dict[int, Floats] = {}

    def pull(self, ids: Ids, out: Floats) -> None:
        for i, key in enumerate(ids.tolist()):
            row = self.rows.get(key)
            if row is None:
                row = self.rows[key] = np.random.uniform(-0.05, 0.05, self.dim).astype(np.float32)
                self.accumulators[key] = np.full(self.dim, ACCUMULATOR, np.float32)
            out[i] = row

    def push_unique(self, ids: Ids, grads: Floats) -> None:
        for i, key in enumerate(ids.tolist()):
            accumulator = self.accumulators[key]
            accumulator += grads[i] ** 2
            self.rows[key] -= RATE * grads[i] / np.sqrt(accumulator + EPSILON)


def rows_per_second(work: Callable[[Ids], object], batches: Sequence[Ids], rounds: int) -> dict[str, float]:
    """Million rows per second: the median batch, the best one, and the median per second of this thread's CPU time.

    The last leaves out the time in which other programs had the core, but not what they did to its caches.
    """
    seconds, cpu_seconds = [], []
    for _ in range(rounds):
        for ids in batches:
            start, cpu_start = time.perf_counter(), time.thread_time()
            work(ids)
            cpu_seconds.append((time.thread_time() - cpu_start) / len(ids))
            seconds.append((time.perf_counter() - start) / len(ids))
    return {
        "median": 1e-6 / statistics.median(seconds),
        "best": 1e-6 / min(seconds),
        "median by CPU time": 1e-6 / statistics.median(cpu_seconds),
    }


def resident_bytes() -> int:
    """What the kernel counts for this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def fill_store(store: _native.RowStore, order: Ids, out: Floats) -> dict[str, float]:
    """Every row is born, a batch of new ids at a time."""
    seconds = []
    for start in range(0, len(order), len(out)):
        ids = order[start : start + len(out)]
        began = time.perf_counter()
        store.pull(ids, out[: len(ids)])
        seconds.append(time.perf_counter() - began)
    return {
        "million rows/s": len(order) / sum(seconds) * 1e-6,
        "median batch ms": statistics.median(seconds) * 1e3,
        "worst batch ms": max(seconds) * 1e3,
    }


def measure_store(rows: int, dim: int, batch: int, isas: Sequence[Any]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    order = random.permutation(rows).astype(np.int64)
    out, grads = np.zeros((batch, dim), np.float32), random.standard_normal((batch, dim)).astype(np.float32)
    optimizer = _native.Optimizer("adagrad", "keras", 0.0, False, ACCUMULATOR, 0.9, 0.999, EPSILON)
    payload = rows * dim * 2 * 4
    result: dict[str, Any] = {}
    # Twice: memory that this machine touches for the first time may cost it several times as much.
    for turn in ("births", "births, memory reused"):
        before = resident_bytes()
        store = _native.RowStore(dim, optimizer, "uniform", -0.05, 0.05, 1)
        result[turn] = fill_store(store, order, out)
        result["memory"] = {
            "bytes/payload, told": store.nbytes() / payload,
            "bytes/payload, kernel": (resident_bytes() - before) / payload,
        }
        if turn == "births":
            del store

    uniform = [random.integers(0, rows, batch) for _ in range(10)]
    zipf = [order[random.zipf(1.2, batch) % rows] for _ in range(10)]
    distinct = [np.unique(ids) for ids in uniform]
    for ids in distinct:
        random.shuffle(ids)
    for isa in isas:
        _native.set_isa(isa)
        result[isa] = {
            "pull": rows_per_second(lambda ids: store.pull(ids, out[: len(ids)]), uniform, 3),
            "pull, Zipf": rows_per_second(lambda ids: store.pull(ids, out[: len(ids)]), zipf, 3),
            "push_unique": rows_per_second(lambda ids: store.push_unique(ids, grads[: len(ids)], RATE, 1), distinct, 3),
            "push": rows_per_second(lambda ids: store.push(ids, grads[: len(ids)], RATE, 1), uniform, 3),
            "push, Zipf": rows_per_second(lambda ids: store.push(ids, grads[: len(ids)], RATE, 1), zipf, 3),
        }
    _native.set_isa("best")
    for turn in ("pinned", "pinned, memory reused"):
        result[turn] = measure_pin(store, distinct, grads)
    return result


def measure_pin(store: _native.RowStore, batches: Sequence[Ids], grads: Floats) -> dict[str, float]:
    """What a pinned view costs the pushes that follow it."""

    def push_all() -> list[float]:
        milliseconds = []
        for ids in batches:
            start = time.perf_counter()
            store.push_unique(ids, grads[: len(ids)], RATE, 1)
            milliseconds.append((time.perf_counter() - start) * 1e3)
        return milliseconds

    unpinned = statistics.median(push_all())
    start = time.perf_counter()
    view = store.pin()
    pin_ms = (time.perf_counter() - start) * 1e3
    pushes = push_all()
    start = time.perf_counter()
    store.release(view)
    return {
        "push ms, nothing pinned": unpinned,
        "pin ms": pin_ms,
        "first push ms": pushes[0],
        "median push ms": statistics.median(pushes),
        "release ms": (time.perf_counter() - start) * 1e3,
    }


def measure_dict(dim: int, batch: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    table, out = DictOfRows(dim), np.zeros((batch, dim), np.float32)
    grads = random.standard_normal((batch, dim)).astype(np.float32)
    before = resident_bytes()
    table.pull(np.arange(DICT_ROWS), np.zeros((DICT_ROWS, dim), np.float32))
    memory = (resident_bytes() - before) / (DICT_ROWS * dim * 2 * 4)
    batches = [random.integers(0, DICT_ROWS, batch) for _ in range(3)]
    distinct = [random.permutation(np.unique(ids)) for ids in batches]
    return {
        "memory": {"bytes/payload, kernel": memory},
        "pull": rows_per_second(lambda ids: table.pull(ids, out[: len(ids)]), batches, 1),
        "push_unique": rows_per_second(lambda ids: table.push_unique(ids, grads[: len(ids)]), distinct, 1),
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def report(result: dict[str, Any]) -> str:
    native, plain = result["store"], result["dict of numpy rows"]
    best = native[result["isa"]]
    lines = [
        f"{result['rows']:,} rows x {result['dim']}, Adagrad, batches of {result['batch']:,} ids, {result['isa']}, "
        f"{result['processor']}",
        f"{'':14}{'million rows/s':>16}{'by CPU time':>12}{'best batch':>12}{'dict of rows':>14}{'ratio':>8}",
    ]
    for name, figure in best.items():
        line = f"{name:14}{figure['median']:16.1f}{figure['median by CPU time']:12.1f}{figure['best']:12.1f}"
        if name in plain:
            line += f"{plain[name]['median']:14.2f}{figure['median'] / plain[name]['median']:8.0f}"
        lines.append(line)
    lines[1] += f"   (the dict holds {DICT_ROWS:,} rows only)"
    for turn in ("births", "births, memory reused"):
        births = native[turn]
        lines.append(
            f"{turn}: {births['million rows/s']:.1f} million rows/s, a batch of new ids "
            f"{births['median batch ms']:.0f} ms, at worst {births['worst batch ms']:.0f} ms, growth included"
        )
    for turn in ("pinned", "pinned, memory reused"):
        pinned = native[turn]
        lines.append(
            f"{turn}: push {pinned['push ms, nothing pinned']:.1f} ms before, first after the pin "
            f"{pinned['first push ms']:.1f} ms, then {pinned['median push ms']:.1f} ms"
        )
    memory, dict_memory = native["memory"], plain["memory"]["bytes/payload, kernel"]
    lines.append(
        f"bytes/payload: {memory['bytes/payload, kernel']:.2f} by the kernel's count, "
        f"{memory['bytes/payload, told']:.2f} by our own; dict of rows {dict_memory:.2f}"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8192 * 26)
    parser.add_argument("--isa", default="", help="also measure these, separated by commas: avx2,scalar")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    best = _native.isa()
    isas = [best, *(name for name in arguments.isa.split(",") if name)]
    result = {
        "rows": arguments.rows,
        "dim": arguments.dim,
        "batch": arguments.batch,
        "isa": best,
        "processor": processor(),
        "load average before": os.getloadavg()[0],
        "store": measure_store(arguments.rows, arguments.dim, arguments.batch, isas),
        "dict of numpy rows": measure_dict(arguments.dim, arguments.batch),
    }
    print(report(result))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
