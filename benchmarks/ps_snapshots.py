"""Checkpoints while training: how long pushes wait, how fast they are afterwards, what it takes in memory and on disk.

    python benchmarks/ps_snapshots.py [--gigabytes 1.0] [--cuts 10] [--out benchmarks/results/ps_snapshots.json]

One server process with a table of rows x 16 and Adagrad; one client that pulls and pushes 8192 x 26 uniform ids at a
time, without end; cuts made as the master makes them (hold, freeze, release, write, settle). A pause is the longest
step around a cut less the median step. Speed before and after is measured without a cut under way.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.ps_servers import BATCHES, TIMELINE, TOKEN, fill, spec
from benchmarks.report import machine
from elasticdl import __version__
from elasticdl.ps.client import Batch, Client
from elasticdl.ps.memory import keep_freed_memory
from elasticdl.ps.service import Service
from elasticdl.wire import control_pb2 as pb

DIM, IDS, ROW_BYTES = 16, 8192 * 26, 128
WAIT_SECONDS = 300.0


class Server:
    """A server process that receives a master's messages over its standard input and output."""

    def __init__(self, folder: str) -> None:
        command = [sys.executable, __file__, "--serve", folder]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdin is not None and self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        self.address = self._out.readline().strip()

    def direct(self, **body: Any) -> None:
        print(base64.b64encode(pb.ToReplica(**body).SerializeToString()).decode(), file=self._in, flush=True)

    def hear(self, kind: str) -> Any:
        while line := self._out.readline():
            message = pb.FromReplica.FromString(base64.b64decode(line))
            if message.WhichOneof("body") == kind:
                return getattr(message, kind)
        raise RuntimeError("the server is gone")

    def resident(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def close(self) -> None:
        self._in.close()
        self.process.wait()


class Steps(threading.Thread):
    """Pulls and pushes until it is stopped; keeps when each step ended and how long it took."""

    def __init__(self, client: Client, rows: int) -> None:
        super().__init__(daemon=True)
        self.client, self.rows = client, rows
        self.ended: list[float] = []
        self.took: list[float] = []
        self._stop_asked = threading.Event()

    def run(self) -> None:
        random = np.random.default_rng(3)
        gradients = random.standard_normal((IDS, DIM)).astype(np.float32)
        dense, state = np.zeros(1000, np.float32), np.zeros(0, np.float32)
        drawn = [random.integers(0, self.rows, IDS) for _ in range(8)]
        number = 0
        while not self._stop_asked.is_set():
            began = time.perf_counter()
            ids, _ = self.client.unique(drawn[number % len(drawn)])
            self.client.rows("table", ids)
            self.client.push(Batch(0, 0, 1, number), dense, state, {"table": (ids, gradients[: len(ids)])})
            number += 1
            self.took.append(time.perf_counter() - began)
            self.ended.append(time.perf_counter())

    def between(self, start: float, stop: float) -> list[float]:
        return [t for t, at in zip(list(self.took), list(self.ended), strict=False) if start <= at <= stop]

    def touching(self, start: float, stop: float) -> list[float]:
        """Steps of which any part lies in this time."""
        steps = zip(list(self.took), list(self.ended), strict=False)
        return [took for took, at in steps if at >= start and at - took <= stop]

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


def cut(server: Server, number: int, folder: Path) -> dict[str, float]:
    """One checkpoint, as the master makes it."""
    directory = folder / f"cut-{number}"
    began = time.perf_counter()
    server.direct(hold=pb.Hold(cut=number, at=0))
    server.hear("held")
    server.direct(freeze=pb.Freeze(cut=number, purpose="save", directory=str(directory)))
    server.hear("frozen")
    server.direct(release=pb.Release(cut=number))
    released = time.perf_counter()
    wrote = server.hear("wrote")
    assert not wrote.error, wrote.error
    peak = server.resident()
    server.direct(settle=pb.Settle(cut=number, published=True, directory=str(directory)))
    files = json.loads(wrote.part)
    return {
        "began": began, "released": released, "ended": time.perf_counter(), "resident": peak,
        "written": files[-1]["bytes"], "files": len(files),
    }  # fmt: skip


def measure(gigabytes: float, cuts: int) -> dict[str, Any]:
    rows = int(gigabytes * 1e9 / ROW_BYTES)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as temporary:
        server = Server(temporary)
        client = Client([server.address], TOKEN, spec(DIM), TIMELINE)
        client.declare(np.zeros(1000, np.float32), np.zeros(0, np.float32))
        print(f"filling {rows} rows", flush=True)
        fill(client, "table", rows)
        steps = Steps(client, rows)
        steps.start()
        time.sleep(3.0)  # warm
        began = time.perf_counter()
        time.sleep(5.0)
        before, resident = steps.between(began, time.perf_counter()), server.resident()
        found = []
        for number in range(1, cuts + 1):
            found.append(cut(server, number, Path(temporary)))
            print(
                f"cut {number}: {found[-1]['written'] / 1e6:.0f} MB in {found[-1]['ended'] - found[-1]['began']:.2f} s"
            )
            time.sleep(0.5)
        time.sleep(2.0)
        began = time.perf_counter()
        time.sleep(5.0)
        after = steps.between(began, time.perf_counter())
        steps.stop()
        client.close()
        server.close()
    step = statistics.median(before)
    around = [steps.touching(c["began"], c["released"]) for c in found]
    while_writing = [t for c in found for t in steps.between(c["released"] + 2 * step, c["ended"])]
    pauses = [max(times, default=step) - step for times in around]
    return {
        "date": date.today().isoformat(), "elasticdl": __version__, "python": platform.python_version(),
        "machine": machine(), "rows": rows, "gigabytes": rows * ROW_BYTES / 1e9, "cuts": cuts,
        "step_ms_before": round(1e3 * step, 2), "step_ms_after": round(1e3 * statistics.median(after), 2),
        "step_ms_while_writing": round(1e3 * statistics.median(while_writing or [step]), 2),
        "speed_after_over_before": round(step / statistics.median(after), 3),
        "pause_ms": [round(1e3 * p, 1) for p in pauses], "pause_ms_median": round(1e3 * statistics.median(pauses), 1),
        "barrier_ms": [round(1e3 * (c["released"] - c["began"]), 1) for c in found],
        "seconds_until_on_disk": [round(c["ended"] - c["began"], 2) for c in found],
        "written_megabytes": [round(c["written"] / 1e6) for c in found], "files": [c["files"] for c in found],
        "resident_megabytes": round(resident / 1e6), "peak_megabytes": round(max(c["resident"] for c in found) / 1e6),
    }  # fmt: skip


def _serve(folder: str) -> None:
    keep_freed_memory()

    def say(message: pb.FromReplica) -> None:
        print(base64.b64encode(message.SerializeToString()).decode(), flush=True)

    service = Service(0, 1, 1, TOKEN, say, directory=Path(folder))
    service.direct(pb.ToReplica(restore=pb.Restore(timeline=TIMELINE)))
    service.direct(pb.ToReplica(opened=pb.Opened(shard="train/0/0", attempt=1, batches=BATCHES)))
    print(service.address, flush=True)

    def listen() -> None:
        for line in sys.stdin:
            service.direct(pb.ToReplica.FromString(base64.b64decode(line)))
        service.stop()

    threading.Thread(target=listen, daemon=True).start()
    service.run()
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        _serve(args.serve)
        return 0
    found = measure(args.gigabytes, args.cuts)
    for name, value in found.items():
        print(f"{name}: {value}")
    print(f"pause: {found['pause_ms_median']} ms (must be below 100), speed after {args.cuts} checkpoints: "
          f"{found['speed_after_over_before']} of before (must be within 5 %)")  # fmt: skip
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
