"""A whole job without a framework: a real master on real streams, a cluster in memory, replicas that are coroutines.

Workers use the real `Session` and `Link`. Servers have a real ledger and count what they apply, apart from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from elasticdl.cluster.protocol import Exit, ReplicaPhase, ReplicaRequest
from elasticdl.core import events as e
from elasticdl.data.dataset import DataFile, Dataset
from elasticdl.errors import ElasticDLError
from elasticdl.files import checksum
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.master.actions import Actions
from elasticdl.master.journal import Journal
from elasticdl.master.master import Master
from elasticdl.master.side import Side
from elasticdl.ps.ledger import Ledger, Push, Verdict
from elasticdl.strategies.parameter_servers.core.terms import ParameterServerTerms
from elasticdl.strategies.parameter_servers.master import ParameterServerSide, terms_of
from elasticdl.wire import PROTOCOL
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_service import serve_control
from elasticdl.wire.link import SERVER_OPTIONS, Link
from elasticdl.worker.session import Session, Work
from tests.cluster.memory import MemoryCluster

TOKEN = "the secret of this job"
DATA = Dataset("data", "recordio", (DataFile("a", 1000, 100), DataFile("b", 1000, 60)))


def job_spec(state_dir: Path, **more: object) -> JobSpec:
    fields: dict[str, object] = {
        "job_name": "j", "state_dir": str(state_dir), "num_workers": 2, "num_ps_pods": 2, "num_epochs": 2,
        "minibatch_size": 8, "num_minibatches_per_task": 2, "validation_data": "v", "training_data": "t",
        "model_def": "m.custom_model", "checkpoint_dir": str(state_dir / "checkpoint"), "evaluation_steps": 15,
    }  # fmt: skip
    return JobSpec.model_validate(fields | more)


class Server:
    """A parameter server without parameters: it counts what it applies, and that is what it writes and reads."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.name, self.ledger = name, Ledger()
        self.applied: Counter[tuple[str, int]] = Counter()
        self._moved = asyncio.Event()
        self._incarnation = f"{name}@{id(self)}"
        self._written: dict[int, pb.FromReplica] = {}
        self.over = asyncio.Event()
        self.link = Link(stage.address, TOKEN, self._hello, self._receive, 20.0)

    def _hello(self) -> pb.FromReplica:
        return pb.FromReplica(
            hello=pb.Hello(
                protocol=PROTOCOL, replica=self.name, incarnation=self._incarnation, address=f"test://{self.name}",
                timeline=self.ledger.timeline,
            )
        )  # fmt: skip

    def end(self) -> None:
        """The death of a process ends its connections: nothing waits for it any longer."""
        self.over.set()
        self._moved.set()

    async def run(self) -> None:
        stream = asyncio.create_task(self.link.run())
        await self.over.wait()
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)

    def _receive(self, m: pb.ToReplica) -> None:
        self.ledger.direct(m)
        match m.WhichOneof("body"):
            case "freeze":
                if m.freeze.purpose == "save" and m.freeze.cut not in self._written:
                    self._written[m.freeze.cut] = self._write(m.freeze)
                self.link.send(pb.FromReplica(frozen=pb.Frozen(cut=m.freeze.cut)))
                if m.freeze.purpose == "save":
                    self.link.send(self._written[m.freeze.cut])
            case "restore":
                self._restore(m.restore)
            case "shutdown":
                self.end()
        self._report()
        self._moved.set()

    def _write(self, freeze: pb.Freeze) -> pb.FromReplica:
        path = Path(freeze.directory) / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(sorted(self.applied.items())))
        file = {"name": path.name, "bytes": path.stat().st_size, "crc32c": checksum(path)}
        return pb.FromReplica(wrote=pb.Wrote(cut=freeze.cut, part=json.dumps([file])))

    def _restore(self, restore: pb.Restore) -> None:
        if restore.timeline != self.ledger.timeline:
            self.applied.clear()
            if restore.directory:
                saved = json.loads((Path(restore.directory) / f"{self.name}.json").read_text())
                self.applied = Counter({(shard, batch): n for (shard, batch), n in saved})
            assert sum(self.applied.values()) == restore.version
            self.ledger = Ledger.restored(restore)
        self.link.send(pb.FromReplica(restored=pb.Restored(timeline=restore.timeline)))

    def _report(self) -> None:
        report = self.ledger.report()
        if report is not None:
            counters = [pb.Counter(shard=s, next_batch=n) for s, n in report[1].items()]
            self.link.send(pb.FromReplica(held=pb.Held(cut=report[0], counters=counters)))

    async def push(self, push: Push) -> Verdict:
        while True:
            ruling = self.ledger.judge(push)
            if ruling.verdict is not Verdict.WAIT:
                break
            if self.over.is_set():
                return Verdict.OVER
            self._moved.clear()
            await self._moved.wait()
        if ruling.verdict is Verdict.APPLY:
            self.applied[(push.shard, push.batch)] += 1
            self.ledger.applied(push)
            self._moved.set()
        self._report()
        return ruling.verdict


