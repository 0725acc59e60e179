"""Parameter servers as processes without a master, for the benchmarks beside this file.

Each serves until its standard input closes, so that none outlives the benchmark, however that ends.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[1]))

from elasticdl.job.parameters import OptimizerSpec, ParametersSpec, TableSpec, VariableSpec
from elasticdl.ps.client import Client
from elasticdl.ps.memory import keep_freed_memory
from elasticdl.ps.service import Service
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.auth import Keys

TOKEN, TIMELINE = "benchmark", 1
Ids = npt.NDArray[np.int64]
EXPONENT = 1.05  # of Zipf's law
BATCHES = 1 << 30  # of a shard: more than any benchmark pushes


def spec(dim: int, dense: int = 1000) -> ParametersSpec:
    """One table, some dense values, Adagrad."""
    return ParametersSpec(
        variables=(VariableSpec(name="dense", shape=(dense,)),),
        tables=(TableSpec(name="table", dim=dim),),
        optimizer=OptimizerSpec(kind="adagrad", learning_rate=0.01, initial_accumulator=0.1),
    )


@contextmanager
def serving(count: int, workers: int = 1, keys: Keys | None = None, tcp: bool = False) -> Iterator[list[str]]:
    """The addresses of `count` new servers, on which each worker has one shard open: train/0/<worker>.

    As in a local job they are reached through a socket of this machine, unless `tcp` says otherwise.
    """
    with ExitStack() as stack:
        folder = "" if tcp else stack.enter_context(tempfile.TemporaryDirectory())
        servers = []
        for index in range(count):
            command = [sys.executable, __file__, str(index), str(count), str(workers), folder]
            env = {**os.environ, "OMP_NUM_THREADS": "1", **(keys.env(servers=True) if keys is not None else {})}
            server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
            stack.callback(server.wait)
            assert server.stdin is not None
            stack.callback(server.stdin.close)
            servers.append(server)
        over = threading.Event()
        for server in servers:
            threading.Thread(target=_watch, args=(server, over), daemon=True).start()
        stack.callback(over.set)
        yield [s.stdout.readline().strip() for s in servers if s.stdout is not None]


def _watch(server: subprocess.Popen[str], over: threading.Event) -> None:
    """A client would wait for a server that died for as long as a job does: for ever."""
    code = server.wait()
    if not over.is_set():
        print(f"a server ended with exit code {code}", file=sys.stderr, flush=True)
        os._exit(1)


def fill(client: Client, table: str, rows: int, at_once: int = 1 << 18) -> None:
    """Every row is born: ids 0 to rows - 1."""
    for start in range(0, rows, at_once):
        client.rows(table, np.arange(start, min(start + at_once, rows)))


class Zipf:
    """Draws ids below `universe` whose frequency falls with their rank's power; ranks lie scattered over the ids."""

    def __init__(self, universe: int, random: np.random.Generator) -> None:
        self._random = random
        self._ids = random.permutation(universe)
        weight = np.cumsum(np.arange(1, universe + 1, dtype=np.float64) ** -EXPONENT)
        self._share = weight / weight[-1]

    def draw(self, count: int) -> Ids:
        ranks = np.searchsorted(self._share, self._random.random(count))
        return self._ids[np.minimum(ranks, len(self._ids) - 1)].astype(np.int64)


def _serve(index: int, count: int, workers: int, folder: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    keep_freed_memory()
    directory = Path(folder) if folder else None
    service = Service(index, count, 1, TOKEN, lambda message: None, keys=Keys.of(os.environ), directory=directory)
    service.direct(pb.ToReplica(restore=pb.Restore(timeline=TIMELINE)))
    for worker in range(workers):
        shard = f"train/0/{worker}"
        service.direct(pb.ToReplica(opened=pb.Opened(shard=shard, attempt=1, batches=BATCHES)))
    print(service.address, flush=True)

    def wait_for_the_end() -> None:
        sys.stdin.read()
        service.stop()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    service.run()
    os._exit(0)  # the thread above is still in its last read


if __name__ == "__main__" and sys.argv[1:]:
    _serve(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
