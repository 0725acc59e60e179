"""A launcher for tests that kill it: `launcher_program.py DIRECTORY`.

It runs two replicas with children and grandchildren of their own, which
say when they are there, and waits to be killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.cluster.supervisor import Supervisor

# A child, a grandchild in a shell of its own, and one that ignores what can be ignored.
TREE = "sleep 600 & (sleep 600 & wait) & (trap '' TERM HUP INT; sleep 600) & echo ready > {ready}; wait"


async def main(directory: Path) -> None:
    async with Supervisor(directory / "logs", directory / "run" / "launcher.sock") as supervisor:
        for index in range(2):
            command = ("sh", "-c", TREE.format(ready=directory / f"w-{index}.ready"))
            await supervisor.launch(ReplicaRequest(f"w-{index}", "worker", index, command, {}))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
