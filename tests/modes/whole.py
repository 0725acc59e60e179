"""Whole jobs in one process: the real master, servers and workers on real sockets, each in a thread of its own.

A replica that is killed is cut off from the master at once; as a process would, it may go on for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import struct
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from elasticdl.cluster.protocol import Exit, ReplicaPhase, ReplicaRequest
from elasticdl.data.recordio import RecordIOWriter
from elasticdl.errors import ElasticDLError, UsageError
from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelFile, ModelRequest
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.master.actions import Actions
from elasticdl.master.journal import Journal
from elasticdl.master.master import Master
from elasticdl.ps.client import Client
from elasticdl.ps.endpoint import Request
from elasticdl.ps.service import Service
from elasticdl.strategies.parameter_servers import audit
from elasticdl.strategies.parameter_servers.master import ParameterServerSide
from elasticdl.strategies.parameter_servers.training import Worker
from elasticdl.wire import PROTOCOL
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_service import serve_control
from elasticdl.wire.frames import Operation
from elasticdl.wire.link import SERVER_OPTIONS, Link
from elasticdl.worker.batches import Source
from elasticdl.worker.control import Control
from elasticdl.worker.session import Session
from elasticdl.worker.sources import open_source
from tests.cluster.memory import MemoryCluster

TOKEN = "the secret of this job"
DEADLINE_SECONDS = 40.0
BUILDING = threading.Lock()  # the seed that initial values are drawn from belongs to the process


def write_records(directory: Path, count: int) -> Path:
    """Records that are nothing but their own number: the model file makes features of it."""
    directory.mkdir(parents=True, exist_ok=True)
    with RecordIOWriter(directory / "records.recordio") as writer:
        for i in range(count):
            writer.write(struct.pack("<q", i))
    return directory


@dataclass
class Outcome:
    """What a job came to, and what its servers were asked."""

    status: pb.Status
    dense: np.ndarray[Any, Any]
    state: np.ndarray[Any, Any]
    tables: dict[str, dict[int, list[float]]]
    requests: Counter[type[Operation]] = field(default_factory=Counter)

    def same(self, other: Outcome, rtol: float = 0.0, atol: float = 0.0) -> None:
        """Every value is the other's: bit for bit, or nearly."""
        np.testing.assert_allclose(self.dense, other.dense, rtol, atol)
        np.testing.assert_allclose(self.state, other.state, rtol, atol)
        assert self.tables.keys() == other.tables.keys()
        for name, rows in self.tables.items():
            assert rows.keys() == other.tables[name].keys()
            ids = sorted(rows)
            np.testing.assert_allclose([rows[i] for i in ids], [other.tables[name][i] for i in ids], rtol, atol)


class CountingService(Service):
    """Counts the requests."""

    requests: Counter[type[Operation]]

    def _request(self, request: Request) -> None:
        self.requests[type(request.header.message)] += 1
        super()._request(request)


