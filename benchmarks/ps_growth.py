"""Rows per second as servers and workers are added: pure pull and push, no model.

    python benchmarks/ps_growth.py [--servers 1 2 3 4] [--workers 1 2 4 8] [--rows 1000000] [--out RESULTS.json]

Every worker and server is a process. A step of a worker pulls 8192 x 26 uniform ids and pushes as many gradients; what
is counted is rows moved in both directions by all workers in a fixed time. With --out a plot
is written beside it, where matplotlib is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.ps_servers import TIMELINE, TOKEN, fill, serving, spec
from benchmarks.report import machine
from elasticdl.ps.client import Batch, Client
from elasticdl.ps.memory import keep_freed_memory

DIM, IDS = 16, 8192 * 26


def client(addresses: list[str]) -> Client:
    made = Client(addresses, TOKEN, spec(DIM), TIMELINE)
    made.declare(np.zeros(made.trainable_size, np.float32), np.zeros(made.state_size, np.float32))
    return made


def work(index: int, seconds: float, rows: int, addresses: list[str]) -> None:
    """One worker: it is ready, waits for the start, and returns the rows it moved and the CPU it used."""
    keep_freed_memory()
    mine = client(addresses)
    random = np.random.default_rng(index)
    gradients = random.standard_normal((IDS, DIM)).astype(np.float32)
    dense, state = np.zeros(mine.trainable_size, np.float32), np.zeros(mine.state_size, np.float32)
    batches = [random.integers(0, rows, IDS) for _ in range(4)]
    mine.rows("table", batches[0][:100])
    print("ready", flush=True)
    sys.stdin.readline()
    moved, pushed, cpu, end = 0, 0, time.process_time(), time.monotonic() + seconds
    while time.monotonic() < end:
        distinct, _ = mine.unique(batches[pushed % len(batches)])
        got = mine.rows("table", distinct)
        rows_pushed = {"table": (distinct, gradients[: len(got)])}
        mine.push(Batch(0, index, 1, pushed), dense, state, rows_pushed)
        moved, pushed = moved + 2 * len(got), pushed + 1
    print(moved, pushed, time.process_time() - cpu, flush=True)
    mine.close()


def measure(servers: int, workers: int, rows: int, seconds: float) -> dict[str, Any]:
    with serving(servers, workers) as addresses:
        first = client(addresses)
        fill(first, "table", rows)
        first.close()
        started = []
        for index in range(workers):
            command = [sys.executable, __file__, "--worker", str(index), str(seconds), str(rows), *addresses]
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env))
        for worker in started:
            assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
        for worker in started:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        answers = [worker.communicate(timeout=seconds + 60)[0].split() for worker in started]
    moved, steps = sum(int(s[0]) for s in answers), sum(int(s[1]) for s in answers)
    return {
        "servers": servers,
        "workers": workers,
        "million rows/s": round(moved / seconds / 1e6, 2),
        "steps/s": round(steps / seconds, 1),
        "ms per step of a worker": round(1e3 * seconds * workers / max(steps, 1), 1),
        "cores used by workers": round(sum(float(s[2]) for s in answers) / seconds, 2),
    }


def plot(found: list[dict[str, Any]], title: str, where: Path) -> None:
    """Million rows per second over workers, a line for each number of servers."""
    import matplotlib.pyplot as plt  # an optional dependency

    figure, axes = plt.subplots(figsize=(7, 4))
    for servers in sorted({f["servers"] for f in found}):
        line = [(f["workers"], f["million rows/s"]) for f in found if f["servers"] == servers]
        axes.plot(*zip(*line, strict=True), marker="o", label=f"{servers} server{'s' if servers > 1 else ''}")
    axes.set(xlabel="workers", ylabel="million rows/s, pulled and pushed", title=title, ylim=(0, None))
    axes.legend()
    figure.tight_layout()
    figure.savefig(where)


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        work(int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
        return 0
    parser = argparse.ArgumentParser(description="Rows per second over numbers of servers and workers.")
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = []
    where = machine()
    print(f"{where}\n{'servers':>8}{'workers':>8}{'M rows/s':>10}{'ms/step':>9}{'worker cores':>14}")
    for servers in arguments.servers:
        for workers in arguments.workers:
            got = measure(servers, workers, arguments.rows, arguments.seconds)
            found.append(got)
            print(
                f"{servers:8}{workers:8}{got['million rows/s']:10.1f}{got['ms per step of a worker']:9.1f}"
                f"{got['cores used by workers']:14.2f}",
                flush=True,
            )
    if arguments.out:
        result = {"machine": where, "rows": arguments.rows, "dim": DIM, "ids": IDS, "measured": found}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
        if find_spec("matplotlib"):
            plot(found, f"dim {DIM}, {where}", arguments.out.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
