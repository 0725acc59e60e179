"""The elastic step loop on one GPU beside plain PyTorch: a transformer of 110 M parameters in bf16, and checkpoints.

    python benchmarks/allreduce_gpu.py [--batch 32] [--steps 10] [--rounds 5] [--device cuda]
        [--out benchmarks/results/allreduce_gpu.json]

Both train the same model on the same records with AdamW (fused), in autocast to bf16, and take turns of some steps;
medians of the rounds. Plain PyTorch computes the batch in as many parts as ours has virtual workers, and uses
deterministic algorithms where ours does, so that the difference is the loop's own. A checkpoint is taken as in a job:
the state is copied at a step's end, which is the stall, and written by a thread meanwhile.

One GPU cannot show an exchange between GPUs, nor overlap with one: a world of one has nothing to exchange.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import about, write
from elasticdl.api.elastic import Elastic
from elasticdl.api.job import join
from elasticdl.api.saving import Saver

VOCABULARY, DIM, HEADS, LAYERS, LENGTH = 32_768, 768, 12, 12, 1024
RECORDS = 4096
MOST_OVERHEAD, MOST_STALL_SECONDS = 0.02, 0.05
# (virtual workers, deterministic): how the batch is computed
SETTINGS = ((1, False), (1, True), (2, False), (2, True))


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mixed, self.joined = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.wide, self.narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        heads = self.mixed(self.before(x)).view(batch, length, 3, HEADS, dim // HEADS).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(batch, length, dim))
        return x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))


class Transformer(nn.Module):
    def __init__(self, dim: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, dim), nn.Embedding(length, dim)
        self.blocks, self.last = nn.Sequential(*(Block(dim) for _ in range(layers))), nn.LayerNorm(dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.last(self.blocks(x)) @ self.tokens.weight.T  # one table for both ends


class Bench:
    """Models, data and clocks on one device."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device, self.batch, self.steps = torch.device(arguments.device), arguments.batch, arguments.steps
        self.small = arguments.small
        self.length = 32 if self.small else LENGTH
        torch.manual_seed(1)
        self.data = torch.randint(0, VOCABULARY, (RECORDS, self.length + 1), device=self.device)

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = Transformer(48 if self.small else DIM, 2 if self.small else LAYERS, self.length).to(self.device)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=self.device.type == "cuda")

    def loss(self, model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            logits = model(rows[:, :-1])
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def timed(self, block: Callable[[], object]) -> float:
        self.synchronize()
        began = time.perf_counter()
        block()
        self.synchronize()
        return time.perf_counter() - began

    def plain(self, parts: int) -> Callable[[], None]:
        """Some steps of an ordinary loop."""
        model, optimizer = self.model()
        order = torch.arange(RECORDS, device=self.device)
        place = 0

        def block() -> None:
            nonlocal place
            for _ in range(self.steps):
                rows = self.data[order[place : place + self.batch]]
                place = (place + self.batch) % RECORDS
                for part in rows.chunk(parts):
                    (self.loss(model, part) / parts).backward()
                optimizer.step()
                optimizer.zero_grad()

        return block

    def ours(self, virtual: int, deterministic: bool) -> tuple[Callable[[], None], Elastic]:
        """As many steps of the elastic loop, of a job of one worker."""
        model, optimizer = self.model()
        job = join(
            minibatch_size=self.batch, virtual_workers=virtual, deterministic=deterministic, num_epochs=1_000_000,
            distribution_strategy="AllreduceStrategy",
        )  # fmt: skip
        elastic = job.elastic(model, optimizer, records=RECORDS)
        parts: Iterator[Any] = elastic.parts()

        def block() -> None:
            goal = elastic.committed_steps + self.steps
            while elastic.committed_steps < goal:
                part = next(parts)
                loss = self.loss(model, self.data[torch.from_numpy(part.records).to(self.device)])
                loss.backward()
                elastic.step(loss)

        return block, elastic


def overhead(bench: Bench, virtual: int, deterministic: bool, rounds: int) -> dict[str, Any]:
    plain, (ours, _) = bench.plain(virtual), bench.ours(virtual, deterministic)
    torch.use_deterministic_algorithms(deterministic)
    spent: dict[str, list[float]] = {"plain": [], "elastic": []}
    for _ in range(rounds + 1):
        for name, block in (("plain", plain), ("elastic", ours)):
            spent[name].append(bench.timed(block) / bench.steps)
    torch.use_deterministic_algorithms(False)
    found = {name: round(1e3 * statistics.median(times[1:]), 3) for name, times in spent.items()}
    return {"ms per step": found, "overhead": round(found["elastic"] / found["plain"] - 1, 4)}


def checkpoints(bench: Bench, rounds: int) -> dict[str, Any]:
    """What a step that ends with a checkpoint takes more than others, and those during which it is written."""
    steps, bench.steps = bench.steps, 1
    ours, elastic = bench.ours(1, False)
    usual = [bench.timed(ours) for _ in range(4 * steps)][steps:]
    stalls: list[float] = []
    meanwhile: list[float] = []
    wrote: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            written = threading.Event()
            errors: list[str] = []

            def say(
                cut: int, part: str, error: str = "", done: threading.Event = written, reported: Any = errors
            ) -> None:
                reported.append(error)
                done.set()

            saver = Saver(say)
            began = time.perf_counter()
            where, step = Path(folder) / str(number), elastic.committed_steps
            records = elastic.records_trained
            save = functools.partial(saver.save, step, where, step=step, generation=1, records=records)
            stalls.append(bench.timed(lambda save=save: save(state=elastic.state())))
            while not written.is_set():
                meanwhile.append(bench.timed(ours))
            wrote.append(time.perf_counter() - began)
            saver.finish()
            if any(errors):
                raise RuntimeError(f"the checkpoint was not written: {errors}")
    bench.steps = steps
    state = sum(t.numel() * t.element_size() for t in elastic.state().values())
    return {
        "bytes": state,
        "stall ms": round(1e3 * statistics.median(stalls[1:]), 2),
        "first stall ms": round(1e3 * stalls[0], 2),
        "usual step ms": round(1e3 * statistics.median(usual), 2),
        "step while it is written ms": round(1e3 * statistics.median(meanwhile), 2) if meanwhile else None,
        "written after s": round(statistics.median(wrote[1:]), 2),
    }


def report(result: dict[str, Any]) -> str:
    lines = [
        f"{result['gpu']}: {result['parameters']:,} parameters, {result['batch']} x {result['length']} tokens a step",
        f"{'':40}{'plain':>10}{'elastic':>10}{'overhead':>10}   ms per step",
    ]
    for name, found in result["overhead"].items():
        ms = found["ms per step"]
        met = "yes" if found["overhead"] <= MOST_OVERHEAD else "NO"
        lines.append(f"{name:40}{ms['plain']:10.2f}{ms['elastic']:10.2f}{found['overhead']:10.2%}"
                     f"   at most {MOST_OVERHEAD:.0%}: {met}")  # fmt: skip
    saved = result["checkpoint"]
    stall, limit = saved["stall ms"], 1e3 * MOST_STALL_SECONDS
    lines.append(
        f"checkpoint of {saved['bytes'] / 1e9:.2f} GB: stall {stall:.1f} ms (the first {saved['first stall ms']:.0f}), "
        f"at most {limit:g}: {'yes' if stall <= limit else 'NO'}; written after {saved['written after s']:.1f} s"
    )
    during = saved["step while it is written ms"]
    return "\n".join([*lines, f"steps meanwhile: {during} ms, else {saved['usual step ms']} ms"])


def main() -> int:
    parser = argparse.ArgumentParser(description="The elastic step loop on one GPU beside plain PyTorch.")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10, help="of one turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny model, to see that the script runs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device here")
        return 0
    bench = Bench(arguments)
    gpu = torch.cuda.get_device_name() if arguments.device == "cuda" else "no GPU"
    result: dict[str, Any] = {**about("torch", "elasticdl"), "gpu": gpu, "batch": bench.batch, "length": bench.length}
    result["parameters"] = sum(p.numel() for p in bench.model()[0].parameters())
    result["overhead"] = {
        f"{v} virtual worker{'s' * (v > 1)}{', deterministic' * d}": overhead(bench, v, d, arguments.rounds)
        for v, d in SETTINGS
    }
    result["checkpoint"] = checkpoints(bench, arguments.rounds)
    print(report(result))
    write(arguments.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
