"""Workers that hang: the others continue without them, new workers replace them, and nothing they still do counts."""

from __future__ import annotations

import os
import re
import select
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from elasticdl.strategies.allreduce.core.pulses import FLOOR_SECONDS
from tests.processes import allreduce
from tests.processes.allreduce import CONT, STOP, TERM, Description
from tests.processes.cuts import check_one_world_at_a_time

pytestmark = [pytest.mark.processes, pytest.mark.long]

PLAIN = Description(epochs=4, evaluation_steps=50)
EVERY_STEP = "--log_loss_steps=1"
EXIT_SECONDS = 20.0


@pytest.fixture(scope="module")
def alone(data: Path):
    return allreduce.train_alone(PLAIN, data)


def hung_for(told: str, worker: str) -> float:
    """How long the master had waited when it said that this worker is hung."""
    found = re.search(rf"{worker} is hung: .*(?:silent for|has taken) ([\d.]+) s", told)
    assert found, told
    return float(found[1])


def ends_by_itself(worker: psutil.Process) -> bool:
    """Whether a process ends in time, also when its parent does not wait for it."""
    fd = os.pidfd_open(worker.pid)
    try:
        return bool(select.select([fd], [], [], EXIT_SECONDS)[0])
    finally:
        os.close(fd)


@pytest.mark.parametrize("how", ["spin", "lock"])
def test_a_worker_that_hangs_in_the_model_is_named_with_its_stack_and_replaced(
    how: str, tmp_path: Path, data: Path, alone
) -> None:
    """`spin`: its heartbeat goes on. `lock`: nothing of it does."""
    file = tmp_path / "hangs"
    job = allreduce.start(
        tmp_path, "hangs", replace(PLAIN, model="hanging"), data, EVERY_STEP, part_seconds=0.03,
        HANG=how, HANG_FILE=str(file),
    )  # fmt: skip
    first = job.wait_until(lambda s: s.version >= 8 and allreduce.together(s, 2))
    hung, survivor = first.world
    pids = allreduce.worker_pids(job)
    file.write_text(hung)
    without = job.wait_until(lambda s: hung not in s.world and s.version > first.version)
    job.wait_until(lambda s: allreduce.together(s, 2) and s.version > without.version)
    assert allreduce.worker_pids(job)[survivor] == pids[survivor] and hung not in allreduce.worker_pids(job)
    status = allreduce.check(job, PLAIN, alone)
    assert int(status.get("repeated_batches", 0)) == 0
    told = allreduce.story_of(job, "elasticdl-hangs-master")
    assert FLOOR_SECONDS <= hung_for(told, hung) < 60, "the limit is learnt from the steps, and not --hang_seconds"
    stacks = allreduce.story_of(job, hung)
    assert re.search(r"hanging.py\", line \d+ in forever", stacks), "every thread's, by the signal"
    if how == "spin":
        assert re.search(r"stuck \(compute of step \d+ has taken .*Stack trace of the training thread:", stacks)
        assert re.search(rf"Stack trace of {hung}:\n(.*\n)*?.*hanging.py\", line \d+, in forever", told)


def test_a_worker_that_hangs_and_is_then_told_to_go_is_replaced_and_nothing_is_lost(
    tmp_path: Path, data: Path, alone
) -> None:
    """Told to go, it is to finish the step, which it never will; the other waits for it in the exchange."""
    file = tmp_path / "hangs"
    job = allreduce.start(
        tmp_path, "told", replace(PLAIN, model="hanging"), data, EVERY_STEP, part_seconds=0.03,
        HANG="spin", HANG_FILE=str(file),
    )  # fmt: skip
    first = job.wait_until(lambda s: s.version >= 8 and allreduce.together(s, 2))
    hung, survivor = first.world
    pid = allreduce.worker_pids(job)[survivor]
    file.write_text(hung)
    job.wait_until(lambda s: file.with_suffix(".there").exists())
    assert job.kill(hung, TERM)
    told = job.wait_until(lambda s: hung not in s.world)
    job.wait_until(lambda s: allreduce.together(s, 2) and s.version > told.version + 10)
    assert allreduce.worker_pids(job)[survivor] == pid and hung not in allreduce.worker_pids(job)
    status = allreduce.check(job, PLAIN, alone)
    assert int(status.get("repeated_batches", 0)) == 0
    story = allreduce.story_of(job, "elasticdl-told-master")
    assert f"{hung} received SIGTERM" in story and FLOOR_SECONDS <= hung_for(story, hung) < 60, story


