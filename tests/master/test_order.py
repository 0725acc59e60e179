"""What the master does first: it sends the messages that replicas wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import grpc
import pytest

from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.core import commands as c
from elasticdl.core.plan import Position
from elasticdl.core.steps import StepPlan
from elasticdl.errors import Unreachable
from elasticdl.job import names
from elasticdl.master.actions import Actions
from elasticdl.master.checkpoint_folder import CheckpointFolder
from elasticdl.master.journal import Journal
from elasticdl.master.master import Master
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.strategies.allreduce.core.terms import AllreduceTerms
from elasticdl.strategies.allreduce.master import AllreduceSide
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_service import serve_control
from elasticdl.wire.link import SERVER_OPTIONS
from tests.cluster.memory import MemoryCluster
from tests.master.replicas import DATA, TOKEN, Stage, job_spec
from tests.master.test_master import until, version
from tests.wire.loopback import Replica, hello

Run = Callable[..., None]
W = [f"elasticdl-j-worker-{n}" for n in range(3)]


class Slow(MemoryCluster):
    """Takes its time over the third worker, until it is told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self.gives_up = False

    async def launch(self, request: ReplicaRequest) -> None:
        if request.name == W[2]:
            self.asked.set()
            await self.go_on.wait()
            if self.gives_up:
                raise Unreachable("no answer from the cluster")
        await super().launch(request)


@contextlib.asynccontextmanager
async def world_master(tmp: Path, cluster: MemoryCluster) -> AsyncIterator[tuple[Master, str]]:
    """The master of an all-reduce job of two workers, and where it is."""
    spec = job_spec(tmp)
    journal = Journal(tmp / "journal.sqlite")
    env = {names.ENV_JOB_FILE: "f", names.ENV_TOKEN: TOKEN, names.ENV_MASTER_ADDR: ""}
    job = AllreduceMachine.new(AllreduceTerms("j", 2, StepPlan(800, 4, 2, 1)))
    side = partial(AllreduceSide, job)
    master = Master(side, 0.0, journal, cluster, Actions(spec, DATA, str(spec.checkpoint_dir), env), TOKEN, 1)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    serve_control(master.streams, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield master, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
        journal.close()


def test_survivors_have_their_next_world_while_the_cluster_still_thinks_about_the_replacement(
    run: Run, tmp_path: Path
) -> None:
    async def story() -> None:
        cluster = Slow()
        async with world_master(tmp_path, cluster) as (master, address), contextlib.AsyncExitStack() as stack:
            running = asyncio.create_task(master.run())
            first, second = [
                await stack.enter_async_context(Replica(address, lambda name=name: hello(name, name, capacity=1)))
                for name in W[:2]
            ]
            generation = 0
            for worker in (first, second):
                generation = (await worker.receive("proposal")).generation
            for worker in (first, second):
                worker.link.send(pb.FromReplica(confirmed=pb.Confirmed(generation=generation)))
            for worker in (first, second):
                assert sorted((await worker.receive("start")).members) == W[:2]
                worker.link.send(pb.FromReplica(formed=pb.Formed(generation=generation)))
            cluster.preempt(W[0])
            proposal = await second.receive("proposal")
            state = pb.StateName(generation=generation, step=0)
            second.link.send(pb.FromReplica(confirmed=pb.Confirmed(generation=proposal.generation, state=state)))
            assert list((await second.receive("start")).members) == [W[1]]
            await cluster.asked.wait()
            assert W[2] not in cluster.requests, "the cluster has not answered yet"
            cluster.go_on.set()
            async with contextlib.aclosing(cluster.events()) as seen:
                async for status in seen:
                    if status.name == W[2]:
                        break  # and here it is
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(story())


@pytest.mark.parametrize("gives_up", [False, True])
def test_training_goes_on_while_the_cluster_does_not_answer(run: Run, tmp_path: Path, gives_up: bool) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, num_epochs=8)
        cluster = stage.cluster = Slow()
        cluster.gives_up = gives_up
        with stage:
            async with stage.mastered() as master:
                running = asyncio.create_task(master.run())
                await until(stage, lambda: version(stage) > 5)
                cluster.preempt(W[0])
                await cluster.asked.wait()
                before = version(stage)
                await until(stage, lambda: version(stage) > before + 20)
                cluster.go_on.set()
                if gives_up:
                    with pytest.raises(Unreachable, match="no answer"):
                        await running
                    return
                await running
                await master.end()
                assert master.machine.outcome == "succeeded"
                stage.check_exactly_once()

    run(story())


def test_a_checkpoint_that_is_being_deleted_holds_up_nothing_but_its_namesake(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with Stage(tmp_path).mastered() as master:
            home = Path(master.actions.folder.path)
            for name in ("version-8", "j.cut-1.partial", "j.cut-2.partial"):
                (home / name).mkdir(parents=True)
            (home / "version-8" / "old").touch()
            go_on, delete = threading.Event(), CheckpointFolder.delete

            def delete_slowly(folder: CheckpointFolder, directories: tuple[str, ...]) -> None:
                assert go_on.wait(10)
                delete(folder, directories)

            monkeypatch.setattr(CheckpointFolder, "delete", delete_slowly)
            await master._act(c.DeleteCheckpoints((str(home / "version-8"),)))
            await master._act(c.PublishCheckpoint(1, Position(5), (), lasting=True))
            assert (home / "version-5").exists() and (home / "version-8" / "old").exists(), "not held up"
            publishing = asyncio.create_task(master._act(c.PublishCheckpoint(2, Position(8), (), lasting=True)))
            await asyncio.sleep(0)
            go_on.set()
            await publishing
            assert [p.name for p in (home / "version-8").iterdir()] == ["manifest.json"], "the new one, whole"

    run(story())


def test_the_master_does_not_leave_before_old_checkpoints_are_gone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with Stage(tmp_path, num_epochs=4, checkpoint_steps=10, keep_checkpoint_max=2) as stage:
            async with stage.mastered() as master:
                delete = CheckpointFolder.delete

                def delete_slowly(folder: CheckpointFolder, directories: tuple[str, ...]) -> None:
                    threading.Event().wait(0.3)
                    delete(folder, directories)

                monkeypatch.setattr(CheckpointFolder, "delete", delete_slowly)
                await master.run()
                assert len(list((tmp_path / "checkpoint").iterdir())) == 2, "the two that are kept"

    run(story())