class WholeJob:
    def __init__(self, tmp: Path, spec: JobSpec, kill: Callable[[WholeJob], list[str]] | None = None) -> None:
        self.tmp, self.spec, self._kill = tmp, spec, kill
        self.cluster = MemoryCluster()
        self.services: dict[str, Service] = {}
        self.requests: Counter[type[Operation]] = Counter()
        self.killed: list[str] = []
        self._threads: list[threading.Thread] = []

    def code(self) -> ModelFile:
        return ModelFile(ModelRequest.of(self.spec))

    def run(self) -> Outcome:
        async def within() -> Outcome:
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    return await self._run()
            except TimeoutError:
                faulthandler.dump_traceback(sys.__stderr__)
                raise AssertionError(f"the job does not end:\n{self.master.status()}") from None

        return asyncio.run(within())

    async def _run(self) -> Outcome:
        spec = self.spec
        self.training = open_source(spec, self.code(), str(spec.training_data), "training").describe()
        journal = Journal(self.tmp / f"{spec.job_name}.sqlite")
        env = {names.ENV_JOB_FILE: "f", names.ENV_TOKEN: TOKEN, names.ENV_MASTER_ADDR: ""}
        job = ParameterServerSide.begin(spec, self.training, 0)
        if spec.checkpoint_dir_for_init:
            saved = Path(spec.checkpoint_dir_for_init)
            if problems := ParameterServerSide.checkpoint_problems(saved, spec, self.training):
                raise UsageError(problems)
            ParameterServerSide.resume(job, saved)
        self.master = Master(
            partial(ParameterServerSide, job), 0.0, journal, self.cluster,
            Actions(spec, self.training, str(spec.checkpoint_dir), env), TOKEN, 1,
        )  # fmt: skip
        server = grpc.aio.server(options=SERVER_OPTIONS)
        serve_control(self.master.streams, server)
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        starter = asyncio.create_task(self._start_replicas())
        killer = asyncio.create_task(self._kill_replicas())
        try:
            await self.master.run()
            status = self.master.status()
            found = await asyncio.to_thread(self._values) if status.phase == "succeeded" else None
            await self.master.end()
        finally:
            starter.cancel()
            killer.cancel()
            for service in self.services.values():
                service.stop()
            await server.stop(0.2)
            journal.close()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, 20)
        if found is None:
            found = np.empty(0), np.empty(0), {}
        return Outcome(status, *found, requests=self.requests)

    def _values(self) -> tuple[Any, Any, dict[str, dict[int, list[float]]]]:
        held = load_trainable(self.code(), self.spec.seed, None).parameters
        held = audit.added(held) if self.spec.audit else held
        servers = sorted((n, s) for n, s in self.services.items())
        client = Client([s.address for _, s in servers], TOKEN, held, self.master.machine.servers.checkpoints.timeline)
        dense, state, _ = client.pull()
        tables = {}
        for table in held.tables:
            parts = list(client.export_rows(table.name))
            tables[table.name] = {int(i): r.tolist() for ids, rows in parts for i, r in zip(ids, rows, strict=True)}
        client.close()
        return dense, state, tables

    async def _kill_replicas(self) -> None:
        while self._kill is not None:
            await asyncio.sleep(0.005)
            for name in self._kill(self):
                if name not in self.killed or "-ps-" in name:
                    self.killed.append(name)
                    if name in self.services:
                        self.services[name].stop()
                    with contextlib.suppress(ValueError):
                        self.cluster.preempt(name)

    async def _start_replicas(self) -> None:
        seen: set[str] = set()
        async with contextlib.aclosing(self.cluster.events()) as changes:
            async for replica in changes:
                if replica.phase is ReplicaPhase.RUNNING and replica.uid not in seen:
                    seen.add(replica.uid)
                    target = self._serve if replica.role == "ps" else self._work
                    arguments = (self.cluster.requests[replica.name], replica.uid, asyncio.get_running_loop())
                    thread = threading.Thread(target=target, args=arguments, daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _serve(self, request: ReplicaRequest, uid: str, loop: asyncio.AbstractEventLoop) -> None:
        async def serve() -> None:
            mine = asyncio.get_running_loop()
            hello = pb.Hello(protocol=PROTOCOL, replica=request.name, incarnation=uuid.uuid4().hex)

            def say(message: pb.FromReplica) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is over
                    mine.call_soon_threadsafe(link.send, message)

            service = CountingService(
                request.index, self.spec.num_ps_pods, self.spec.seed, TOKEN, say,
                staleness_modulation=self.spec.lr_staleness_modulation,
            )  # fmt: skip
            service.requests = self.requests
            self.services[request.name] = service
            hello.address = service.address

            def greet() -> pb.FromReplica:
                hello.timeline = service.ledger.timeline
                return pb.FromReplica(hello=hello)

            def receive(message: pb.ToReplica) -> None:
                if message.WhichOneof("body") == "shutdown":
                    service.stop()
                else:
                    service.direct(message)

            link = Link(self.address, TOKEN, greet, receive, 20.0)
            stream = asyncio.create_task(link.run())
            await asyncio.to_thread(service.run)
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)

        asyncio.run(serve())
        self._ended(request.name, uid, loop, Exit(0, None, False, "exit code 0"))

    def _work(self, request: ReplicaRequest, uid: str, loop: asyncio.AbstractEventLoop) -> None:
        spec = self.spec
        end = Exit(0, None, False, "exit code 0")
        session = Session(request.name, uuid.uuid4().hex, 2, in_order=not spec.asynchronous)
        control = Control(session, self.address, TOKEN, 20.0)
        try:
            with BUILDING:
                code = self.code()
                model = load_trainable(code, spec.seed, None)
            source = Source(
                open_source(spec, code, str(spec.training_data), "training"), self.training, spec, "training"
            )
            held = audit.added(model.parameters) if spec.audit else model.parameters
            control.start()
            if (found := control.wait_for_servers()) is not None:
                client = Client(found[0], TOKEN, held, found[1], resend_seconds=0.5)
                control.on_change(client.interrupt)
                try:
                    Worker(spec, code, model, source, None, control, client).run()
                finally:
                    client.close()
        except ElasticDLError as error:
            end = Exit(1, None, False, "exit code 1", (str(error),))
        control.close()
        self._ended(request.name, uid, loop, end)

    def _ended(self, name: str, uid: str, loop: asyncio.AbstractEventLoop, end: Exit) -> None:
        async def tell() -> None:
            if any(r.uid == uid and r.phase is not ReplicaPhase.GONE for r in await self.cluster.list()):
                self.cluster.exit(name, end)

        with contextlib.suppress(RuntimeError):  # the loop is over
            asyncio.run_coroutine_threadsafe(tell(), loop)


def whole_job(
    tmp: Path, model: Path, data: Path, kill: Callable[[WholeJob], list[str]] | None = None, **knobs: Any
) -> Outcome:
    """Run a job to its end."""
    name = f"j-{uuid.uuid4().hex[:8]}"
    values = {
        "job_name": name, "state_dir": str(tmp / name), "model_zoo": str(model.parent),
        "model_def": f"{model.stem}.custom_model", "training_data": str(data), "num_workers": 1, "num_ps_pods": 2,
        "minibatch_size": 8, "num_minibatches_per_task": 4, "seed": 3, "checkpoint_dir": str(tmp / name / "checkpoint"),
        "checkpoint_seconds": 0,
    }  # fmt: skip
    (tmp / name).mkdir(parents=True)
    return WholeJob(tmp, JobSpec.model_validate(values | knobs), kill).run()
