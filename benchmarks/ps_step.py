"""One training step without a model: the rows of a batch are pulled and its gradients pushed, from client to client.

    python benchmarks/ps_step.py [--rows 10000000] [--steps 60] [--out benchmarks/results/ps_step.json]

One worker, two servers, each a process of its own; 8192 x 26 ids of a table of 10 M rows x 16 with Adagrad, uniform or
by Zipf's law. A step makes the ids distinct, pulls dense values and rows, and pushes as many gradients. Beside it the
same step through plain gRPC servers as people write them: protobuf messages with ids and rows as bytes, the table a
numpy array indexed by the id itself (no hashing), Adagrad in numpy. Medians of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.grpc_peer import Peer, serving_peer
from benchmarks.ps_servers import TIMELINE, TOKEN, Ids, Zipf, fill, serving, spec
from benchmarks.report import machine
from elasticdl.ps.client import Batch, Client
from elasticdl.ps.memory import keep_freed_memory
from elasticdl.wire.auth import Keys

RECORDS, CATEGORIES, DIM, DENSE, SERVERS = 8192, 26, 16, 1000, 2
LIMITS_MS = {"plain": 30.0, "CURVE": 70.0}


class Ours:
    """A worker of ours, less the model."""

    def __init__(self, addresses: Sequence[str], keys: Keys | None) -> None:
        self.client = Client(addresses, TOKEN, spec(DIM, DENSE), TIMELINE, keys=keys)
        self.client.declare(np.zeros(DENSE, np.float32), np.zeros(0, np.float32))
        self.random = np.random.default_rng(1)
        self.gradients = self.random.standard_normal((RECORDS * CATEGORIES, DIM)).astype(np.float32)
        self.pushed = 0

    def step(self, ids: Ids) -> dict[str, float]:
        """Milliseconds of each part."""
        times = [time.perf_counter()]

        def done() -> None:
            times.append(time.perf_counter())

        distinct, _ = self.client.unique(ids)
        done()
        self.client.pull()
        done()
        rows = self.client.rows("table", distinct)
        done()
        batch = Batch(0, 0, 1, self.pushed)
        dense, state = np.zeros(DENSE, np.float32), np.zeros(0, np.float32)
        self.client.push(batch, dense, state, {"table": (distinct, self.gradients[: len(rows)])})
        done()
        self.pushed += 1
        parts = ("distinct ids", "pull dense", "pull rows", "push")
        spent = {part: 1e3 * (b - a) for part, a, b in zip(parts, times, times[1:], strict=False)}
        return {**spent, "step": 1e3 * (times[-1] - times[0])}


def medians(step: Callable[[Ids], dict[str, float]], batches: Sequence[Ids], steps: int) -> dict[str, float]:
    found = [step(batches[n % len(batches)]) for n in range(steps)]
    out = {part: round(statistics.median(f[part] for f in found), 2) for part in found[0]}
    return {**out, "best step": round(min(f["step"] for f in found), 2)}


def draw(kind: str, rows: int, count: int = 10) -> list[Ids]:
    random = np.random.default_rng(2)
    size = RECORDS * CATEGORIES
    if kind == "uniform":
        return [random.integers(0, rows, size) for _ in range(count)]
    zipf = Zipf(rows, random)
    return [zipf.draw(size) for _ in range(count)]


def measure(rows: int, steps: int, peer_steps: int) -> dict[str, Any]:
    result: dict[str, Any] = {"machine": machine(), "rows": rows, "dim": DIM, "ids": RECORDS * CATEGORIES}
    batches = {kind: draw(kind, rows) for kind in ("uniform", "Zipf 1.05")}
    result["distinct ids"] = {kind: len(np.unique(b[0])) for kind, b in batches.items()}
    settings: list[tuple[str, Keys | None, bool]] = [
        ("plain", None, False), ("plain over TCP", None, True), ("CURVE", Keys.new(), True),
    ]  # fmt: skip
    for name, keys, tcp in settings:
        with serving(SERVERS, keys=keys, tcp=tcp) as addresses:
            ours = Ours(addresses, keys)
            fill(ours.client, "table", rows)
            result[name] = {kind: medians(ours.step, b, steps) for kind, b in batches.items()}
            ours.client.close()
    with serving_peer(SERVERS, rows, DIM) as addresses:
        peer = Peer(addresses, DIM)
        gradients = np.random.default_rng(3).standard_normal((RECORDS * CATEGORIES, DIM)).astype(np.float32)

        def step(ids: Ids) -> dict[str, float]:
            began = time.perf_counter()
            distinct = np.unique(ids)
            got = peer.pull(distinct)
            peer.push(distinct, gradients[: len(got)])
            return {"step": 1e3 * (time.perf_counter() - began)}

        result["gRPC"] = {kind: medians(step, b, peer_steps) for kind, b in batches.items()}
        peer.close()
    return result


def report(result: dict[str, Any]) -> str:
    lines = [
        f"{result['machine']}: {result['rows']:,} rows x {result['dim']}, {result['ids']:,} ids, {SERVERS} servers; ms",
        f"{'':28}{'step':>8}{'best':>8}{'distinct':>10}{'dense':>8}{'rows':>8}{'push':>8}{'gRPC':>9}{'ratio':>8}",
    ]
    for name in ("plain", "plain over TCP", "CURVE"):
        for kind, found in result[name].items():
            peer = result["gRPC"][kind]["step"]
            lines.append(
                f"{name + ', ' + kind:28}{found['step']:8.1f}{found['best step']:8.1f}{found['distinct ids']:10.1f}"
                f"{found['pull dense']:8.1f}{found['pull rows']:8.1f}{found['push']:8.1f}{peer:9.0f}"
                f"{peer / found['step']:8.1f}"
            )
    for name, limit in LIMITS_MS.items():
        worst = max(found["step"] for found in result[name].values())
        lines.append(f"{name}: {worst:.1f} ms, at most {limit:g}: {'yes' if worst <= limit else 'NO'}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="One training step without a model, through the wire.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    keep_freed_memory()
    result = measure(arguments.rows, arguments.steps, max(3, arguments.steps // 10))
    print(report(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
