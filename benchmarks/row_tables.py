"""What the row store's benchmarks share: the table, the batches, stopwatches, and the form of a result."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import report
from benchmarks.ps_servers import Zipf
from benchmarks.report import write as write
from elasticdl.ps import _native

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]

BATCH = 8192 * 26
RATE, EPSILON, ACCUMULATOR = 0.01, 1e-7, 0.1


def arguments(about: str | None, **defaults: int) -> argparse.Namespace:
    """--out, and a number for each of the names given."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    return parser.parse_args()


def adagrad() -> _native.Optimizer:
    return _native.Optimizer(kind="adagrad", flavour="keras", initial_accumulator=ACCUMULATOR, epsilon=EPSILON)


def empty_store(dim: int) -> _native.RowStore:
    return _native.RowStore(dim, adagrad(), "uniform", -0.05, 0.05, 1)


def grow(store: _native.RowStore, start: int, stop: int, dim: int, order: Ids | None = None) -> None:
    """Rows `start` to `stop` are born, in the order given."""
    out = np.empty((BATCH, dim), np.float32)
    for first in range(start, stop, BATCH):
        last = min(first + BATCH, stop)
        ids = np.arange(first, last) if order is None else order[first:last]
        store.pull(np.ascontiguousarray(ids), out[: last - first])


def batches(kind: str, rows: int, count: int, size: int = BATCH) -> list[Ids]:
    """uniform: every id as likely as the next; zipf: exponent 1.05, ranks scattered over the ids."""
    random = np.random.default_rng(7)
    if kind == "uniform":
        return [random.integers(0, rows, size) for _ in range(count)]
    zipf = Zipf(rows, random)
    return [zipf.draw(size) for _ in range(count)]


def distinct(drawn: Sequence[Ids]) -> list[Ids]:
    random = np.random.default_rng(8)
    return [random.permutation(np.unique(ids)) for ids in drawn]


def rates(
    contenders: Mapping[str, Callable[[int], object]], sizes: Sequence[int], rounds: int
) -> dict[str, dict[str, float]]:
    """Million rows per second of each contender. They take turns, a fraction of a second each: what else the machine
    does meets all alike, and each finds its own rows in the caches, as it would by itself.

    A contender is called with the number of the batch. The first round is for the caches and is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, work in contenders.items():
            for number, size in enumerate(sizes):
                start = time.perf_counter()
                work(number)
                if turn:
                    seconds[name].append((time.perf_counter() - start) / size)
    return {
        name: {"median": round(1e-6 / statistics.median(s), 3), "best": round(1e-6 / min(s), 3)}
        for name, s in seconds.items()
    }


def ratio(found: Mapping[str, Mapping[str, float]], ours: str, peer: str) -> float:
    return round(found[ours]["median"] / found[peer]["median"], 2)


def resident_bytes() -> int:
    """What the kernel counts for this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """The most it ever counted."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def about(*packages: str) -> dict[str, Any]:
    return report.about(*packages) | {"instructions": _native.isa()}


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    lines = [f"{'':44}{'median':>10}{'best':>10}   million rows/s"]
    lines += [f"{name:44}{figure['median']:10.2f}{figure['best']:10.2f}" for name, figure in found.items()]
    return "\n".join(lines)
