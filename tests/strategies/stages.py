"""A stage for jobs of each strategy: the real master, journal, sides and streams; replicas without a framework.

Servers and workers of parameter servers and of all-reduce are coroutines with the real sessions, links and ledgers.
Those that only count are processes, as a cluster would start them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import Any, ClassVar

from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.collective.session import Todo, WorldSession
from elasticdl.core.steps import StepPlan
from elasticdl.errors import ElasticDLError
from elasticdl.files import checksum
from elasticdl.master.side import side_of
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.link import Link
from tests.master.replicas import DATA, TOKEN, Stage

ROOT = Path(__file__).resolve().parents[2]
PULSE_SECONDS, STEP_SECONDS = 0.05, 0.05


class StrategyStage(Stage):
    strategy: ClassVar[str]
    saves: ClassVar[bool] = True

    def __init__(self, directory: Path, **spec: object) -> None:
        # Without evaluation, checkpoints and servers, unless a strategy asks for them.
        usual = {"num_epochs": 4, "num_ps_pods": 0, "validation_data": None, "evaluation_steps": 0}
        given: dict[str, object] = {**usual, "checkpoint_seconds": 0, "distribution_strategy": self.strategy, **spec}
        super().__init__(directory, **given)
        self.validation_records = 0
        self.side = side_of(self.spec)
        (directory / "job.json").write_text(self.spec.to_json())


class ServerStage(StrategyStage):
    strategy = "ParameterServerStrategy"

    def __init__(self, directory: Path, **spec: object) -> None:
        super().__init__(directory, **{"num_ps_pods": 2, **spec})


class WorldStage(StrategyStage):
    strategy = "AllreduceStrategy"

    def __init__(self, directory: Path, **spec: object) -> None:
        super().__init__(directory, **{"virtual_workers": 4, **spec})
        self.plan = StepPlan.of(self.spec, DATA.records)
        self.met: dict[tuple[int, int], set[str]] = {}  # workers in the exchange of a world's step
        self.committed: dict[int, set[int]] = {}  # step -> the generations that committed it
        self.moved = asyncio.Event()

    def move(self) -> None:
        self.moved.set()
        self.moved = asyncio.Event()

    async def run_replica(self, request: ReplicaRequest) -> None:
        await WorldWorker(self, request.name).run()

    def check_counts(self) -> None:
        assert sorted(self.committed) == list(range(1, self.plan.total_steps + 1))
        assert all(len(by) == 1 for by in self.committed.values()), "no step was trained twice"


class WorldWorker:
    """The elastic loop, with a meeting for an exchange and a number for a model."""

    def __init__(self, stage: WorldStage, name: str) -> None:
        self.stage, self.name = stage, name
        self.session = WorldSession(name, f"{name}@{id(self)}", 20.0)
        self.link = Link(stage.address, TOKEN, self.session.hello, self._receive, 20.0)

    def _receive(self, message: pb.ToReplica) -> None:
        self.session.connected()
        self._send(self.session.receive(message))
        self.stage.move()

    def _send(self, messages: list[pb.FromReplica]) -> None:
        for message in messages:
            self.link.send(message)

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            self.link.send(self.session.pulse(0.0))

    async def run(self) -> None:
        tasks = [asyncio.create_task(self.link.run()), asyncio.create_task(self._pulse())]
        try:
            await self._train()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _train(self) -> None:
        session, plan = self.session, self.stage.plan
        while True:
            world = session.world
            idle = plan.over(world.state[1], world.records)
            match session.todo(idle):
                case Todo.END:
                    return
                case Todo.LEAVE:
                    self._send(world.leave())
                case Todo.CONFIRM:
                    self._send(world.confirm())
                case Todo.BUILD if world.current is None:
                    session.enter()
                case Todo.BUILD:
                    assert world.current is not None
                    session.loaded(plan.trained(world.current.state.step, 0))
                    self._send(session.form(pb.Formed(generation=world.generation)))
                case Todo.SAVE:
                    self._save()
                case Todo.TRAIN:
                    await self._step()
                case todo:
                    assert todo is Todo.WAIT, todo
                    await self.stage.moved.wait()

    def _save(self) -> None:
        step = self.session.world.state[1]
        save = self.session.saving.begin(step)
        assert save is not None
        path = Path(save.directory) / "model.safetensors"
        path.parent.mkdir(parents=True)
        path.write_text(f"step {step}")
        file = {"name": path.name, "bytes": path.stat().st_size, "crc32c": checksum(path)}
        self._send(self.session.saving.saved(save.cut, json.dumps({"step": step, "files": [file]})))

    async def _step(self) -> None:
        session, world = self.session, self.session.world
        assert world.current is not None
        await asyncio.sleep(STEP_SECONDS)
        members, step = set(world.current.members), world.state[1] + 1
        met = self.stage.met.setdefault((world.generation, step), set())
        met.add(self.name)
        if world.superseded:
            met.add("stop")
        self.stage.move()
        while not members <= met:
            if session.called_off:
                self._send(world.leave())
                return
            await self.stage.moved.wait()
        self.stage.committed.setdefault(step, set()).add(world.generation)
        session.commit(0.5, STEP_SECONDS, "stop" in met, self.stage.plan.trained(step, 0))


class CountingStage(StrategyStage):
    strategy, saves = "Counting", False

    async def run_replica(self, request: ReplicaRequest) -> None:
        env = {**os.environ, **request.env, "PYTHONPATH": str(ROOT)}
        process = await asyncio.create_subprocess_exec(*request.command, env=env, cwd=ROOT)
        try:
            if code := await process.wait():
                raise ElasticDLError(f"exit code {code}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def check_counts(self) -> None:
        """Only the master counts."""


STAGES: list[Any] = [ServerStage, WorldStage, CountingStage]
