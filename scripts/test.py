"""Runs the tests level by level and prints what each level cost.

python scripts/test.py            all levels
python scripts/test.py core data  only these
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGET_SECONDS = 15 * 60


@dataclass(frozen=True)
class Level:
    name: str
    budget_seconds: int
    commands: tuple[tuple[str, ...], ...]


def _pytest(*paths: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "pytest", "-q", *paths)


def _on_both_cores(*paths: str) -> tuple[str, ...]:
    """For tests that share the machine: each file in one of two processes. Jobs with kills have it to themselves."""
    return (*_pytest(*paths), "-n", "2", "--dist", "loadfile")


def _tool(name: str, *args: str) -> tuple[str, ...]:
    return (str(Path(sys.executable).with_name(name)), *args)


LEVELS = (
    Level(
        "lint",
        30,
        (
            _tool("ruff", "check", "."),
            _tool("ruff", "format", "--check", "."),
            _tool("mypy"),
            _tool("lint-imports"),
        ),
    ),
    Level("core", 75, (_on_both_cores("tests/core", "tests/simulation"),)),
    Level("job", 10, (_pytest("tests/job"),)),
    Level("data", 25, (_on_both_cores("tests/data"),)),
    Level(
        "wire",
        95,
        (_on_both_cores("tests/wire", "tests/ps", "tests/master", "tests/worker", "tests/modes", "tests/strategies"),),
    ),
    Level("cluster", 30, (_pytest("tests/cluster"),)),
    Level("frameworks", 80, (_on_both_cores("tests/frameworks"),)),
    Level("collective", 60, (_on_both_cores("tests/collective", "tests/api"),)),
    Level("docs", 30, (_pytest("tests/docs"),)),
    Level("cli", 110, (_on_both_cores("tests/cli"),)),
    Level("processes", 250, (_pytest("tests/processes"),)),
    Level("seeds", 60, (_pytest("tests/seeds"),)),
    Level("zoo", 75, (_on_both_cores("tests/zoo"),)),
)


def main() -> int:
    wanted = sys.argv[1:]
    unknown = set(wanted) - {level.name for level in LEVELS}
    if unknown:
        print(f"no level {', '.join(sorted(unknown))}; there are {', '.join(level.name for level in LEVELS)}")
        return 2
    took: list[tuple[Level, float, bool]] = []
    for level in LEVELS:
        if wanted and level.name not in wanted:
            continue
        print(f"== {level.name}", flush=True)
        began = time.monotonic()
        codes = [subprocess.run(command, cwd=ROOT).returncode for command in level.commands]
        passed = not any(codes)
        took.append((level, time.monotonic() - began, passed))
    print(f"\n{'level':<12} {'seconds':>8} {'budget':>8}")
    for level, seconds, passed in took:
        over = "  over its budget" if seconds > level.budget_seconds else ""
        print(f"{level.name:<12} {seconds:>8.0f} {level.budget_seconds:>8}  {'passed' if passed else 'FAILED'}{over}")
    total = sum(seconds for _, seconds, _ in took)
    print(f"{'all':<12} {total:>8.0f} {BUDGET_SECONDS:>8}\n")
    failed = [level.name for level, _, passed in took if not passed]
    if failed:
        print(f"failed: {', '.join(failed)}")
    print(f"levels: {len(took) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
