"""Steady training by two workers with nothing going wrong: ElasticDL's all-reduce beside DDP under torchrun.

    python benchmarks/allreduce_throughput.py --peer_python PYTHON [--rounds 5] [--only conv,transformer,mlp]
        [--contenders elasticdl,torchrun,torchft] [--out benchmarks/results/allreduce_throughput.json]

--peer_python is that of an environment with torch and torchft-nightly; without it only ours is measured. The same nets
on the same records, one thread for each worker; medians of the rounds. Ours runs with the default number of virtual
workers, deterministic and not; it reads its records from files, the peers have theirs in memory.

In a round all are started, and then take turns of a second and a half in which the others are stopped (SIGSTOP): a
machine that is slower for a while is so for all of them. One after the other, as whole runs, they differed by 15 % with
the minute in which they ran.

Deterministic, ours computes a worker's records in as many parts as it has virtual workers; otherwise it tries in its
first steps what is fastest. What parts cost by themselves, without any exchange, is measured in one process: the same
records in 1, 2, 4 and 8 parts.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.peers.contenders import (
    MODELS,
    Contender,
    ElasticDL,
    Failed,
    Run,
    Torchft,
    Torchrun,
    Toy,
    peer_versions,
)
from benchmarks.report import about, write
from elasticdl.frameworks.memory import keep_freed_memory

WORKERS = 2
TOYS = {"conv": Toy("conv", 64), "transformer": Toy("transformer", 32), "mlp": Toy("mlp", 512)}
PARTS = (1, 2, 4, 8)
WARM, START_SECONDS = 10, 120.0
TURN_SECONDS = 1.5  # several steps; two of the others' are less than what makes our master take a worker for hung
REACH = {"elasticdl": 0.95, "elasticdl, not deterministic": 1.0}  # of DDP's


def rates(contenders: list[Contender], toy: Toy, seconds: float) -> dict[str, float]:
    """Samples per second of each, in one round: each is awake for so many seconds in all."""
    with tempfile.TemporaryDirectory(prefix="allreduce-") as folder:
        runs: dict[str, Run] = {}
        try:
            for number, contender in enumerate(contenders):
                own = Path(folder) / str(number)
                own.mkdir()
                runs[contender.name] = contender.start(own, toy, WORKERS)
                runs[contender.name].stop()
            deadline = time.monotonic() + START_SECONDS * len(runs)
            while not all(run.seen().steady(WORKERS, WARM) for run in runs.values()):
                if time.monotonic() > deadline:
                    story = "\n".join(f"{name}:\n{run.story()}" for name, run in runs.items())
                    raise Failed(f"not all have steady steps\n{story}")
                take_turns(runs)
            before = {name: run.seen().worlds()[-1] for name, run in runs.items()}
            awake = dict.fromkeys(runs, 0.0)
            while min(awake.values()) < seconds:
                for name, spent in take_turns(runs).items():
                    awake[name] += spent
            after = {name: run.seen().worlds()[-1] for name, run in runs.items()}
        finally:
            for run in runs.values():
                run.wake()
                run.end()
    for name, world in after.items():
        if world.generation != before[name].generation:
            raise Failed(f"the world of {name} changed on the way")
    done = {name: after[name].step - before[name].step for name in runs}
    return {name: done[name] / awake[name] * toy.minibatch_size * WORKERS for name in runs}


def take_turns(runs: dict[str, Run]) -> dict[str, float]:
    """One turn of each; how long it was."""
    spent = {}
    for name, run in runs.items():
        spent[name] = run.turn(TURN_SECONDS)
        if (code := run.processes[0].poll()) is not None:
            raise Failed(f"{name} ended with exit code {code}\n{run.story()}")
    return spent


def parts_cost(toy: Toy, steps: int) -> dict[str, float]:
    """Seconds of forward and backward of one worker's records, by the number of parts they are computed in."""
    import torch

    torch.set_num_threads(1)
    keep_freed_memory()  # as our workers do: without it, large passes pay for new memory each time
    sys.path.insert(0, str(MODELS))
    code = importlib.import_module(f"allreduce_{toy.model}")
    model = code.custom_model()
    inputs, labels = (torch.from_numpy(a) for a in code.decode(code.make_records(toy.minibatch_size)))
    spent: dict[int, list[float]] = {parts: [] for parts in PARTS}
    for _ in range(steps + 1):
        for parts in PARTS:
            began = time.perf_counter()
            for x, y in zip(inputs.chunk(parts), labels.chunk(parts), strict=True):
                model.zero_grad()
                code.loss(y, model(x)).backward()
            spent[parts].append(time.perf_counter() - began)
    return {str(parts): round(statistics.median(times[1:]), 5) for parts, times in spent.items()}


def contenders(names: str, python: str) -> list[Contender]:
    known: dict[str, list[Contender]] = {
        "elasticdl": [ElasticDL(), ElasticDL(deterministic=False)],
        "torchrun": [Torchrun(python, checkpoint_steps=1 << 30)],
        "torchft": [Torchft(python)],
    }
    return [contender for name in names.split(",") for contender in known[name]]


def report(model: str, found: dict[str, Any]) -> str:
    toy = TOYS[model]
    lines = [f"\n{model}, {toy.minibatch_size} records a step and worker{'':12}samples/s   of DDP's"]
    peer = found["samples/s"].get("torchrun")
    for name, value in found["samples/s"].items():
        line = f"{name:44}{value:12.0f}"
        if peer:
            line += f"{value / peer:11.3f}"
            if name in REACH:
                line += f"  at least {REACH[name]:g}: {'yes' if value >= REACH[name] * peer else 'NO'}"
        lines.append(line)
    lines += [f"a round failed: {why}" for why in found["failed"]]
    cost = found["seconds by parts"]
    lines.append("computed in parts: " + ", ".join(f"{p}: {1e3 * s:.1f} ms" for p, s in cost.items()))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Steady training by two workers.")
    parser.add_argument("--peer_python", default="", help="the Python of an environment with torch and torchft-nightly")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of training, of each in each round")
    parser.add_argument("--only", default=",".join(TOYS))
    parser.add_argument("--contenders", default="elasticdl,torchrun,torchft")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what was started, as Ctrl-C does
    result: dict[str, Any] = {**about("torch", "elasticdl"), "peers": peer_versions(arguments.peer_python)}
    taking_part = []
    for contender in contenders(arguments.contenders, arguments.peer_python):
        if why := contender.missing():
            print(f"{contender.name} is skipped: {why}", flush=True)
        else:
            taking_part.append(contender)
    for model in arguments.only.split(","):
        rounds: list[dict[str, float]] = []
        failed: list[str] = []
        for number in range(arguments.rounds):
            try:
                rounds.append(rates(taking_part, TOYS[model], arguments.seconds))
            except Failed as error:
                failed.append(str(error).splitlines()[0])
                print(f"{model}, round {number}: {error}", file=sys.stderr, flush=True)
        by_name = {c.name: [found[c.name] for found in rounds] for c in taking_part if rounds}
        result[model] = {
            "samples/s": {name: round(statistics.median(values), 1) for name, values in by_name.items()},
            "rounds": {name: [round(v, 1) for v in values] for name, values in by_name.items()},
            "failed": failed,
            "seconds by parts": parts_cost(TOYS[model], 20),
        }
        print(report(model, result[model]), flush=True)
        write(arguments.out, result)
    print(result["machine"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
