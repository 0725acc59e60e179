"""A master for tests of workers: real streams, worlds of all workers that are there, and a record of all messages.

It is simpler than the real master: a worker that sends a Hello joins, one that dies is dropped. So it stays small, and
a test can choose when a world changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.wire import auth
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_service import serve_control
from elasticdl.wire.link import SERVER_OPTIONS
from tests.collective.nursery import Child, Nursery

TOKEN = "the secret of this job"
WAIT_SECONDS = 60.0


@dataclass
class Worker:
    """A process, its stream, and its messages."""

    name: str
    process: Child | None  # None: a thread of the test
    log: Path
    outbox: asyncio.Queue[pb.ToReplica | None] | None = None
    hellos: list[pb.Hello] = field(default_factory=list)
    messages: list[pb.FromReplica] = field(default_factory=list)  # all but pulses and what goes into the store
    pulse: pb.Pulse | None = None
    leaving: bool = False
    dead: bool = False

    def kinds(self, kind: str) -> list[Any]:
        return [getattr(m, kind) for m in self.messages if m.WhichOneof("body") == kind]


class Conductor:
    """Runs in a thread of its own; a test calls it from another."""

    def __init__(
        self, nursery: Nursery | None, folder: Path, spec: JobSpec, datasets: Mapping[str, str] | None = None
    ) -> None:
        self.nursery, self.folder, self.spec = nursery, folder, spec
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.json").write_text(spec.to_json())
        if datasets:
            (folder / "datasets.json").write_text(json.dumps(datasets))
        self.workers: dict[str, Worker] = {}
        self.generation, self.members, self.formed = 0, (), set[str]()
        self.running: tuple[str, ...] = ()  # of the last world that was started
        self.confirmed: dict[str, tuple[int, int]] = {}
        self.starts: list[pb.Start] = []
        self.automatic = True  # whether every change of the workers makes a new world
        self.wanted = 1  # how many must be there before the first one
        self.directory, self.directory_step = "", 0  # a checkpoint to start from
        self.epoch = 1
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    # For the test.

    def __enter__(self) -> Conductor:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            if worker.process is not None:
                worker.process.kill()
                worker.process.ended.wait(10)
        self.stop()

    def stop(self) -> None:
        """Be gone, as a master that was killed."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def expect(self, name: str) -> Worker:
        """A worker that is a thread of the test."""
        return self.workers.setdefault(name, Worker(name, None, self.folder / f"{name}.log"))

    def spawn(self, index: int, module: str, env: Mapping[str, str] | None = None) -> Worker:
        name = names.replica_name("j", "worker", index)
        log = self.folder / f"{name}.log"
        environment = {
            names.ENV_REPLICA: name, names.ENV_JOB_FILE: str(self.folder / "job.json"), names.ENV_TOKEN: TOKEN,
            names.ENV_MASTER_ADDR: f"127.0.0.1:{self.port}", **(env or {}),
        }  # fmt: skip
        assert self.nursery is not None
        process = self.nursery.start(module, log, environment, lambda: self._bury(name))
        with self._changed:
            found = self.workers.setdefault(name, Worker(name, process, log))
            found.process = process
        return found

    def wait(self, condition: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: bool(condition()), seconds):
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n{self.story()}")

    def wait_for_step(self, step: int, seconds: float = WAIT_SECONDS) -> None:
        self.wait(lambda: self.step >= step, f"step {step}", seconds)

    @property
    def step(self) -> int:
        return max((w.pulse.step for w in self.workers.values() if w.pulse is not None), default=0)

    @property
    def training(self) -> bool:
        return bool(self.members) and self.formed == set(self.members)

    def send(self, name: str, **body: Any) -> None:
        self._loop.call_soon_threadsafe(self._send, name, pb.ToReplica(**body))

    def send_all(self, **body: Any) -> None:
        for name in self.workers:
            self.send(name, **body)

    def propose(self, *members: str, urgent: bool, reason: str = "the test wants it") -> None:
        self._loop.call_soon_threadsafe(self._propose, tuple(members), urgent, reason)

    def save(self, worker: Worker, cut: int, directory: Path, at: int = 0) -> dict[str, Any]:
        """Have it write its state; its answer."""
        self.send(worker.name, save=pb.Save(cut=cut, directory=str(directory), at=at))
        self.wait(lambda: any(w.cut == cut for w in worker.kinds("wrote")), f"cut {cut} of {worker.name}")
        (wrote,) = [w for w in worker.kinds("wrote") if w.cut == cut]
        self.send(worker.name, settle=pb.Settle(cut=cut, published=not wrote.error, directory=str(directory)))
        assert not wrote.error, wrote.error
        found: dict[str, Any] = json.loads(wrote.part)
        return found

    def export(self, worker: Worker, directory: str = "", audit: bool = False) -> pb.Exported:
        self.send(worker.name, export=pb.Export(directory=directory, audit=audit))
        self.wait(lambda: worker.kinds("exported"), f"an export by {worker.name}")
        found: pb.Exported = worker.kinds("exported")[-1]
        return found

    def finish(self, seconds: float = WAIT_SECONDS) -> dict[str, int]:
        """End the job; the exit codes of the workers that are alive."""
        with self._changed:
            self.automatic = False
            alive = [w for w in self.workers.values() if not w.dead]
        self.send_all(shutdown=pb.Shutdown(reason="the job is over"))
        self.wait(lambda: all(w.dead for w in alive), "the end of every worker", seconds)
        return {w.name: w.process.returncode for w in alive if w.process is not None}

    def story(self) -> str:
        return "\n".join(f"--- {w.name}\n{w.log.read_text()[-3000:]}" for w in self.workers.values())

    # In its thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = grpc.aio.server(options=SERVER_OPTIONS)
        serve_control(self, server)
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._loop.run_until_complete(server.start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(server.stop(0))

    async def Connect(self, request_iterator: AsyncIterator[pb.FromReplica], context: Any) -> None:
        assert auth.authentic(TOKEN, context.invocation_metadata())
        first = await anext(aiter(request_iterator), None)
        assert first is not None and first.WhichOneof("body") == "hello"
        name = first.hello.replica
        with self._changed:
            self._changed.wait_for(
                lambda: name in self.workers, 1.0
            )  # it may be faster than the thread that started it
            worker = self.workers[name]
        outbox: asyncio.Queue[pb.ToReplica | None] = asyncio.Queue()
        outbox.put_nowait(pb.ToReplica(welcome=pb.Welcome(master_epoch=self.epoch)))
        with self._changing():
            worker.outbox = outbox
            worker.hellos.append(first.hello)
            if self.automatic:
                self._review(urgent=not self.running)
        reader = asyncio.create_task(self._read(worker, request_iterator, outbox))
        try:
            while (message := await outbox.get()) is not None:
                await context.write(message)
        finally:
            reader.cancel()

    async def _read(self, worker: Worker, messages: AsyncIterator[pb.FromReplica], outbox: Any) -> None:
        try:
            async for message in messages:
                with self._changing():
                    self._received(worker, message)
        finally:
            outbox.put_nowait(None)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()

    def _received(self, worker: Worker, message: pb.FromReplica) -> None:
        kind = message.WhichOneof("body")
        if kind == "pulse":
            worker.pulse = message.pulse
            return
        if kind == "stored":
            for name in self.members if message.stored.generation == self.generation else ():
                if name != worker.name:
                    self._send(name, pb.ToReplica(stored=message.stored))
            return
        worker.messages.append(message)
        if kind == "confirmed" and message.confirmed.generation == self.generation:
            state = message.confirmed.state
            self.confirmed[worker.name] = (state.step, state.generation)
            if set(self.confirmed) == set(self.members):
                self._start()
        elif kind == "formed" and message.formed.generation == self.generation:
            self.formed.add(worker.name)
        elif kind == "leaving":
            worker.leaving = True
            if self.automatic:
                self._review(urgent=False)
        elif kind == "broken" and message.broken.generation == self.generation and self.automatic:
            self._review(urgent=True, anyhow=True)

    def _bury(self, name: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: name in self.workers, 1.0)
        with contextlib.suppress(RuntimeError):  # the test is over
            self._loop.call_soon_threadsafe(self._died, self.workers[name])

    def _died(self, worker: Worker) -> None:
        with self._changing():
            worker.dead, worker.outbox = True, None
            if self.automatic and worker.name in self.members:
                self._review(urgent=True)

    def _review(self, urgent: bool, anyhow: bool = False) -> None:
        there = [n for n, w in self.workers.items() if w.hellos and not w.dead and not w.leaving]
        members = [n for n in self.members if n in there] + [n for n in there if n not in self.members]
        if len(members) >= (1 if self.running else self.wanted) and (tuple(members) != self.members or anyhow):
            self._propose(tuple(members), urgent, "the workers have changed")

    def _propose(self, members: tuple[str, ...], urgent: bool, reason: str) -> None:
        with self._changing():
            self.generation += 1
            self.members, self.confirmed, self.formed = members, {}, set()
            proposal = pb.Proposal(generation=self.generation, members=members, urgent=urgent, reason=reason)
            for name in dict.fromkeys((*members, *self.running)):
                self._send(name, pb.ToReplica(proposal=proposal))

    def _start(self) -> None:
        step, generation = max(self.confirmed.values())
        holders = [n for n in self.members if self.confirmed[n] == (step, generation)]
        directory = ""
        if (step, generation) == (0, 0):
            holders = holders[:1]
        if self.directory and self.directory_step > step:
            directory, step, generation, holders = self.directory, self.directory_step, 0, [self.members[0]]
        start = pb.Start(
            generation=self.generation, members=self.members, directory=directory,
            state=pb.StateName(generation=generation, step=step),
            copies={n: holders[0] for n in self.members if n not in holders},
        )  # fmt: skip
        self.running = self.members
        self.starts.append(start)
        for name in self.members:
            self._send(name, pb.ToReplica(start=start))

    def _send(self, name: str, message: pb.ToReplica) -> None:
        outbox = self.workers[name].outbox if name in self.workers else None
        if outbox is not None:
            outbox.put_nowait(message)
