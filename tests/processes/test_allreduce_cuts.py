"""Workers that are cut off from the master, or from each other: never do two worlds commit, and the job goes on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticdl.job.names import JobPaths
from elasticdl.strategies.allreduce.core.pulses import FLOOR_SECONDS
from tests.processes import allreduce, harness
from tests.processes.allreduce import CONT, KILL, STOP, Description, together
from tests.processes.cuts import Proxy, check_one_world_at_a_time, commits, worlds_entered
from tests.processes.harness import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.long]

PLAIN = Description(model="cut_off", epochs=8, evaluation_steps=50)
THREE = Description(model="cut_off", epochs=8, workers=3, minibatch=11, evaluation_steps=50)
SHORT = replace(THREE, epochs=4)
EVERY_STEP = "--log_loss_steps=1"
PATIENT = ("--master_grace_seconds=300", "--reconnect_seconds=300")  # however slow this machine is
CUT = "elasticdl-cut-worker-0"


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    """Between the master of the job `cut` and its first worker."""
    proxy = Proxy(JobPaths(tmp_path / "state", "cut").master_address.read_text)
    yield proxy
    proxy.close()


@pytest.fixture
def proxies(tmp_path: Path) -> Iterator[dict[str, Proxy]]:
    """Between that master and each of three workers."""
    target = JobPaths(tmp_path / "state", "cut").master_address.read_text
    found = {f"elasticdl-cut-worker-{number}": Proxy(target) for number in range(3)}
    yield found
    for proxy in found.values():
        proxy.close()


def start(
    tmp: Path, description: Description, data: Path, proxy: Proxy, *flags: str, part_seconds: float = 0.06,
    checkpoint_seconds: float = 0.0,
) -> RunningJob:  # fmt: skip
    env = {"CUT_MASTERS": json.dumps({CUT: proxy.address})}
    return allreduce.start(
        tmp, "cut", description, data, EVERY_STEP, *flags,
        part_seconds=part_seconds, checkpoint_seconds=checkpoint_seconds, **env,
    )  # fmt: skip


def check(job: RunningJob, description: Description, data: Path, saved: int | None = None) -> dict[str, Any]:
    allreduce.hurry(job)
    status = allreduce.check(job, description, allreduce.alone(description, data))
    check_one_world_at_a_time(job, saved)
    return status


def test_a_worker_that_the_master_cannot_reach_trains_on_until_a_world_without_it_begins(
    tmp_path: Path, data: Path, proxy: Proxy
) -> None:
    job = start(tmp_path, SHORT, data, proxy, *PATIENT, part_seconds=0.12)
    first = job.wait_until(lambda s: allreduce.together(s, 3) and s.version >= 3)
    proxy.refuse()
    away = job.wait_until(lambda s: any(r.name == CUT and r.state == "lost touch" for r in s.replicas))
    later = job.wait_until(lambda s: s.version > away.version + 2)
    assert later.generation == first.generation and set(later.world) == set(first.world), "no worker was lost"
    victim = next(n for n in first.world if n != CUT)
    assert job.kill(victim, KILL)
    without = job.wait_until(lambda s: s.generation > first.generation and s.version > later.version)
    assert CUT not in without.world, "it did not receive the proposal, so the others cannot rely on it"
    proxy.heal()
    job.wait_until(lambda s: CUT in s.world and s.version > without.version)
    status = check(job, SHORT, data)
    assert int(status.get("repeated_batches", 0)) == 0
    assert allreduce.story_of(job, CUT).count(" starts at ") == 1, "it was started again"


def test_a_worker_whose_words_are_lost_on_the_way_is_replaced(tmp_path: Path, data: Path, proxy: Proxy) -> None:
    job = start(tmp_path, THREE, data, proxy)
    first = job.wait_until(lambda s: allreduce.together(s, 3) and s.version >= 8)
    proxy.freeze()
    without = job.wait_until(lambda s: CUT not in s.world and s.version > first.version)
    assert without.generation > first.generation
    proxy.heal()
    status = check(job, THREE, data)
    # Hung, unless the stream was given up first, in which nothing came through.
    told = (f"{CUT} is hung: silent for", f"replaces {CUT}, silent for")
    assert any(words in text for text in allreduce.decisions(status) for words in told), allreduce.decisions(status)
    assert int(status.get("repeated_batches", 0)) == 0


def test_the_only_worker_with_the_state_is_waited_for_when_it_is_cut_off(
    tmp_path: Path, data: Path, proxy: Proxy
) -> None:
    """Another worker is ready but has no state and no checkpoint: it must not begin from nothing."""
    job = start(tmp_path, PLAIN, data, proxy, *PATIENT)
    first = job.wait_until(lambda s: allreduce.together(s, 2) and s.version >= 3)
    proxy.refuse()
    job.wait_until(lambda s: any(r.name == CUT and r.state == "lost touch" for r in s.replicas))
    (victim,) = set(first.world) - {CUT}
    assert job.kill(victim, KILL)
    waiting = job.wait_until(lambda s: any(n not in first.world for n in s.world))  # proposed, and not started
    proxy.heal()
    back = job.wait_until(lambda s: CUT in s.world and s.version > waiting.version)
    assert back.generation > waiting.generation
    status = check(job, PLAIN, data)
    assert int(status.get("repeated_batches", 0)) == 0
    assert allreduce.story_of(job, CUT).count(" starts at ") == 1, "it was started again"


def test_a_worker_cut_off_for_too_long_stops_before_the_others_continue_without_it(
    tmp_path: Path, data: Path, proxy: Proxy
) -> None:
    """No member is left that could report that the world commits nothing more: the grace period has to end."""
    flags = ("--master_grace_seconds=5", "--reconnect_seconds=120")
    job = start(tmp_path, PLAIN, data, proxy, *flags, checkpoint_seconds=1)
    first = job.wait_until(lambda s: allreduce.together(s, 2) and s.version >= 3 and bool(s.checkpoint))
    proxy.refuse()
    away = job.wait_until(lambda s: any(r.name == CUT and r.state == "lost touch" for r in s.replicas))
    (victim,) = set(first.world) - {CUT}
    assert job.kill(victim, KILL)
    job.wait_until(lambda s: len(s.world) == 2 and CUT not in s.world and s.version > first.version)
    proxy.heal()
    status = check(job, PLAIN, data, saved=int(away.checkpoint.rsplit("-", 1)[1]))
    assert "the master was away for 5 s" in allreduce.story_of(job, CUT)
    found = commits(job)
    begun = min(c.at for c in found if c.generation > first.generation)
    assert max(c.at for c in found if c.generation == first.generation) < begun, "two worlds side by side"
    assert int(status.get("repeated_batches", 0)) < PLAIN.steps


def test_a_whole_world_that_is_cut_off_in_silence_stops_before_another_begins(
    tmp_path: Path, data: Path, proxies: dict[str, Proxy]
) -> None:
    """Nothing is refused or reset: each side finds out by itself, and the master may well be the first."""
    env = {"CUT_MASTERS": json.dumps({name: proxy.address for name, proxy in proxies.items()})}
    flags = (EVERY_STEP, "--num_standby=1", "--master_grace_seconds=5", "--reconnect_seconds=120")
    # Steps so long that no worker counts as hung before its stream counts as broken.
    job = allreduce.start(tmp_path, "cut", PLAIN, data, *flags, part_seconds=0.4, checkpoint_seconds=1, **env)
    first = job.wait_until(
        lambda s: bool(s.checkpoint) and "standby" in {r.state for r in s.replicas} and len(s.world) == 2
    )
    for name in first.world:
        proxies[name].freeze()
    away = job.wait_until(lambda s: all(r.state == "lost touch" for r in s.replicas if r.name in first.world))
    job.wait_until(lambda s: not set(s.world) & set(first.world) and bool(s.world) and together(s, len(s.world)))
    for name in first.world:
        proxies[name].heal()
    allreduce.hurry(job)
    check(job, PLAIN, data, saved=int(away.checkpoint.rsplit("-", 1)[1]))
    began = min(at for generation, at in worlds_entered(job) if generation > first.generation)
    last = max(c.at for c in commits(job) if c.generation == first.generation)
    assert last < began, f"the old world committed a step {last - began:.1f} s after the next one stood"
    assert all("the master was away for 5 s" in allreduce.story_of(job, name) for name in first.world)


def test_a_master_that_stands_still_for_a_while_takes_no_worker_for_hung(tmp_path: Path, data: Path) -> None:
    """All workers are silent for longer than a hung worker may be, and none is hung."""
    job = allreduce.start(tmp_path, "still", PLAIN, data, EVERY_STEP, part_seconds=0.06)
    first = job.wait_until(lambda s: allreduce.together(s, 2) and s.version >= 8)
    master = job.replicas()["elasticdl-still-master"]
    master.send_signal(STOP)
    before = commits(job)[-1]
    while (newest := commits(job)[-1]).at < before.at + 1.5 * FLOOR_SECONDS:  # not so long that streams break
        assert job.process.poll() is None and newest.step < PLAIN.steps
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.process.wait(0.2)
    master.send_signal(CONT)
    job.wait_until(lambda s: s.version > newest.step)
    status = check(job, PLAIN, data)
    assert int(status["generation"]) == first.generation and int(status.get("losses", 0)) == 0


# Peers that cannot reach each other. That takes addresses of their own, on a network of its own.

ALONE = "ALONE_ON_ITS_NETWORK"


def rule(*words: str) -> None:
    subprocess.run(["ip", "rule", *words], check=True)


def test_peers_that_cannot_reach_each_other_go_on_one_by_one_until_they_can(tmp_path: Path, data: Path) -> None:
    if ALONE not in os.environ:
        on_a_network_of_its_own("test_peers_that_cannot_reach_each_other_go_on_one_by_one_until_they_can")
        return
    rule("add", "pref", "100", "lookup", "local")  # later than the one that cuts
    rule("del", "pref", "0")
    flags = (EVERY_STEP, "--master_grace_seconds=5")
    job = allreduce.start(tmp_path, "peers", PLAIN, data, *flags, part_seconds=0.06, CUT_HOSTS="1")
    first = job.wait_until(lambda s: allreduce.together(s, 2) and s.version >= 3)
    rule("add", "pref", "50", "to", "127.0.1.0/24", "blackhole")
    parted = job.wait_until(lambda s: len(s.world) == 1 and s.version > first.version + 1)
    rule("del", "pref", "50")
    job.wait_until(lambda s: len(s.world) == 2 and s.version > parted.version)
    status = check(job, PLAIN, data)
    assert int(status.get("repeated_batches", 0)) == 0


def test_a_network_that_falls_silent_while_the_state_is_copied_breaks_the_world_and_costs_no_step(
    tmp_path: Path, data: Path
) -> None:
    if ALONE not in os.environ:
        name = "test_a_network_that_falls_silent_while_the_state_is_copied_breaks_the_world_and_costs_no_step"
        on_a_network_of_its_own(name)
        return
    rule("add", "pref", "100", "lookup", "local")
    rule("del", "pref", "0")
    comer, hits = "elasticdl-copy-worker-2", tmp_path / "hits"
    job = allreduce.start(
        tmp_path, "copy", PLAIN, data, EVERY_STEP, part_seconds=0.06, CUT_HOSTS="1",
        ELASTICDL_FAULTS=f"worker.copying@{comer}:1=STOP", ELASTICDL_FAULT_LOG=str(hits),
    )  # fmt: skip
    first = job.wait_until(lambda s: allreduce.together(s, 2) and s.version >= 3)
    allreduce.scale(job, 3)
    job.wait_until(lambda s: hits.exists() and comer in s.world)
    rule("add", "pref", "50", "to", "127.0.1.0/24", "blackhole")  # before it can say that it has the state
    job.replicas()[comer].send_signal(CONT)
    words = "no part of the state was copied for 3"
    broken = job.wait_until(lambda s: any(words in d.text for d in s.decisions))
    rule("del", "pref", "50")
    job.wait_until(lambda s: s.version > broken.version)
    status = check(job, PLAIN, data)
    # Groups built until then fail at once, and a worker has to end; but none is hung, and the state is kept.
    assert not [text for text in allreduce.decisions(status) if "is hung" in text]
    assert set(first.world) & set(status["world"]) and int(status.get("repeated_batches", 0)) == 0


def on_a_network_of_its_own(test: str) -> None:
    """Run a test of this file there."""
    if not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("there is no unshare, or no ip, to cut a network with")
    up = 'ip link set lo up && exec "$@"'
    inside = ["unshare", "--net", "sh", "-c", up, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("a network of its own is not permitted here")
    command = [*inside, sys.executable, "-m", "pytest", "-q", "-m", "long or not long", f"{__file__}::{test}"]
    done = subprocess.run(command, cwd=harness.ROOT, env={**os.environ, ALONE: "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
