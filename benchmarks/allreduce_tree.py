"""What a sum in one fixed order costs as the number of virtual workers grows: traffic, adding, exchange, small parts.

    python benchmarks/allreduce_tree.py [--floats 1000000] [--rounds 30] [--device cuda]
        [--out benchmarks/results/allreduce_tree.json]

Traffic: bytes that the busiest worker hands to Gloo, over those of a ring's, 2 (n - 1) / n vectors; counted in real
exchanges for worlds of 2 and 4 processes, by arithmetic for others. Exchange: milliseconds of the deterministic sum and
of Gloo's own all-reduce, of the slowest rank. Adding: what a worker of two spends on adding up its parts' gradients.
Parts: forward and backward of one worker's records of a step, cut into as many parts as one of two workers has.
Medians; one thread for each process.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.peers.contenders import free_port
from benchmarks.report import about, write
from elasticdl.collective.buckets import BucketSum
from elasticdl.collective.exchange import tree_total
from elasticdl.collective.group import Group, PeerLink, Transfer
from elasticdl.collective.sums import Sums
from elasticdl.collective.tree import runs, subtrees

VIRTUAL = (2, 4, 8, 16, 32, 64)
WORLDS = (2, 3, 4, 5, 6, 7, 8, 12, 16)
MEASURED_WORLDS = (2, 4)
RECORDS = {"conv": 64, "transformer": 32, "mlp": 512}
MOST_ALIGNED, MOST_OTHER = 1.1, 1.6
TIMEOUT_SECONDS = 120.0


def traffic(virtual: int, world: int) -> float:
    """The busiest worker's, over a ring's: it sends each of its nodes once, and its slice of the result."""
    return (max(len(subtrees(*run, virtual)) for run in runs(virtual, world)) + 1) / 2


def member(rank: int, world: int, port: int, floats: int, rounds: int, device: str) -> None:
    """One process of a world: what its exchanges took and sent, as a line of JSON."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    group = Group(1, rank, [f"rank {n}" for n in range(world)], store, "127.0.0.1", TIMEOUT_SECONDS)
    sent = 0
    hand_over = PeerLink.send

    def counting(link: PeerLink, tensor: torch.Tensor, to: int, tag: int) -> Transfer:
        nonlocal sent
        sent += tensor.numel() * tensor.element_size()
        return hand_over(link, tensor, to, tag)

    PeerLink.send = counting  # type: ignore[method-assign]
    spent: dict[str, list[float]] = {}

    def added_up(vector: torch.Tensor) -> None:
        BucketSum(group, vector.clone(), [slice(0, vector.numel())]).finish(False)

    def timed(name: str, work: Callable[[], object]) -> None:
        added_up(torch.zeros(1))  # all begin together
        began = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        spent.setdefault(name, []).append(1e3 * (time.perf_counter() - began))

    found: dict[str, Any] = {"bytes": {}}
    mine = torch.ones(floats, device=device)
    shares = {v: subtrees(*runs(v, world)[rank], v) for v in VIRTUAL if v >= world}
    for turn in range(rounds + 2):
        for virtual, nodes in shares.items():
            held = {node: torch.ones(floats, device=device) for node in nodes}
            sent = 0
            timed(str(virtual), lambda held=held, virtual=virtual: tree_total(group, held, virtual, False))
            found["bytes"][str(virtual)] = sent
        timed("plain", lambda: added_up(mine))
        if turn == 1:
            spent.clear()  # buffers are made and connections warm
    added_up(torch.zeros(1))  # no process leaves while another is at it
    print(json.dumps({**found, "ms": spent}), flush=True)
    os._exit(0)  # the store of rank 0 goes last or first, it does not matter


def exchanges(world: int, port: int, floats: int, rounds: int, device: str) -> dict[str, Any]:
    """Of a world of processes: the slowest rank of each exchange, and the bytes of the busiest."""
    command = [sys.executable, __file__, "--world", str(world), "--port", str(port)]
    command += ["--floats", str(floats), "--rounds", str(rounds), "--device", device]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, env=env) for rank in range(world)
    ]
    results = [json.loads(p.communicate(timeout=600)[0]) for p in processes]
    ring = 2 * (world - 1) / world * 4 * floats
    slowest = {
        name: statistics.median(map(max, zip(*(s["ms"][name] for s in results), strict=True)))
        for name in results[0]["ms"]
    }
    return {
        "ms": {name: round(ms, 2) for name, ms in slowest.items()},
        "over a ring's": {v: round(max(s["bytes"][v] for s in results) / ring, 3) for v in results[0]["bytes"]},
    }


