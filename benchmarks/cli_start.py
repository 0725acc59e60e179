"""How long the command takes to answer, and what it spends the time on.

    python benchmarks/cli_start.py

Claim: `elasticdl --help` answers within 0.3 s and imports no deep-learning framework and no gRPC.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 0.3
RUNS = 9
JOB = ["train", "--model_def=a.b.custom_model", "--training_data=data"]
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "elasticdl --help": ["-m", "elasticdl", "--help"],
    "elasticdl train --help": ["-m", "elasticdl", "train", "--help"],
    "elasticdl train … --dry_run": ["-m", "elasticdl", *JOB, "--dry_run"],
}


def seconds(words: list[str]) -> float:
    """The median time of one command, after one run that fills the caches."""
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def slowest_imports(words: list[str], count: int = 5) -> list[tuple[float, str]]:
    """The modules that cost the most by themselves, in milliseconds."""
    command = [sys.executable, "-X", "importtime", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    rows = [line.removeprefix("import time:").split("|") for line in done.stderr.splitlines()[1:]]
    return sorted(((int(own) / 1000, name.strip()) for own, _, name in rows), reverse=True)[:count]


def main() -> int:
    measured = {name: seconds(words) for name, words in COMMANDS.items()}
    for name, value in measured.items():
        print(f"{name:<32}{value * 1000:7.0f} ms")
    print("\nslowest imports of elasticdl train --help, each without what it imports itself:")
    for milliseconds, name in slowest_imports(COMMANDS["elasticdl train --help"]):
        print(f"  {name:<40}{milliseconds:6.1f} ms")
    within = measured["elasticdl --help"] < LIMIT_SECONDS
    print(f"\nelasticdl --help within {LIMIT_SECONDS} s: {'yes' if within else 'NO'}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
