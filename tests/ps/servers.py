"""Parameter servers in threads of this process, real sockets between them and their clients, and a model in numpy."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.job.parameters import OptimizerSpec, ParametersSpec, TableSpec, VariableSpec
from elasticdl.ps.client import Batch, Client
from elasticdl.ps.parameters import table_seed
from elasticdl.ps.service import Service
from elasticdl.ps.snapshot import read_manifest
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.auth import Keys
from tests.ps.oracle import Floats, Ids, Oracle, update

TOKEN = "the secret of this job"
SEED = 7
TIMELINE = 1


def model(optimizer: OptimizerSpec, tables: int = 2, large: bool = False) -> ParametersSpec:
    """Small variables of several sizes, some state, tables of different widths."""
    shapes = [(3, 4), (4,), (1,), (7, 2), (5,)] + ([(300_001,)] if large else [])
    variables = [VariableSpec(name=f"v{i}", shape=s) for i, s in enumerate(shapes)]
    variables[2:2] = [
        VariableSpec(name="mean", shape=(6,), trainable=False),
        VariableSpec(name="var", shape=(3,), trainable=False),
    ]
    named = [TableSpec(name=f"t{i}", dim=2 + 3 * i) for i in range(tables)]
    return ParametersSpec(variables=tuple(variables), tables=tuple(named), optimizer=optimizer)


class Numpy:
    """The same model on one machine, in plain numpy."""

    def __init__(self, spec: ParametersSpec, weights: Floats, state: Floats, seed: int = SEED) -> None:
        self.spec, self.weights, self.state = spec, weights.copy(), state.copy()
        self.slots = [np.full_like(weights, start) for start in spec.optimizer.slot_starts]
        self.tables = {
            t.name: Oracle(t.dim, spec.optimizer, t.initializer, table_seed(seed, t.name)) for t in spec.tables
        }
        self.version = 0

    def push(self, gradients: Floats, state: Floats, rows: dict[str, tuple[Ids, Floats]]) -> None:
        self.version += 1
        rate = self.spec.optimizer.learning_rate
        update(self.weights, self.slots, gradients, self.spec.optimizer, rate, self.version)
        self.state += state
        for name, (ids, grads) in rows.items():
            if len(ids):
                self.tables[name].push(ids, grads, rate, self.version)


class Servers:
    """Services in threads, and their messages to the master."""

    def __init__(
        self, count: int, init_from: Path | None = None, unknown_seconds: float = 10.0, seed: int = SEED,
        keys: Keys | None = None, directory: Path | None = None, staleness_modulation: bool = False,
    ) -> None:  # fmt: skip
        self.keys = keys
        self.said: queue.Queue[tuple[int, pb.FromReplica]] = queue.Queue()
        self.services = [
            Service(
                i, count, seed, TOKEN, lambda m, i=i: self.said.put((i, m)),  # type: ignore[misc]
                unknown_seconds=unknown_seconds, keys=keys, directory=directory,
                staleness_modulation=staleness_modulation,
            )
            for i in range(count)
        ]  # fmt: skip
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(s,), daemon=True) for s in self.services]
        for t in self._threads:
            t.start()
        self.begin(init_from, TIMELINE)

    def begin(self, directory: Path | None, timeline: int) -> dict[int, str]:
        """A timeline begins, at a checkpoint or with nothing; what servers found wrong with it."""
        restore = pb.Restore(timeline=timeline)
        if directory is not None:
            manifest = read_manifest(directory)
            restore.directory, restore.version = str(directory), manifest["version"]
            for shard, (next_batch, batches) in manifest["open"].items():
                restore.open.add(shard=shard, next_batch=next_batch, batches=batches)
        self.direct(restore=restore)
        return {i: r.error for i, r in self.hear("restored").items() if r.error}

    def _run(self, service: Service) -> None:
        try:
            service.run()
        except BaseException as error:
            self.failures.append(error)

    @property
    def addresses(self) -> list[str]:
        return [s.address for s in self.services]

    def direct(self, servers: int | Sequence[int] | None = None, **body: Any) -> None:
        """Send a directive to all servers, or to some."""
        chosen = range(len(self.services)) if servers is None else [servers] if isinstance(servers, int) else servers
        for i in chosen:
            self.services[i].direct(pb.ToReplica(**body))

    def open(self, index: int = 0, attempt: int = 1, batches: int = 100, epoch: int = 0, **where: Any) -> None:
        shard = f"train/{epoch}/{index}"
        self.direct(opened=pb.Opened(shard=shard, attempt=attempt, batches=batches), **where)

    def hear(self, kind: str, count: int | None = None) -> dict[int, Any]:
        """One message of this kind from each server (or from so many)."""
        heard: dict[int, Any] = {}
        while len(heard) < (len(self.services) if count is None else count):
            server, message = self.said.get(timeout=10)
            if message.WhichOneof("body") == kind:
                heard[server] = getattr(message, kind)
        return heard

    def client(
        self, spec: ParametersSpec, resend_seconds: float = 2.0, token: str = TOKEN, timeline: int = TIMELINE
    ) -> Client:
        return Client(self.addresses, token, spec, timeline, resend_seconds, self.keys)

    def close(self) -> None:
        for s in self.services:
            s.stop()
        for t in self._threads:
            t.join(10)
            assert not t.is_alive()
        assert not self.failures, self.failures


@contextmanager
def serving(count: int, **more: Any) -> Iterator[Servers]:
    servers = Servers(count, **more)
    try:
        yield servers
    finally:
        servers.close()


def export_ids(client: Client, table: str) -> Ids:
    """Every id that has a row, in rising order."""
    return np.sort(np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in client.export_rows(table))]))


class Trainer:
    """Pushes random batches to servers and to the model in numpy alike."""

    def __init__(self, servers: Servers, spec: ParametersSpec, seed: int = 1, **more: Any) -> None:
        self.random = np.random.default_rng(seed)
        self.client = servers.client(spec, **more)
        weights = self.random.normal(size=self.client.trainable_size).astype(np.float32)
        state = self.random.normal(size=self.client.state_size).astype(np.float32)
        self.spec = spec
        try:
            self.client.declare(weights, state)
        except BaseException:
            self.client.close()
            raise
        self.truth = Numpy(spec, weights, state)
        self.next: dict[tuple[int, int], int] = {}

    def batch(self, ids: int = 40, universe: int = 60) -> tuple[Floats, Floats, dict[str, tuple[Ids, Floats]]]:
        def normal(*shape: int) -> Floats:
            return self.random.normal(size=shape).astype(np.float32)

        rows = {t.name: (self.random.integers(-universe, universe, ids), normal(ids, t.dim)) for t in self.spec.tables}
        return normal(self.client.trainable_size), normal(self.client.state_size), rows

    def step(self, index: int = 0, attempt: int = 1, epoch: int = 0, **more: int) -> int:
        number = self.next.get((epoch, index), 0)
        what = self.batch(**more)
        version = self.client.push(Batch(epoch, index, attempt, number), *what)
        self.next[(epoch, index)] = number + 1
        self.truth.push(*what)
        return version

    def check(self, view: int = 0, client: Client | None = None) -> None:
        """The servers hold bit for bit what one machine would."""
        client = client or self.client
        weights, state, version = client.pull(view)
        np.testing.assert_array_equal(weights, self.truth.weights)
        np.testing.assert_array_equal(state, self.truth.state)
        for name, table in self.truth.tables.items():
            ids = np.array(sorted(table.rows), np.int64)
            np.testing.assert_array_equal(client.rows(name, ids, view, create=False), table.peek(ids, 0))
            if not view:
                np.testing.assert_array_equal(export_ids(client, name), ids)
        if not view:
            assert version == self.truth.version

    def close(self) -> None:
        self.client.close()


@contextmanager
def training(servers: Servers, spec: ParametersSpec, **more: Any) -> Iterator[Trainer]:
    trainer = Trainer(servers, spec, **more)
    try:
        yield trainer
    finally:
        trainer.close()
