"""The contract of every `Cluster`, as one suite of tests."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from elasticdl.cluster.protocol import ReplicaPhase
from elasticdl.errors import WireError

from .hearing import hear, hear_end, status_of
from .stages import Stage

Story = Callable[[Stage], Awaitable[None]]
Play = Callable[[Story], None]


class ClusterContract:
    """Subclasses name the stage."""

    stage: Callable[[Path], AbstractAsyncContextManager[Stage]]
    deadline_seconds = 30.0

    @pytest.fixture
    def play(self, run: Callable[..., None], tmp_path: Path) -> Play:
        def play_it(story: Story) -> None:
            async def on_stage() -> None:
                async with type(self).stage(tmp_path) as stage:
                    await story(stage)

            run(on_stage(), type(self).deadline_seconds)

        return play_it

    def test_a_launched_replica_is_listed_with_its_role_index_and_uid(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            await stage.cluster.launch(stage.request("w-0"))
            running = await hear(stage.cluster, "w-0", ReplicaPhase.RUNNING)
            assert await stage.cluster.list() == [running]
            assert (running.role, running.index, running.exit) == ("worker", 7, None)
            assert running.uid

        play(story)

    def test_launching_a_running_name_again_does_nothing(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            await stage.cluster.launch(stage.request("w-0"))
            first = await hear(stage.cluster, "w-0", ReplicaPhase.RUNNING)
            await stage.cluster.launch(stage.request("w-0"))
            assert await stage.cluster.list() == [first]

        play(story)

    def test_a_name_launched_by_two_at_once_is_started_once(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            clients = [stage.cluster, stage.another_client()]
            await asyncio.gather(*(client.launch(stage.request("w-0")) for client in clients * 5))
            uids = set()
            await stage.end("w-0", 0)
            async with contextlib.aclosing(stage.cluster.events()) as events:
                async for status in events:
                    uids.add(status.uid)
                    if status.phase is ReplicaPhase.GONE:
                        break
            assert len(uids) == 1
            await clients[1].close()

        play(story)

    def test_a_gone_name_launched_again_is_a_new_process_with_a_new_uid(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            await stage.cluster.launch(stage.request("w-0"))
            await stage.end("w-0", 1)
            old = await hear_end(stage.cluster, "w-0")
            await stage.cluster.launch(stage.request("w-0"))
            new = await hear(stage.cluster, "w-0", ReplicaPhase.RUNNING)
            assert new.uid != old.uid
            assert new.exit is None
            assert await stage.cluster.list() == [new]

        play(story)

    @pytest.mark.parametrize("code", [0, 3])
    def test_an_exit_code_is_reported_in_number_and_words(self, play: Play, code: int) -> None:
        async def story(stage: Stage) -> None:
            await stage.cluster.launch(stage.request("w-0"))
            await stage.end("w-0", code)
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert exit is not None
            assert (exit.code, exit.signal, exit.oom, exit.reason) == (code, None, False, f"exit code {code}")

        play(story)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT])
    def test_death_by_a_signal_is_reported_in_number_and_words(self, play: Play, number: signal.Signals) -> None:
        async def story(stage: Stage) -> None:
            await stage.cluster.launch(stage.request("w-0"))
            await stage.ready("w-0")
            await stage.signal("w-0", number)
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert exit is not None
            assert (exit.code, exit.signal, exit.oom) == (None, number, False)
            assert exit.reason == f"killed by {number.name}"

        play(story)

    def test_a_stopped_replica_ends_by_sigterm(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            await stage.cluster.launch(stage.request("w-0"))
            await stage.ready("w-0")
            await stage.cluster.stop("w-0", grace_seconds=60)
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert exit is not None
            stage.check_ended_by(exit, signal.SIGTERM)

        play(story)

    def test_a_replica_that_ignores_sigterm_is_killed_after_the_grace(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            loop = asyncio.get_running_loop()
            await stage.cluster.launch(stage.request("w-0", stubborn=True))
            await stage.ready("w-0")
            before = loop.time()
            grace_seconds = max(0.3, stage.least_grace_seconds)
            await stage.cluster.stop("w-0", grace_seconds)
            assert (await status_of(stage.cluster, "w-0")).phase is ReplicaPhase.RUNNING  # stop did not wait
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert loop.time() - before >= grace_seconds - 0.01
            assert exit is not None
            stage.check_ended_by(exit, signal.SIGKILL, f": it did not end within {grace_seconds:g} s of SIGTERM")

        play(story)

    @pytest.mark.parametrize("graces", [(60, 0.1), (0.1, 60)], ids=["shorter", "longer"])
    def test_of_two_stops_the_one_with_less_time_left_holds(self, play: Play, graces: tuple[float, float]) -> None:
        async def story(stage: Stage) -> None:
            await stage.cluster.launch(stage.request("w-0", stubborn=True))
            await stage.ready("w-0")
            for grace_seconds in graces:
                await stage.cluster.stop("w-0", grace_seconds)
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert exit is not None
            shorter = max(min(graces), stage.least_grace_seconds)
            stage.check_ended_by(exit, signal.SIGKILL, f": it did not end within {shorter:g} s of SIGTERM")

        play(story)

    def test_kill_does_not_wait_for_a_stubborn_replica(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            await stage.cluster.launch(stage.request("w-0", stubborn=True))
            await stage.ready("w-0")
            await stage.cluster.stop("w-0", grace_seconds=60)
            await stage.cluster.kill("w-0")
            exit = (await hear_end(stage.cluster, "w-0")).exit
            assert exit is not None
            stage.check_ended_by(exit, signal.SIGKILL)

        play(story)

    def test_stopping_what_is_gone_or_never_was_does_nothing(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            await stage.cluster.launch(stage.request("w-0"))
            await stage.end("w-0", 5)
            gone = await hear_end(stage.cluster, "w-0")
            for name in ("w-0", "nobody"):
                await stage.cluster.stop(name, grace_seconds=1)
                await stage.cluster.kill(name)
            assert await stage.cluster.list() == [gone]

        play(story)

    def test_the_list_keeps_the_gone_and_the_order_of_first_launch(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            for name in ("c", "a", "b"):
                await stage.cluster.launch(stage.request(name))
            await stage.end("a", 0)
            first = await hear_end(stage.cluster, "a")
            assert [status.name for status in await stage.cluster.list()] == ["c", "a", "b"]
            await stage.cluster.launch(stage.request("a"))
            await stage.end("a", 1)
            await hear_end(stage.cluster, "a", other_than_uid=first.uid)
            listed = await stage.cluster.list()
            assert [(status.name, status.phase) for status in listed] == [
                ("c", ReplicaPhase.RUNNING),
                ("a", ReplicaPhase.GONE),
                ("b", ReplicaPhase.RUNNING),
            ]

        play(story)

    def test_events_begin_with_what_is_there_and_tell_each_change_once_in_order(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            await stage.cluster.launch(stage.request("old"))
            old = await hear(stage.cluster, "old", ReplicaPhase.RUNNING)
            heard = []
            async with contextlib.aclosing(stage.cluster.events()) as events:
                assert await anext(events) == old
                await stage.cluster.launch(stage.request("new"))
                await stage.end("new", 2)
                await hear_end(stage.cluster, "new")
                await stage.end("old", 0)
                async for status in events:
                    heard.append(status)
                    if status.name == "old":
                        break
            phases = [(status.name, status.phase) for status in heard if status.phase is not ReplicaPhase.PENDING]
            new_running, new_gone, old_gone = ("new", ReplicaPhase.RUNNING), ("new", ReplicaPhase.GONE), "old"
            assert phases == [new_running, new_gone, (old_gone, ReplicaPhase.GONE)]
            assert len({status.uid for status in heard if status.name == "new"}) == 1
            assert heard[-1].uid == old.uid

        play(story)

    def test_a_new_client_finds_the_exits_that_were_missed(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            await stage.cluster.launch(stage.request("w-0"))
            await stage.end("w-0", 4)
            gone = await hear_end(stage.cluster, "w-0")
            other = stage.another_client()
            assert await other.list() == [gone]
            assert await hear_end(other, "w-0") == gone
            await other.close()

        play(story)

    def test_every_client_sees_what_one_client_does(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            other = stage.another_client()
            hearing = [asyncio.create_task(hear_end(client, "w-0")) for client in (stage.cluster, other)]
            await stage.cluster.launch(stage.request("w-0"))
            await hear(other, "w-0", ReplicaPhase.RUNNING)
            await other.stop("w-0", grace_seconds=10)
            mine, theirs = await asyncio.gather(*hearing)
            assert mine == theirs, f"{mine}\n{theirs}"
            await other.close()

        play(story)

    def test_a_watch_left_early_disturbs_no_other(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            await stage.cluster.launch(stage.request("w-0"))
            hearing = asyncio.create_task(hear_end(stage.cluster, "w-0"))
            async with contextlib.aclosing(stage.cluster.events()) as events:
                await anext(events)
            abandoned = asyncio.create_task(hear_end(stage.cluster, "nobody"))
            await hear(stage.cluster, "w-0", ReplicaPhase.RUNNING)
            abandoned.cancel()
            await stage.end("w-0", 0)
            assert (await hearing).phase is ReplicaPhase.GONE

        play(story)

    def test_closing_ends_its_watches_and_refuses_new_calls(self, play: Play) -> None:
        async def story(stage: Stage) -> None:
            await stage.cluster.launch(stage.request("w-0"))

            async def watch_to_the_end() -> list[str]:
                return [status.name async for status in stage.cluster.events()]

            watching = asyncio.create_task(watch_to_the_end())
            await hear(stage.cluster, "w-0", ReplicaPhase.RUNNING)
            await stage.cluster.close()
            assert set(await watching) == {"w-0"}
            with pytest.raises(WireError):
                await stage.cluster.launch(stage.request("w-1"))

        play(story)