def test_a_worker_that_nothing_gets_out_of_an_exchange_is_replaced_and_nothing_is_lost(
    tmp_path: Path, data: Path, alone
) -> None:
    """As in a driver that does not answer: its heartbeat goes on, and what is to interrupt the exchange does not."""
    hits, wedged = tmp_path / "faults", "elasticdl-wedged-worker-0"
    hits.touch()
    job = allreduce.start(
        tmp_path, "wedged", replace(PLAIN, model="hanging"), data, EVERY_STEP, "--hang_seconds=8", part_seconds=0.03,
        HANG="exchange", HANG_FILE=str(tmp_path / "hangs"),
        ELASTICDL_FAULTS=f"worker.in_exchange@{wedged}:20=USR2", ELASTICDL_FAULT_LOG=str(hits),
    )  # fmt: skip
    there = job.wait_until(lambda s: (tmp_path / "hangs.there").exists())
    job.wait_until(lambda s: allreduce.together(s, 2) and wedged not in s.world and s.version > there.version + 10)
    assert wedged not in allreduce.worker_pids(job)
    status = allreduce.check(job, PLAIN, alone)
    check_one_world_at_a_time(job)
    assert int(status.get("repeated_batches", 0)) == 0
    story = allreduce.story_of(job, "elasticdl-wedged-master")
    why = r"still in the exchange of step \d+, which was aborted [89]\.\d s ago"
    assert re.search(f"{wedged} is hung: {why}", story), story


def test_a_worker_that_is_stopped_is_replaced_and_says_where_it_stood(tmp_path: Path, data: Path, alone) -> None:
    job = allreduce.start(tmp_path, "hang", PLAIN, data, EVERY_STEP, part_seconds=0.03)
    first = job.wait_until(lambda s: s.version >= 8 and allreduce.together(s, 2))
    stopped = first.world[0]
    assert job.kill(stopped, STOP)
    went_on = job.wait_until(lambda s: stopped not in s.world and s.version > first.version)
    assert went_on.generation > first.generation
    job.wait_until(lambda s: allreduce.together(s, 2) and s.version > went_on.version)
    assert stopped not in allreduce.worker_pids(job), "it was woken up, and then killed"
    status = allreduce.check(job, PLAIN, alone)
    assert any("is hung" in text and stopped in text for text in allreduce.decisions(status))
    stacks = allreduce.story_of(job, stopped)
    assert "Thread 0x" in stacks and "allreduce/training.py" in stacks, "no stacks in its log"


@pytest.mark.parametrize("where", ["anywhere", "inside the exchange"])
def test_a_worker_that_goes_on_ten_steps_after_it_was_given_up_is_fenced_off_and_exits(
    where: str, tmp_path: Path, data: Path, alone
) -> None:
    """The launcher, which would have killed it by then, is stopped meanwhile: only the worker itself can end it."""
    hits = tmp_path / "faults"
    hits.touch()
    stopped = "elasticdl-fence-worker-0"
    fault = f"worker.in_exchange@{stopped}:20=STOP" if where == "inside the exchange" else ""
    job = allreduce.start(
        tmp_path, "fence", PLAIN, data, EVERY_STEP, part_seconds=0.03,
        ELASTICDL_FAULTS=fault, ELASTICDL_FAULT_LOG=str(hits),
    )  # fmt: skip
    if fault:
        first = job.wait_until(lambda s: hits.read_text().split() == [fault])
    else:
        first = job.wait_until(lambda s: s.version >= 8 and allreduce.together(s, 2))
        assert job.kill(stopped, STOP)
    worker = job.replicas()[stopped]
    job.process.send_signal(STOP)
    noticed = job.wait_until(lambda s: stopped not in s.world and s.generation > first.generation)
    job.wait_until(lambda s: s.version >= noticed.version + 10)
    assert worker.status() == psutil.STATUS_STOPPED, "it is still there"
    worker.send_signal(CONT)
    assert ends_by_itself(worker), job.story()
    job.process.send_signal(CONT)
    status = allreduce.check(job, PLAIN, alone)
    check_one_world_at_a_time(job)
    assert any("is hung" in text and stopped in text for text in allreduce.decisions(status))
    assert int(status.get("repeated_batches", 0)) == 0
    assert "another process replaced it" in allreduce.story_of(job, stopped)