class Worker:
    """The training loop, with a pause for a computation."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.session = Session(name, f"{name}@{id(self)}", 2)
        self._changed = asyncio.Event()
        self.link = Link(stage.address, TOKEN, self.session.hello, self._receive, 20.0)

    def _receive(self, message: pb.ToReplica) -> None:
        self.session.receive(message)
        self._changed.set()

    async def run(self) -> None:
        stream = asyncio.create_task(self.link.run())
        try:
            while not self.session.shutdown:
                work = self.session.current() if self.session.servers else None
                if work is None:
                    self._changed.clear()
                    waits = asyncio.create_task(self._changed.wait())
                    await asyncio.wait({waits, stream}, return_when=asyncio.FIRST_COMPLETED)
                    waits.cancel()
                    if stream.done():
                        stream.result()
                    continue
                await self._work(work)
        finally:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)

    async def _work(self, work: Work) -> None:
        if work.kind == "train":
            while work.next_batch < work.batches and self.session.holds(work):
                await asyncio.sleep(0)  # the computation
                number = work.next_batch
                push = Push(self.session.timeline, work.round, work.index, work.attempt, number)
                verdicts = [await s.push(push) for s in list(self.stage.servers.values())]
                if Verdict.OVER in verdicts:  # until the master has told us where to go on
                    while self.session.timeline == push.timeline and not self.session.shutdown:
                        self._changed.clear()
                        await self._changed.wait()
                    return
                if Verdict.REFUSE in verdicts:
                    self.link.send(self.session.returned(work, "refused"))
                    return
                assert Verdict.RESEND not in verdicts
                self.link.send(self.session.committed(work, number + 1, 0.5))
        else:
            await asyncio.sleep(0)
            result = json.dumps({"accuracy": 0.5}) if work.kind == "summarize" else "x"
            self.link.send(self.session.completed(work, result))


class NoticedJournal(Journal):
    """Tells a test of each decision."""

    def __init__(self, path: Path, decided: asyncio.Event) -> None:
        super().__init__(path)
        self._decided = decided

    def append(self, entries: list[tuple[e.Event, float]]) -> None:
        super().append(entries)
        self._decided.set()


class Stage:
    """The cluster and its replicas, which outlive any master."""

    side: type[Side[Any]] = ParameterServerSide
    validation_records = 20

    def __init__(self, directory: Path, **spec: object) -> None:
        self.directory, self.spec = directory, job_spec(directory, **spec)
        self.cluster = MemoryCluster()
        self.servers: dict[str, Server] = {}
        self.workers: dict[str, Worker] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.decided = asyncio.Event()
        self.port = 0
        self.starts = 0
        self.master: Master | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def terms(self) -> ParameterServerTerms:
        return terms_of(self.spec, DATA.records, self.validation_records)

    @contextlib.asynccontextmanager
    async def mastered(self) -> AsyncIterator[Master]:
        """A master on the same journal, port and cluster as the one before; discarded without a word at the end."""
        self.starts += 1
        journal = NoticedJournal(self.directory / "journal.sqlite", self.decided)
        job, now = journal.recover(self.side.begin(self.spec, DATA, self.validation_records))
        server = grpc.aio.server(options=SERVER_OPTIONS)
        self.port = server.add_insecure_port(self.address)
        env = {names.ENV_TOKEN: TOKEN, names.ENV_MASTER_ADDR: self.address}
        env[names.ENV_JOB_FILE] = str(self.directory / "job.json")
        actions = Actions(self.spec, DATA, str(self.spec.checkpoint_dir), env)
        master = self.master = Master(partial(self.side, job), now, journal, self.cluster, actions, TOKEN, self.starts)
        serve_control(master.streams, server)
        await server.start()
        try:
            yield master
        finally:
            await server.stop(0)
            journal.close()

    async def start_replicas(self) -> None:
        """What a cluster does: a process for each replica that runs, and its exit when it ends."""
        async with contextlib.aclosing(self.cluster.events()) as seen:
            async for replica in seen:
                old = self.tasks.get(replica.name)
                if replica.phase is ReplicaPhase.RUNNING and (old is None or old.done()):
                    self.tasks[replica.name] = asyncio.create_task(self._live(self.cluster.requests[replica.name]))
                elif replica.phase is ReplicaPhase.GONE and old is not None:
                    if replica.name in self.servers:
                        self.servers[replica.name].end()
                    old.cancel()
                    await asyncio.gather(old, return_exceptions=True)

    async def _live(self, request: ReplicaRequest) -> None:
        name = request.name
        end = Exit(0, None, False, "exit code 0")
        try:
            await self.run_replica(request)
        except ElasticDLError as error:
            end = Exit(1, None, False, "exit code 1", (str(error),))
        except asyncio.CancelledError:
            return
        except Exception as error:  # the process's border
            end = Exit(1, None, False, "exit code 1", (repr(error),))
        with contextlib.suppress(ValueError):
            self.cluster.exit(name, end)

    async def run_replica(self, request: ReplicaRequest) -> None:
        if request.role == "ps":
            self.servers[request.name] = server = Server(self, request.name)
            await server.run()
        else:
            self.workers[request.name] = worker = Worker(self, request.name)
            await worker.run()

    def __enter__(self) -> Stage:
        self._starter = asyncio.create_task(self.start_replicas())
        return self

    def __exit__(self, *_: object) -> None:
        self._starter.cancel()
        for task in self.tasks.values():
            task.cancel()

    def cluster_worker(self) -> str:
        """A worker that runs now."""
        return next(n for n, t in self.tasks.items() if "worker" in n and not t.done())

    def check_counts(self) -> None:
        """What the replicas counted themselves."""
        self.check_exactly_once()

    def check_exactly_once(self) -> None:
        """Every batch of every epoch was applied once on every server."""
        plan = self.terms.plan
        expected: Counter[tuple[str, int]] = Counter()
        for epoch in range(plan.epochs):
            for index in range(plan.shards_per_epoch):
                shard = plan.shard(epoch, index)
                assert shard is not None
                expected.update({(shard.id, n): 1 for n in range(shard.batches)})
        assert len(self.servers) == self.spec.num_ps_pods
        for server in self.servers.values():
            assert server.applied == expected, (server.applied - expected, expected - server.applied)
