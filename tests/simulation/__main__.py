"""The story of one simulated job: `python -m tests.simulation SEED [MUTANT]`."""

from __future__ import annotations

import sys

from tests.simulation.scenario import random_scenario
from tests.simulation.world import World


def main(arguments: list[str]) -> int:
    if not arguments or not arguments[0].isdigit():
        print(__doc__)
        return 2
    parts = None
    if len(arguments) > 1:
        from tests.simulation.mutants import MUTANTS

        parts = MUTANTS[arguments[1]].parts
    scenario = random_scenario(int(arguments[0]))
    print(scenario)
    world = World(scenario, parts, tell=print)
    try:
        world.run()
    except AssertionError as broken:
        print(f"{type(broken).__name__}: {broken}")
        return 1
    finally:
        print(", ".join(f"{kind}: {n}" for kind, n in sorted(world.faults.items()) if n))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
