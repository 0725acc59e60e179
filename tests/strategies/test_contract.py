"""What every strategy promises the shell: the two that ship, and a third that only counts."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.replicas import State
from elasticdl.errors import DataError
from elasticdl.files import verify
from elasticdl.job import names
from elasticdl.job.resolve import resolve
from elasticdl.job.spec import JobSpec
from elasticdl.job.strategies import FOLDERS
from elasticdl.job.strategy import strategy_of
from elasticdl.master.actions import Actions
from elasticdl.wire import auth
from elasticdl.wire import control_pb2 as pb
from tests.master.replicas import DATA, TOKEN
from tests.master.test_imports import FRAMEWORKS, ROOT
from tests.strategies.stages import StrategyStage
from tests.wire.loopback import hello, stub

Run = Callable[..., None]
Kind = type[StrategyStage]
TOTAL = 4 * DATA.records


async def until(stage: StrategyStage, records: int) -> None:
    """Look again after each decision of the master."""
    async with asyncio.timeout(40):
        while stage.master is None or stage.master.machine.progress().records < records:
            stage.decided.clear()
            await stage.decided.wait()


def check_end(stage: StrategyStage, status: pb.Status) -> None:
    assert (status.phase, status.records_done, status.records_total) == ("succeeded", TOTAL, TOTAL), status.reason
    assert [(x.epoch, x.records) for x in status.epochs_done] == [(n, DATA.records) for n in range(4)]
    stage.check_counts()


def check_resumption(stage: StrategyStage, saved: Path, records: int) -> None:
    side = stage.side
    verify(saved, side.checkpoint_files(saved))
    assert side.checkpoint_problems(saved, stage.spec, DATA) == []
    heir = side.begin(stage.spec, DATA, 0)
    side.resume(heir, saved)
    assert TOTAL // 8 <= records <= heir.progress().records < TOTAL
    for change in ({"seed": 5}, {"minibatch_size": 16}):
        [problem] = side.checkpoint_problems(saved, stage.spec.model_copy(update=change), DATA)
        assert problem.where == f"--{next(iter(change))}" and "the checkpoint was made with" in problem.what
    other = replace(DATA, files=DATA.files[:1])
    assert [p.where for p in side.checkpoint_problems(saved, stage.spec, other)] == ["--training_data"]
    (saved / "manifest.json").write_text('{"strategy": "another"}')
    with pytest.raises(DataError):
        side.checkpoint_files(saved)


def test_a_job_runs_to_its_end_and_counts_every_record_once(run: Run, tmp_path: Path, kind: Kind) -> None:
    async def story() -> None:
        with kind(tmp_path) as stage:
            async with stage.mastered() as master:
                await master.run()
                await master.end()
                check_end(stage, master.status())
                assert master.machine.replicas.losses == 0

    run(story())


def test_what_a_lost_worker_held_goes_to_another(run: Run, tmp_path: Path, kind: Kind) -> None:
    async def story() -> None:
        with kind(tmp_path) as stage:
            async with stage.mastered() as master:
                running = asyncio.create_task(master.run())
                await until(stage, TOTAL // 8)
                lost = stage.cluster_worker()
                stage.cluster.preempt(lost)
                await running
                await master.end()
                status = master.status()
                check_end(stage, status)
                assert status.losses == 1
                [gone] = [r for r in status.replicas if r.name == lost]
                assert gone.state == State.GONE and gone.detail == "killed by SIGKILL"
                assert any(
                    d.text.startswith(f"Starting elasticdl-j-worker-2 (replaces {lost}, killed")
                    for d in status.decisions
                )

    run(story())


def test_a_master_that_is_started_again_goes_on_from_its_journal(run: Run, tmp_path: Path, kind: Kind) -> None:
    async def story() -> None:
        with kind(tmp_path) as stage:
            async with stage.mastered() as master:
                running = asyncio.create_task(master.run())
                await until(stage, TOTAL // 8)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                before = master.machine
            async with stage.mastered() as master:
                assert master.machine == before and master.machine.progress().records >= TOTAL // 8
                await master.run()
                await master.end()
                check_end(stage, master.status())
                assert master.status().losses == 0

    run(story())


def test_a_job_that_is_asked_to_stop_stops_and_another_goes_on_from_what_it_saved(
    run: Run, tmp_path: Path, kind: Kind
) -> None:
    async def story() -> None:
        with kind(tmp_path) as stage:
            async with stage.mastered() as master:
                running = asyncio.create_task(master.run())
                await until(stage, TOTAL // 8)
                async with stub(stage.address) as control:
                    await control.Stop(pb.StopRequest(reason="enough"), metadata=auth.metadata(TOKEN))
                await running
                await master.end()
                assert master.machine.outcome == "stopped" and master.machine.reason.startswith("enough")
                if stage.saves:
                    check_resumption(stage, Path(master.status().checkpoint), master.status().records_done)

    run(story())


def test_the_status_of_a_job_that_runs_says_what_it_does(run: Run, tmp_path: Path, kind: Kind) -> None:
    async def story() -> None:
        with kind(tmp_path) as stage:
            async with stage.mastered() as master:
                assert master.status().phase, "before anything happened"
                running = asyncio.create_task(master.run())
                await until(stage, TOTAL // 8)
                status = master.status()
                assert status.job == "j" and status.mode == strategy_of(stage.spec).mode(stage.spec) != ""
                assert status.phase in ("training", "counting") and not status.reason
                assert TOTAL // 8 <= status.records_done <= TOTAL and status.version > 0
                assert {r.role for r in status.replicas} == {*strategy_of(stage.spec).roles(stage.spec)} - {"master"}
                assert all(r.state and r.since for r in status.replicas)
                assert status.master_starts == 1 and status.started_at <= status.now
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    run(story())


def test_what_its_roles_run_can_be_started(run: Run, tmp_path: Path, kind: Kind) -> None:
    async def story() -> None:
        stage = kind(tmp_path)
        async with stage.mastered() as master:
            actions = Actions(stage.spec, DATA, str(tmp_path), {names.ENV_TOKEN: TOKEN})
            for role in strategy_of(stage.spec).roles(stage.spec):
                if role != names.MASTER:
                    request = actions.request(c.LaunchReplica(role, 3, "why"), master.side.program(role))
                    assert request.name == f"elasticdl-j-{role}-3" and request.env[names.ENV_REPLICA] == request.name
                    python, flag, module = request.command
                    assert (python, flag) == (sys.executable, "-m") and importlib.util.find_spec(module) is not None

    run(story())


def test_messages_become_events_and_what_only_the_master_can_do_stays(run: Run, tmp_path: Path, kind: Kind) -> None:
    async def story() -> None:
        async with kind(tmp_path).mastered() as master:
            side, name = master.side, "elasticdl-j-worker-0"
            [joined] = side.hear(name, hello(name, "one"), 1.0)
            assert joined == e.ReplicaJoined(name, "one")
            assert list(side.hear(name, pb.FromReplica(leaving=pb.Leaving()), 1.0)) == [e.ReplicaLeaving(name)]
            with pytest.raises(ValueError, match=f"a message from {name}"):
                side.hear(name, pb.FromReplica(), 1.0)
            orders: tuple[c.Command, ...] = (
                c.Announce("a"), c.LaunchReplica("worker", 0, "why"), c.StopReplica(name, "why", 1.0)
            )  # fmt: skip
            for order in orders:
                assert list(side.effects(order)) == [order]
            effects = side.decide(e.MasterStarted(), 1.0)
            assert {type(x) for x in effects} == {c.LaunchReplica}, "there is no replica to send anything to"
            side.decided(e.MasterStarted(), 1.0)
            assert side.overdue(1.0) == [] and side.unlisted() == ()

    run(story())


def test_a_worker_that_a_user_starts_is_refused_where_the_job_starts_its_own(
    run: Run, tmp_path: Path, kind: Kind
) -> None:
    async def story() -> None:
        async with kind(tmp_path).mastered() as master:
            with pytest.raises(Exception, match="this job starts its workers itself"):
                await master.side.join(0)

    run(story())


def test_its_machine_is_kept_as_json(tmp_path: Path, kind: Kind) -> None:
    stage = kind(tmp_path)
    machine = stage.side.begin(stage.spec, DATA, 0)
    machine.handle(e.MasterStarted(), 1.0)
    machine.handle(e.ReplicaStarted("elasticdl-j-worker-0", "uid"), 2.0)
    as_kept: TypeAdapter[Any] = TypeAdapter(type(machine))
    assert as_kept.validate_json(as_kept.dump_json(machine)) == machine
    assert machine.terms.job == "j" and machine.terms.mode


def test_its_checks_report_what_is_missing(kind: Kind) -> None:
    asked = {"distribution_strategy": kind.strategy, "job_name": "j"}
    assert {p.where for p in resolve(JobSpec.model_validate(asked)).problems} == {"--model_def", "--training_data"}
    whole = resolve(JobSpec.model_validate({**asked, "model_def": "m.f", "training_data": "d"}))
    assert not whole.problems and not whole.later
    assert resolve(whole.spec).spec == whole.spec, "resolved again it is the same job"
    by_hand = resolve(whole.spec.with_values(workers_by_hand=True)).problems
    assert [p.where for p in by_hand] == ([] if strategy_of(whole.spec).by_hand else ["--distribution_strategy"])


def test_a_knob_of_another_strategy_is_named_in_a_note(kind: Kind) -> None:
    asked = {"distribution_strategy": kind.strategy, "model_def": "m.f", "training_data": "d", "num_standby": 1}
    notes = [n for n in resolve(JobSpec.model_validate(asked)).notes if n.startswith("--num_standby")]
    own = kind.strategy == "AllreduceStrategy"
    assert notes == (
        [] if own else ["--num_standby=1 changes nothing: only --distribution_strategy=AllreduceStrategy uses it"]
    )


def test_a_request_and_the_masters_side_need_no_framework_and_a_request_not_even_the_master(kind: Kind) -> None:
    folder = FOLDERS[kind.strategy]
    program = f"import sys, {folder}.request; print('elasticdl.master' in sys.modules, 'grpc' in sys.modules); "
    program += f"import {folder}.master; print([m for m in {FRAMEWORKS} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False False", "[]"]
