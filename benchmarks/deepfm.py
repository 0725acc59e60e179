"""The zoo's DeepFM over ten million ids: a job of two workers and two servers, beside the same model in one process.

    python benchmarks/deepfm.py [--records 400000] [--batch 8192] [--out benchmarks/results/deepfm.json]

The job is a real one: `elasticdl train` on records of Criteo's shape in Parquet files, read and fed as any model's. The
one process has `torch.nn.Embedding(sparse=True)` tables, `torch.optim.Adagrad`, both cores, and takes its batches once
through the same reader and feed, and once ready-made from memory. Samples per second of training, start not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
# Not this folder, in which the file's own name would stand for the zoo's package.
sys.path[0] = str(ROOT)
sys.path += [str(ROOT / "benchmarks" / "models"), str(ROOT / "model_zoo")]

from benchmarks.report import machine  # noqa: E402
from elasticdl.data.criteo import CATEGORIES, COUNTS  # noqa: E402
from elasticdl.data.reader import open_reader  # noqa: E402

VALUES = 400_000  # of each category: 26 x 400,000 is somewhat more than the table has ids
FILES = 8
LOSS = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})\].*Loss = \S+, steps = (\d+)")
PHASES = re.compile(r"Time per batch of (\d+): (.*)")


def write_records(folder: Path, records: int, seed: int = 1) -> None:
    """Popular values first, as in Zipf's law: the logarithm of the rank is even."""
    random = np.random.default_rng(seed)
    for number in range(FILES):
        rows = records * (number + 1) // FILES - records * number // FILES
        columns: dict[str, Any] = {"label": random.integers(0, 2, rows)}
        columns |= {name: np.floor(np.exp(random.random(rows) * 6) - 1) for name in COUNTS}
        for name in CATEGORIES:
            ranks = np.minimum(np.exp(random.random(rows) * np.log(VALUES + 1)) - 1, VALUES - 1).astype(np.int64)
            columns[name] = ranks
        pq.write_table(pa.table(columns), folder / f"data-{number:05d}.parquet", row_group_size=8192)


def run_job(data: Path, state: Path, batch: int, workers: int, servers: int) -> dict[str, Any]:
    """Samples per second from the first to the last loss line, and the workers' own account of their time."""
    command = [
        sys.executable, "-m", "elasticdl", "train", "--job_name=deepfm", f"--state_dir={state}",
        f"--model_zoo={ROOT / 'benchmarks' / 'models'}", "--model_def=deepfm_large.custom_model",
        f"--training_data={data}", f"--minibatch_size={batch}", "--num_epochs=2", "--num_minibatches_per_task=4",
        f"--num_workers={workers}", f"--num_ps_pods={servers}", "--log_loss_steps=1",
    ]  # fmt: skip
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seen: list[tuple[float, int]] = []
    phases: list[dict[str, float]] = []
    for log in sorted((state / "deepfm" / "logs").glob("*worker*.log")):
        for line in log.read_text().splitlines():
            if found := LOSS.search(line):
                when = datetime.fromisoformat(found[1]).timestamp() + int(found[2]) / 1000
                seen.append((when, int(found[3])))
            if found := PHASES.search(line):
                phases.append({n: float(ms) for ms, n in re.findall(r"([\d.]+) ms ([a-z ]+)", found[2])})
    seen.sort()
    middle = [s for s in seen if s[1] > 2 * workers]  # the first batches of each worker warm up
    rate = (middle[-1][1] - middle[0][1]) * batch / (middle[-1][0] - middle[0][0])
    mean = {n: round(statistics.fmean(p.get(n, 0.0) for p in phases), 1) for n in (phases[0] if phases else {})}
    return {"samples/s": round(rate), "ms per batch and worker": mean, "cores busy, start and end included": cpu / wall}


def run_alone(data: Path, batch: int, fed: bool, steps: int) -> dict[str, Any]:
    """The same model with torch's own tables; `fed`: through the reader and feed, else batches ready in memory."""
    import torch
    from deepfm_large import deepfm_pytorch, feed, loss

    class Table(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, dim: int, buckets: int, combiner: str | None = None, initializer: Any = None) -> None:
            super().__init__()
            self.combiner = combiner
            self.plain = torch.nn.Embedding(buckets, dim, sparse=True)
            torch.nn.init.uniform_(self.plain.weight, -0.05, 0.05)

        def forward(self, ids: Any) -> Any:
            values = self.plain(ids)
            return values.sum(-2) if self.combiner else values

    deepfm_pytorch.Embedding, theirs = Table, deepfm_pytorch.Embedding
    model = deepfm_pytorch.custom_model()
    deepfm_pytorch.Embedding = theirs
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.1)
    reader = open_reader(str(data))
    spent: dict[str, list[float]] = {"data": [], "forward and backward": [], "optimizer": []}

    files = reader.describe().files
    places = [(f.name, start) for f in files for start in range(0, f.records - batch + 1, batch)]

    def take(number: int) -> Any:
        name, start = places[number % len(places)]
        return feed(reader.read(name, start, start + batch), "training", reader.metadata)

    kept = [take(n) for n in range(4)]
    total = []
    for number in range(steps + 2):
        began = time.perf_counter()
        features, labels = take(number) if fed else kept[number % len(kept)]
        given = time.perf_counter()
        inputs = {name: torch.from_numpy(array) for name, array in features.items()}
        optimizer.zero_grad()
        loss(torch.from_numpy(labels), model(inputs)).backward()
        computed = time.perf_counter()
        optimizer.step()
        done = time.perf_counter()
        for name, took in zip(spent, (given - began, computed - given, done - computed), strict=True):
            spent[name].append(1e3 * took)
        total.append(done - began)
    parts = {name: round(statistics.median(times[2:]), 1) for name, times in spent.items()}
    return {"samples/s": round(batch / statistics.median(total[2:])), "ms per batch": parts}


def main() -> int:
    parser = argparse.ArgumentParser(description="DeepFM with ten million ids: a job, and one process.")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=10, help="of the one process")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "batch": arguments.batch, "records": arguments.records}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        write_records(data, arguments.records)
        for workers, servers in ((2, 2), (1, 1)):
            name = f"job: {workers} workers, {servers} servers"
            result[name] = run_job(data, Path(folder) / f"state{workers}", arguments.batch, workers, servers)
            print(name, json.dumps(result[name]), flush=True)
        for fed, name in ((True, "one process, read and fed"), (False, "one process, batches in memory")):
            result[name] = run_alone(data, arguments.batch, fed, arguments.steps)
            print(name, json.dumps(result[name]), flush=True)
    job, alone = result["job: 2 workers, 2 servers"]["samples/s"], result["one process, read and fed"]["samples/s"]
    print(f"{result['machine']}\njob / one process on the same records: {job / alone:.2f}")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    sys.exit(main())