def adding(virtual: int, floats: int, rounds: int) -> float:
    """Milliseconds that one worker of two spends on its sums of a step."""
    start, stop = runs(virtual, 2)[0]
    times = []
    for _ in range(rounds + 1):
        given = [torch.ones(floats) for _ in range(start, stop)]
        began = time.perf_counter()
        sums = Sums(virtual)
        for number, vector in zip(range(start, stop), given, strict=True):
            sums.add(number, vector)
        sums.nodes(start, stop)
        times.append(1e3 * (time.perf_counter() - began))
    return round(statistics.median(times[1:]), 3)


def computing(model: str, rounds: int) -> dict[str, float]:
    """Milliseconds of forward and backward of one worker's records, by the number of virtual workers over two."""
    sys.path.insert(0, str(Path(__file__).parent / "models"))
    code = importlib.import_module(f"allreduce_{model}")
    net = code.custom_model()
    inputs, labels = (torch.from_numpy(a) for a in code.decode(code.make_records(RECORDS[model])))
    spent: dict[int, list[float]] = {virtual: [] for virtual in VIRTUAL}
    for _ in range(rounds + 1):
        for virtual in VIRTUAL:
            began = time.perf_counter()
            for x, y in zip(inputs.chunk(virtual // 2), labels.chunk(virtual // 2), strict=True):
                net.zero_grad()
                code.loss(y, net(x)).backward()
            spent[virtual].append(1e3 * (time.perf_counter() - began))
    return {str(virtual): round(statistics.median(times[1:]), 1) for virtual, times in spent.items()}


def report(result: dict[str, Any]) -> str:
    floats = result["floats"]
    lines = [f"{result['machine']}: vectors of {floats:,} floats, ms", ""]
    heads = [f"tree, {world}" for world in MEASURED_WORLDS]
    lines.append(
        f"{'virtual':>8}{'adding':>9}{''.join(f'{h:>10}' for h in heads)}{''.join(f'{m:>13}' for m in RECORDS)}"
    )
    for v in map(str, VIRTUAL):
        times = (result["exchange"][str(w)]["ms"].get(v) for w in MEASURED_WORLDS)
        exchanged = "".join(f"{'-' if ms is None else f'{ms:.2f}':>10}" for ms in times)
        computed = "".join(f"{result['computing'][name][v]:13.1f}" for name in RECORDS)
        lines.append(f"{v:>8}{result['adding'][v]:9.2f}{exchanged}{computed}")
    plain = "".join(f"{result['exchange'][str(w)]['ms']['plain']:10.2f}" for w in MEASURED_WORLDS)
    lines += [f"{'plain':>8}{'':9}{plain}", ""]
    lines.append("traffic of the busiest worker over a ring's, by workers and virtual workers")
    lines.append(f"{'':8}" + "".join(f"{v:>8}" for v in VIRTUAL))
    for world in WORLDS:
        row = result["traffic"][str(world)]
        lines.append(f"{world:>8}" + "".join(f"{row.get(str(v), '-'):>8}" for v in VIRTUAL))
    counted = {w: max(result["exchange"][str(w)]["over a ring's"].values()) for w in MEASURED_WORLDS}
    lines.append("counted: " + ", ".join(f"{value:.3f} with {w} workers" for w, value in counted.items()))
    for title, limit, power in (("a power of two", MOST_ALIGNED, True), ("other numbers", MOST_OTHER, False)):
        worst = max(max(result["traffic"][str(w)].values()) for w in WORLDS if (w & (w - 1) == 0) == power)
        worst = max(worst, *counted.values()) if power else worst
        lines.append(f"{title} of workers: {worst:.2f}, at most {limit:g}: {'yes' if worst <= limit else 'NO'}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="What a sum in one fixed order costs.")
    parser.add_argument("--floats", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="cpu", help="where the exchanged vectors are; all else is on the CPU")
    parser.add_argument("--out", type=Path)
    for name in ("rank", "world", "port"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        member(arguments.rank, arguments.world, arguments.port, arguments.floats, arguments.rounds, arguments.device)
    torch.set_num_threads(1)
    floats, rounds = arguments.floats, arguments.rounds
    result = {
        **about("torch"),
        "floats": floats,
        "traffic": {str(w): {str(v): traffic(v, w) for v in VIRTUAL if v >= w} for w in WORLDS},
        "exchange": {str(w): exchanges(w, free_port(), floats, rounds, arguments.device) for w in MEASURED_WORLDS},
        "adding": {str(v): adding(v, floats, rounds) for v in VIRTUAL},
        "computing": {model: computing(model, max(3, rounds // 5)) for model in RECORDS},
    }
    print(report(result))
    write(arguments.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
