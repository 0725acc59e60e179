"""The master's loop with real streams and replicas that train nothing: whole jobs, broken streams, other masters."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from elasticdl.cluster.protocol import Exit, ReplicaPhase, ReplicaRequest, ReplicaStatus
from elasticdl.core import events as e
from elasticdl.core.replicas import CRASHED, FINISHED, OUT_OF_MEMORY, PREEMPTED, TURNED_AWAY, State
from elasticdl.errors import Refused, Unreachable
from elasticdl.files import verify
from elasticdl.master.journal import Journal
from elasticdl.master.master import Master, cause_of
from elasticdl.ps.snapshot import read_manifest
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
from elasticdl.strategies.parameter_servers.master import ParameterServerSide
from elasticdl.wire import auth
from elasticdl.wire import control_pb2 as pb
from tests.cluster.memory import MemoryCluster
from tests.master.replicas import DATA, TOKEN, Stage
from tests.wire.loopback import hello, raw_stream, stub

Run = Callable[..., None]


async def until(stage: Stage, true: Callable[[], bool]) -> None:
    """Look again after each decision of the master."""
    async with asyncio.timeout(15):
        while not true():
            stage.decided.clear()
            await stage.decided.wait()


def version(stage: Stage) -> int:
    return stage.master.machine.shards.version if stage.master is not None else 0


def test_a_job_runs_to_its_end_and_everything_is_trained_once(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "elasticdl")

    async def story() -> None:
        with Stage(tmp_path) as stage:
            async with stage.mastered() as master:
                await master.run()
                await master.end()
                job = master.machine
                assert (job.outcome, job.reason) == ("succeeded", "all 320 records are trained")
                assert [d.records for d in job.shards.done.values()] == [160, 160]
                stage.check_exactly_once()
                assert all(r.phase is ReplicaPhase.GONE for r in await stage.cluster.list())
                assert job.evaluation.done[-1][0] == 40
                status = master.status()
            assert status.phase == "succeeded" and status.reason == job.reason
            assert (status.records_done, status.records_total, status.version, status.version_total) == (
                320,
                320,
                40,
                40,
            )
            assert [(x.epoch, x.records, x.batches) for x in status.epochs_done] == [(0, 160, 20), (1, 160, 20)]
            assert [x.metrics["accuracy"] for x in status.evaluations] == [0.5] * len(status.evaluations)
            assert {r.name: r.role for r in status.replicas} == {
                "elasticdl-j-ps-0": "ps", "elasticdl-j-ps-1": "ps",
                "elasticdl-j-worker-0": "worker", "elasticdl-j-worker-1": "worker",
            }  # fmt: skip
            assert status.has_loss and status.loss == 0.5
            assert (status.master_starts, status.losses, status.job) == (1, 0, "j")
            assert 0 < status.started_at <= status.now
            assert any("Starting elasticdl-j-ps-0 (initial server)" in d.text for d in status.decisions)

    run(story())
    assert "Evaluation metrics[v=40]: {'accuracy': 0.5}" in caplog.text
    assert not [r for r in caplog.records if r.levelname in ("ERROR", "CRITICAL")]


def test_workers_that_are_lost_are_replaced_and_nothing_is_trained_twice(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        with Stage(tmp_path, num_epochs=4) as stage:
            async with stage.mastered() as master:
                running = asyncio.create_task(master.run())
                for n in range(3):
                    await until(stage, lambda n=n: version(stage) > 10 * (n + 1))  # type: ignore[misc]
                    stage.cluster.preempt(f"elasticdl-j-worker-{n}")
                await running
                await master.end()
                assert master.machine.outcome == "succeeded"
                assert master.status().losses == 3
                stage.check_exactly_once()
                assert "elasticdl-j-worker-4" in stage.workers
                numbers = [stage.cluster.requests[f"elasticdl-j-worker-{index}"].number for index in range(5)]
                assert numbers == [0, 1, 0, 1, 0], "each has the number of the one that it came for"

    run(story())


def test_broken_streams_change_nothing(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        with Stage(tmp_path, num_epochs=4) as stage:
            async with stage.mastered() as master:
                running = asyncio.create_task(master.run())
                for n in range(6):
                    await until(stage, lambda n=n: version(stage) > 8 * (n + 1))  # type: ignore[misc]
                    for outbox in list(master.streams._outboxes.values()):
                        outbox.put_nowait(None)  # the master's end hangs up
                await running
                await master.end()
                assert master.machine.outcome == "succeeded" and master.status().losses == 0
                stage.check_exactly_once()

    run(story())


@pytest.mark.parametrize("deaths", [1, 4])
def test_another_master_on_the_same_journal_takes_the_job_to_the_same_end(
    run: Run, tmp_path: Path, deaths: int
) -> None:
    async def story() -> None:
        with Stage(tmp_path, num_epochs=4) as stage:
            for n in range(deaths):
                async with stage.mastered() as master:
                    running = asyncio.create_task(master.run())
                    await until(stage, lambda n=n: version(stage) > 70 * n // deaths)  # type: ignore[misc]
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)
                stage.cluster.preempt(stage.cluster_worker())
            async with stage.mastered() as master:
                await master.run()
                await master.end()
                assert master.machine.outcome == "succeeded"
                assert [d.records for d in master.machine.shards.done.values()] == [160] * 4
                assert master.status().master_starts == deaths + 1
                stage.check_exactly_once()

    run(story())


def test_a_master_that_died_right_after_the_end_only_says_goodbye(run: Run, tmp_path: Path) -> None:
    """The end is in the journal and was not sent: the next master tells it to replicas that reconnect."""

    async def story() -> None:
        with Stage(tmp_path) as stage:
            async with stage.mastered() as master:
                await master.run()
            async with stage.mastered() as master:
                assert master.machine.outcome == "succeeded"
                async with asyncio.timeout(10):
                    await master.run()
                    await master.end()
                assert all(r.exit is not None and r.exit.code == 0 for r in await stage.cluster.list())

    run(story())


def test_a_worker_that_crashes_too_often_fails_the_job_with_its_last_lines(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        with Stage(tmp_path, relaunch_on_worker_failure=0) as stage:
            async with stage.mastered() as master:
                running = asyncio.create_task(master.run())
                await until(stage, lambda: "elasticdl-j-worker-0" in stage.workers)
                end = Exit(1, None, False, "exit code 1", ("Traceback", "ImportError: no module named moon"))
                stage.cluster.exit("elasticdl-j-worker-0", end)
                await running
                await master.end()
                status = master.status()
                assert status.phase == "failed"
                assert "elasticdl-j-worker-0 failed 1 time: exit code 1" in status.reason
                assert status.reason.endswith("Traceback\nImportError: no module named moon")

    run(story())


def test_servers_that_are_lost_come_back_and_everything_counts_once_in_the_model_that_survives(
    run: Run, tmp_path: Path
) -> None:
    async def story() -> None:
        with Stage(tmp_path, num_epochs=4, checkpoint_steps=7) as stage:
            async with stage.mastered() as master:
                running = asyncio.create_task(master.run())
                for n in range(3):
                    await until(stage, lambda n=n: version(stage) > 18 * (n + 1))  # type: ignore[misc]
                    stage.cluster.preempt(f"elasticdl-j-ps-{n % 2}")
                    await until(stage, lambda n=n: master.machine.servers.checkpoints.timeline > n + 1)  # type: ignore[misc]
                await running
                await master.end()
                status = master.status()
                assert master.machine.outcome == "succeeded", master.machine.reason
                assert (status.losses, status.timeline) == (3, 4) and status.repeated_batches > 0
                stage.check_exactly_once()
                told = [d.text for d in status.decisions]
                assert any("Rolling back from version" in t for t in told)

    run(story())


def test_a_server_that_died_while_the_master_was_away_comes_back_from_the_checkpoint(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        with Stage(tmp_path, num_epochs=4, checkpoint_steps=7) as stage:
            async with stage.mastered() as master:
                running = asyncio.create_task(master.run())
                await until(stage, lambda: master.machine.servers.checkpoints.newest.position.version > 0)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            stage.cluster.preempt("elasticdl-j-ps-1")
            async with stage.mastered() as master:
                await master.run()
                await master.end()
                assert master.machine.outcome == "succeeded", master.machine.reason
                assert master.machine.servers.checkpoints.timeline == 2
                stage.check_exactly_once()

    run(story())


def test_a_server_that_crashes_too_often_fails_the_job_with_its_last_lines(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        with Stage(tmp_path, num_epochs=4, ps_relaunch_max_num=0) as stage:
            async with stage.mastered() as master:
                running = asyncio.create_task(master.run())
                await until(stage, lambda: version(stage) > 5)
                stage.cluster.exit("elasticdl-j-ps-1", Exit(1, None, False, "exit code 1", ("bad_alloc",)))
                await running
                await master.end()
                assert master.machine.outcome == "failed"
                assert master.machine.reason == "elasticdl-j-ps-1 failed 1 time: exit code 1\nbad_alloc"

    run(story())


def test_checkpoints_are_published_while_training_and_the_oldest_go(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        with Stage(tmp_path, num_epochs=4, checkpoint_steps=10, keep_checkpoint_max=2) as stage:
            async with stage.mastered() as master:
                await master.run()
                await master.end()
                assert master.machine.outcome == "succeeded"
                told = [
                    text for _, text in master.chronicle.decisions if text.startswith("Saved the checkpoint of version")
                ]
            versions = [int(text.split()[5]) for text in told]
            # Steps that take no time run ahead of the barrier, which makes one late, and perhaps the next one with it.
            assert versions == sorted(set(versions)) and 5 <= len(versions) <= 8, versions
            assert all(version >= 10 * (k + 1) for k, version in enumerate(versions)), "not before it is due"
            home = tmp_path / "checkpoint"
            kept = sorted(p.name for p in home.iterdir())
            assert kept == [f"version-{version}" for version in versions[-2:]], "the two newest"
            for name in kept:
                manifest = read_manifest(home / name)
                verify(home / name, [f for part in manifest["files"].values() for f in part])
                assert manifest["version"] == int(name[8:])
                assert sum(b for b, _ in manifest["done"].values()) == manifest["version"]

    run(story())


class Unwilling(MemoryCluster):
    async def launch(self, request: ReplicaRequest) -> None:
        if request.role == "worker":
            raise Refused(f"{request.name}: no image of that name")
        await super().launch(request)


class Mute(MemoryCluster):
    async def launch(self, request: ReplicaRequest) -> None:
        raise Unreachable("no answer from the cluster")


class Confused(MemoryCluster):
    async def events(self) -> AsyncGenerator[ReplicaStatus, None]:
        raise ValueError("an answer that makes no sense")
        yield


def test_a_cluster_whose_answers_make_no_sense_ends_the_master_with_all_that_it_began(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        stage.cluster = Confused()
        before = asyncio.all_tasks()
        async with stage.mastered() as master:
            with pytest.raises(ValueError, match="makes no sense"):
                await master.run()
            assert "_run_errands" not in {task.get_coro().__name__ for task in asyncio.all_tasks() - before}

    run(story())


def test_a_launch_that_is_refused_ends_the_job_with_the_reason(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, relaunch_on_worker_failure=0)
        stage.cluster = Unwilling()
        with stage:
            async with stage.mastered() as master:
                async with asyncio.timeout(5):
                    await master.run()
                assert master.machine.outcome == "failed"
                assert "no image of that name" in master.machine.reason

    run(story())


def test_a_cluster_that_gives_no_answer_ends_the_master_and_the_next_one_asks_again(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        working, stage.cluster = stage.cluster, Mute()
        async with stage.mastered() as master:
            with pytest.raises(Unreachable):
                await master.run()
        stage.cluster = working
        with stage:
            async with stage.mastered() as master:
                await master.run()
                await master.end()
                assert master.machine.outcome == "succeeded"
                stage.check_exactly_once()

    run(story())


def test_stop_writes_a_checkpoint_from_which_a_job_takes_up_its_data(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        with Stage(tmp_path, num_epochs=4) as stage:
            async with stage.mastered() as master:
                running = asyncio.create_task(master.run())
                await until(stage, lambda: version(stage) > 20)
                async with stub(stage.address) as control:
                    await control.Stop(pb.StopRequest(reason="enough"), metadata=auth.metadata(TOKEN))
                await running
                await master.end()
                status = master.status()
                assert status.phase == "stopped" and status.reason.startswith("enough; the checkpoint holds version ")
                applied = {name: sum(s.applied.values()) for name, s in stage.servers.items()}
                manifest = json.loads((Path(status.checkpoint) / "manifest.json").read_bytes())
                assert set(applied.values()) == {manifest["version"]}
                named = sorted(file["name"] for part in manifest["files"].values() for file in part)
                assert named == ["elasticdl-j-ps-0.json", "elasticdl-j-ps-1.json"]
            heir, saved = ParameterServerMachine.new(stage.terms), Path(status.checkpoint)
            assert ParameterServerSide.checkpoint_problems(saved, stage.spec, DATA) == []
            ParameterServerSide.resume(heir, saved)
            assert heir.shards.version == manifest["version"]
            records = sum(d.records for d in heir.shards.done.values())
            left = sum(s.stop - s.start - s.next_batch * 8 for s in heir.shards.waiting)
            fresh, epoch, index = 0, heir.shards.epoch, heir.shards.index
            while epoch < 4:
                shard = heir.terms.plan.shard(epoch, index)
                if shard is None:
                    epoch, index = epoch + 1, 0
                    continue
                fresh, index = fresh + shard.stop - shard.start, index + 1
            assert records + left + fresh == 640, "done, open and fresh records are all of them"
            for change in ({"seed": 5}, {"minibatch_size": 16}, {"shuffle": not stage.spec.shuffle}):
                other = stage.spec.model_copy(update=change)
                [problem] = ParameterServerSide.checkpoint_problems(saved, other, DATA)
                assert problem.where == f"--{next(iter(change))}" and "the checkpoint was made with" in problem.what
            other_data = dataclasses.replace(DATA, files=DATA.files[:1])
            [problem] = ParameterServerSide.checkpoint_problems(saved, stage.spec, other_data)
            assert problem.where == "--training_data"

    run(story())


def test_a_master_that_died_before_the_manifest_leaves_it_to_the_next_one(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        with Stage(tmp_path, num_epochs=4) as stage:
            async with stage.mastered() as master:
                running = asyncio.create_task(master.run())
                await until(stage, lambda: version(stage) > 20)
                died = asyncio.Event()

                def die(*_: Any) -> str:
                    died.set()
                    raise RuntimeError("the master dies here")

                master.side.publish = die  # type: ignore[assignment,method-assign]
                master.streams._put(e.StopRequested("enough"))
                await died.wait()
                await asyncio.gather(running, return_exceptions=True)
            async with stage.mastered() as master:
                await master.run()
                await master.end()
                assert master.machine.outcome == "stopped"
                assert (Path(master.machine.checkpoint) / "manifest.json").is_file()

    run(story())


def test_no_event_is_lost_between_a_deadline_and_its_arrival(run: Run, tmp_path: Path) -> None:
    """`_next` gives up waiting at each deadline; what arrives in that moment must not vanish with the wait."""

    async def story() -> None:
        stage = Stage(tmp_path)
        async with stage.mastered() as master:
            master.machine.deadline = lambda: 0.0  # type: ignore[method-assign]  # always due
            loop = asyncio.get_running_loop()
            never = loop.create_task(asyncio.Event().wait())
            count, got = 3000, 0

            async def send() -> None:
                for n in range(count):
                    await asyncio.sleep(0.001 if n % 3 else 0)
                    master.streams._put(e.StopRequested(str(n)))

            sending = loop.create_task(send())
            while got < count:
                for event in await master._next(never):  # type: ignore[arg-type]
                    if isinstance(event, e.StopRequested):
                        assert event.reason == str(got)
                        got += 1
            await sending
            never.cancel()

    run(story(), 60)


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (Exit(0, None, False, ""), FINISHED),
        (Exit(1, None, False, ""), CRASHED),
        (Exit(None, 9, False, ""), PREEMPTED),
        (Exit(None, 15, False, ""), PREEMPTED),
        (Exit(143, None, False, ""), PREEMPTED),
        (Exit(None, 11, False, ""), CRASHED),
        (Exit(None, 6, False, ""), CRASHED),
        (Exit(None, 9, True, ""), OUT_OF_MEMORY),
        (Exit(86, None, True, ""), OUT_OF_MEMORY),
        (Exit(None, None, False, "never started"), CRASHED),
        (Exit(None, None, False, "by its node", taken="turned away"), TURNED_AWAY),
    ],
)
def test_how_a_replica_ended_says_whose_fault_it_was(end: Exit, cause: str) -> None:
    assert cause_of(end) == cause


def test_time_never_runs_back_not_even_for_the_next_master(tmp_path: Path, run: Run) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        journal = Journal(tmp_path / "journal.sqlite")
        journal.append([(e.TimePassed(), 5e9)])
        journal.close()
        async with stage.mastered() as master:
            assert isinstance(master, Master) and master.now() == 5e9

    run(story())


def test_a_server_whose_pod_is_gone_is_not_heard_any_more_although_its_process_still_speaks(
    run: Run, tmp_path: Path
) -> None:
    """As when a pod is removed by force: what the old process says must not be taken for its successor's word."""
    name = "elasticdl-j-ps-0"

    async def story() -> None:
        stage = Stage(tmp_path)  # whose replicas are this test's own
        async with stage.mastered() as master:
            running = asyncio.create_task(master.run())
            await until(stage, lambda: name in master.machine.replicas.replicas)
            async with raw_stream(stage.address, TOKEN) as old:
                await old.write(hello(name, "old", address="tcp://old"))
                await until(stage, lambda: master.machine.replicas.replicas[name].state is State.JOINED)
                stage.cluster.exit(name, Exit(None, None, oom=False, reason="deleted", taken="deleted"))
                heard = [message.WhichOneof("body") async for message in old]
                assert heard[0] == "welcome", "and then the end of the stream"
            assert master.machine.replicas.replicas[name].state in (State.LAUNCHED, State.RUNNING)
            async with raw_stream(stage.address, TOKEN) as again:
                with pytest.raises(grpc.aio.AioRpcError, match="another process replaced it"):
                    await again.write(hello(name, "old", address="tcp://old"))
                    await again.read()
            async with raw_stream(stage.address, TOKEN) as new:
                await new.write(hello(name, "new", address="tcp://new"))
                await until(stage, lambda: master.machine.replicas.replicas[name].address == "tcp://new")
            assert dict(master.status().incidents) == {"deleted": 1}
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(story())
