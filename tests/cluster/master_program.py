"""A master for tests that kill it: `master_program.py SOCKET`.

Its first life launches a worker and is killed; its second finds the worker, stops it and reports how it ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from elasticdl.cluster.local import LocalCluster
from elasticdl.cluster.protocol import ReplicaPhase, ReplicaRequest


async def main(socket: Path) -> None:
    cluster = LocalCluster(socket)
    workers = [status for status in await cluster.list() if status.role == "worker"]
    if not workers:
        await cluster.launch(ReplicaRequest("w-0", "worker", 0, ("sleep", "600"), {}))
        os.kill(os.getpid(), signal.SIGKILL)
    print(f"found {workers[0].uid} {workers[0].phase}")
    await cluster.launch(ReplicaRequest("w-0", "worker", 0, ("sleep", "600"), {}))  # commands may be repeated
    await cluster.stop("w-0", grace_seconds=10)
    async for status in cluster.events():
        if status.name == "w-0" and status.phase is ReplicaPhase.GONE:
            assert status.exit is not None
            print(f"heard {status.uid} {status.exit.reason}")
            break
    await cluster.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
