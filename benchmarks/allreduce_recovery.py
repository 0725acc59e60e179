"""A worker is killed, leaves or joins: what the others notice of it, under ElasticDL, torchrun and torchft.

    python benchmarks/allreduce_recovery.py --peer_python PYTHON [--rounds 5] [--only kill2,kill4,leave,join,standby]
        [--contenders elasticdl,torchrun,torchft] [--out benchmarks/results/allreduce_recovery.json]

--peer_python is that of an environment with torch and torchft-nightly; without it only ours is measured. All train the
same net on the same records, one thread each, on this machine, and take turns; medians of the rounds. Times are taken
by the workers themselves, when a step is committed. Kills come at a random moment of a random step.

torchrun writes a checkpoint every 20 steps and redoes what came after it. torchft is measured with its defaults, and
tuned: heartbeats every 10 ms that may be 100 ms late, a group that waits 0.25 s.

Ours keeps a step's batch when a worker is lost, so that a step of the new world takes longer; torchft's batch shrinks
with the number of workers. Hence the column less one step of the new world.

The parts of a recovery (detect, abort, agree, rebuild, copy, first step) are those that `elasticdl status` shows: from
when the launcher saw the process end. They follow each other; medians of each need not add up to that of the total.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.peers.contenders import (
    TUNED,
    Contender,
    ElasticDL,
    Failed,
    Run,
    Torchft,
    Torchrun,
    Toy,
    peer_versions,
)
from benchmarks.peers.observing import Seen, full_strength, longest_gap, recovery, step_seconds
from benchmarks.report import about, write
from elasticdl.cli.view import CHANGE_PARTS

START_SECONDS, RECOVERY_SECONDS = 60.0, 90.0
STEADY, AFTER = 12, 8  # steps seen before the event and after it
Numbers = dict[str, Any]
Scenario = Callable[[Contender, Path, random.Random], Numbers]

# What must hold of ours: (scenario, number, limit).
LIMITS = (
    ("kill2", "next commit less one step", 0.25), ("kill4", "next commit less one step", 0.25),
    ("kill2", "group ready", 0.1), ("kill4", "group ready", 0.1),
    ("kill2", "samples repeated", 0), ("kill4", "samples repeated", 0),
    ("kill2", "samples lost", 0), ("kill4", "samples lost", 0),
    ("kill2", "survivors restarted", 0), ("kill4", "survivors restarted", 0),
    ("leave", "longest gap less one step", 0.2), ("join", "longest gap less one step", 0.3),
    ("standby", "full strength", 1.0),
)  # fmt: skip


def conv(workers: int, **more: int) -> Toy:
    """A step of the same 128 records, whatever the number of workers: 64 ms or more here."""
    return Toy("conv", 128 // workers, virtual_workers=8, **more)


def signalled(run: Run, workers: int, signum: signal.Signals, dice: random.Random) -> tuple[int, float, Seen]:
    """A worker of a steady run gets a signal: its pid, when, and the log then."""
    seen = run.wait(lambda s: s.steady(workers, STEADY), START_SECONDS, "steady steps")
    goal = seen.worlds()[-1].step + dice.randrange(20)  # anywhere between two of torchrun's checkpoints
    seen = run.wait(lambda s: s.worlds()[-1].step >= goal, START_SECONDS, "some more steps")
    victim = dice.choice(sorted(seen.worlds()[-2].pids))
    time.sleep(dice.uniform(0, step_seconds(seen.worlds())))  # anywhere in a step
    when = time.monotonic()
    os.kill(victim, signum)
    return victim, when, seen


def new_world(seen: Seen, lost: int, when: float) -> bool:
    """Whether enough steps were committed without the lost process, beyond those there were."""
    old = max((c.generation for c in seen.commits if c.pid == lost), default=-1)
    last = max((c.step for c in seen.commits if c.generation == old), default=0)
    after = [w for w in seen.worlds() if w.generation > old and w.when > when]
    return len(after) > AFTER and after[-1].step > last


def kill(workers: int) -> Scenario:
    def measure(contender: Contender, folder: Path, dice: random.Random) -> Numbers:
        toy = conv(workers)
        run = contender.start(folder, toy, workers)
        try:
            lost, when, _ = signalled(run, workers, signal.SIGKILL, dice)
            seen = run.wait(lambda s: new_world(s, lost, when), RECOVERY_SECONDS, "steps after a kill")
            breakdown = run.breakdown(lost=True)
        finally:
            run.end()
        found = recovery(seen, lost, when)
        # A worker that drops a step takes the next batch: its own is lost, and the dead worker's.
        dropped = found.skipped + 1 if found.skipped else 0
        return {
            "next commit": found.seconds,
            "next commit less one step": found.less_one_step,
            "beyond the last step": found.caught_up_seconds,
            "group ready": found.marks.get("built", math.nan),
            "step before": found.step_before,
            "step after": found.step_after,
            "steps redone": found.steps_redone,
            "samples repeated": found.steps_redone * toy.minibatch_size * workers,
            "samples lost": (dropped + found.steps_missing * workers) * toy.minibatch_size,
            "survivors restarted": found.restarted,
            "marks": found.marks,
            "breakdown": breakdown,
        }

    return measure


def leave(contender: Contender, folder: Path, dice: random.Random) -> Numbers:
    run = contender.start(folder, conv(2), 2)
    try:
        lost, when, _ = signalled(run, 2, signal.SIGTERM, dice)
        seen = run.wait(lambda s: new_world(s, lost, when), RECOVERY_SECONDS, "steps after a SIGTERM")
        breakdown = run.breakdown(lost=True)
    finally:
        run.end()
    found = recovery(seen, lost, when)
    done = when + max(found.seconds, found.caught_up_seconds) + 3 * found.step_after
    gap = longest_gap(seen, when, done)
    return {
        "longest gap": gap,
        "longest gap less one step": gap - max(found.step_before, found.step_after),
        "step before": found.step_before,
        "step after": found.step_after,
        "steps redone": found.steps_redone,
        "survivors restarted": found.restarted,
        "skipped": found.skipped,
        "breakdown": breakdown,
    }


def join(contender: Contender, folder: Path, dice: random.Random) -> Numbers:
    """A third worker comes; the model is of 97 MB."""
    if isinstance(contender, Torchrun):
        contender = Torchrun(contender.python, agents=True)  # one agent has a fixed number of workers
    run = contender.start(folder, Toy("mlp", 32, hidden=4540), 2)
    try:
        before = run.wait(lambda s: s.steady(2, STEADY), START_SECONDS, "steady steps")
        members, when = before.worlds()[-2].pids, time.monotonic()
        run.join()
        seen = run.wait(lambda s: s.steady(3, 5, when), RECOVERY_SECONDS, "steps of three workers")
        breakdown = run.breakdown(lost=False)
    finally:
        run.end()
    whole = next(w for w in seen.worlds() if w.when > when and len(w.pids) == 3)
    ready = max((m.when for m in seen.marks if m.name == "ready" and m.pid in whole.pids - members), default=when)
    until = seen.worlds()[-1].when
    kept = members & whole.pids
    gap = longest_gap(seen, min(ready, whole.when) if kept else when, until)
    steps = [step_seconds(before.worlds()[-STEADY:]), step_seconds([w for w in seen.worlds() if len(w.pids) == 3])]
    return {
        "longest gap": gap,
        "longest gap less one step": gap - max(steps),
        "step before": steps[0],
        "step after": steps[1],
        "survivors restarted": len(members - kept),
        "ready to first step of three": whole.when - ready,
        "breakdown": breakdown,
    }


def standby(contender: Contender, folder: Path, dice: random.Random) -> Numbers:
    """One of two is killed: until two train again. Ours keeps one warm; others start a process."""
    run = contender.start(folder, conv(2, standby=1), 2)
    try:
        if isinstance(contender, ElasticDL):
            run.wait(lambda s: len({m.pid for m in s.marks if m.name == "ready"}) >= 3, START_SECONDS, "a warm standby")
        lost, when, _ = signalled(run, 2, signal.SIGKILL, dice)
        run.replace()
        full = "two workers again"
        seen = run.wait(lambda s: full_strength(s, 2, lost, when) is not None, RECOVERY_SECONDS, full)
        breakdown = run.breakdown(lost=True)
    finally:
        run.end()
    return {"full strength": full_strength(seen, 2, lost, when), "breakdown": breakdown}


SCENARIOS: dict[str, tuple[str, Scenario]] = {
    "kill2": ("SIGKILL of one of 2 workers", kill(2)),
    "kill4": ("SIGKILL of one of 4 workers", kill(4)),
    "leave": ("SIGTERM of one of 2 workers", leave),
    "join": ("a third worker joins two, a model of 97 MB", join),
    "standby": ("SIGKILL of one of 2 workers: back to two", standby),
}
COLUMNS = {
    "kill2": (
        "next commit", "next commit less one step", "beyond the last step", "group ready", "step after",
        "samples repeated", "samples lost", "survivors restarted",
    ),
    "leave": ("longest gap", "longest gap less one step", "step before", "step after", "survivors restarted"),
    "join": ("longest gap", "longest gap less one step", "step before", "step after", "survivors restarted"),
    "standby": ("full strength",),
}  # fmt: skip
COLUMNS["kill4"] = COLUMNS["kill2"]


def contenders(names: str, python: str) -> list[Contender]:
    known: dict[str, list[Contender]] = {
        "elasticdl": [ElasticDL()],
        "torchrun": [Torchrun(python)],
        "torchrun-agents": [Torchrun(python, agents=True)],
        "torchft": [Torchft(python), Torchft(python, TUNED, "tuned")],
    }
    return [contender for name in names.split(",") for contender in known[name]]


def medians(rounds: list[Numbers]) -> Numbers:
    """Of each number over the rounds; of each part of a breakdown too."""
    out: Numbers = {}
    for name in rounds[0]:
        values = [r[name] for r in rounds]
        if isinstance(values[0], dict):
            parts = {part for value in values for part in value}
            out[name] = {p: round(statistics.median(v[p] for v in values if p in v), 4) for p in sorted(parts)}
        else:
            known = [v for v in values if not math.isnan(v)]
            out[name] = round(statistics.median(known), 4) if known else None
    return out


def report(scenario: str, found: dict[str, Any]) -> str:
    columns = COLUMNS[scenario]
    wide = [max(len(c), 8) + 3 for c in columns]
    heads = "".join(f"{c:>{w}}" for c, w in zip(columns, wide, strict=True))
    lines = [f"\n{SCENARIOS[scenario][0]}; seconds, medians", f"{'':22}{heads}"]
    for name, result in found.items():
        if "failed" in result and "median" not in result:
            lines.append(f"{name:22}  {result['failed'][0].splitlines()[0]}")
            continue
        shown = ("-" if (v := result["median"][c]) is None else f"{v:.3g}" for c in columns)
        lines.append(f"{name:22}" + "".join(f"{v:>{w}}" for v, w in zip(shown, wide, strict=True)))
        if breakdown := result["median"].get("breakdown"):
            lines.append(" " * 6 + ", ".join(f"{p} {1e3 * breakdown[p]:.0f} ms" for p in CHANGE_PARTS))
    ours = found.get("elasticdl", {}).get("median")
    if ours and ours[columns[0]]:
        others = ((n, r["median"][columns[0]]) for n, r in found.items() if n != "elasticdl" and "median" in r)
        lines += [f"{name} / elasticdl, {columns[0]}: {value / ours[columns[0]]:.1f}" for name, value in others]
    for where, what, limit in LIMITS:
        if ours and where == scenario:
            value = ours[what]
            met = "not known" if value is None else f"{value:.3g}: {'yes' if value <= limit else 'NO'}"
            lines.append(f"elasticdl, {what} at most {limit:g}: {met}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="A worker is killed, leaves or joins.")
    parser.add_argument("--peer_python", default="", help="the Python of an environment with torch and torchft-nightly")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(SCENARIOS))
    parser.add_argument("--contenders", default="elasticdl,torchrun,torchft", help="also: torchrun-agents")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what was started, as Ctrl-C does
    result = {**about("torch", "elasticdl"), "peers": peer_versions(arguments.peer_python)}
    result |= {"tuned torchft": asdict(TUNED), "rounds": arguments.rounds}
    taking_part = []
    for contender in contenders(arguments.contenders, arguments.peer_python):
        if why := contender.missing():
            print(f"{contender.name} is skipped: {why}", flush=True)
        else:
            taking_part.append(contender)
    for scenario in arguments.only.split(","):
        rounds: dict[str, list[Numbers]] = {c.name: [] for c in taking_part}
        failures: dict[str, list[str]] = {c.name: [] for c in taking_part}
        for turn in range(arguments.rounds):
            for contender in (c for c in taking_part if len(failures[c.name]) < 2):
                with tempfile.TemporaryDirectory(prefix="allreduce-") as folder:
                    try:
                        numbers = SCENARIOS[scenario][1](contender, Path(folder), random.Random(turn))
                    except (Failed, ValueError) as error:
                        failures[contender.name].append(str(error))
                        print(f"{scenario}, {contender.name}, round {turn}: {error}", file=sys.stderr, flush=True)
                    else:
                        rounds[contender.name].append(numbers)
        result[scenario] = {
            c.name: {
                **({"median": medians(rounds[c.name]), "rounds": rounds[c.name]} if rounds[c.name] else {}),
                **({"failed": failures[c.name]} if failures[c.name] else {}),
            }
            for c in taking_part
        }
        print(report(scenario, result[scenario]), flush=True)
        write(arguments.out, json.loads(json.dumps(result).replace("NaN", "null")))
    print(result["machine"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
