"""The journal: what was appended is there after any death, belongs to one master, and gives the same job again."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from elasticdl.core import events as e
from elasticdl.core.plan import Plan
from elasticdl.errors import JobFailed
from elasticdl.master.journal import Journal
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
from elasticdl.strategies.parameter_servers.core.terms import ParameterServerTerms
from tests.master.stories import TERMS, story

ROOT = Path(__file__).resolve().parents[2]
STATE: TypeAdapter[ParameterServerMachine] = TypeAdapter(ParameterServerMachine)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def kept(path: Path) -> list[tuple[str, bytes]]:
    journal = Journal(path)
    rows = journal._db.execute("SELECT name, body FROM events ORDER BY seq").fetchall()
    journal.close()
    return rows


def state_of(job: ParameterServerMachine) -> Any:
    state = STATE.dump_python(job, mode="json")
    if state["loss"] is not None and not math.isfinite(state["loss"]):
        state["loss"] = None  # JSON has no word for it, and it is for show only
    return state


def recovered(path: Path, terms: ParameterServerTerms = TERMS) -> tuple[ParameterServerMachine, float]:
    journal = Journal(path)
    try:
        return journal.recover(ParameterServerMachine.new(terms))
    finally:
        journal.close()


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_events_of_every_kind_come_back_as_they_were(data: st.DataObject) -> None:
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    st.register_type_strategy(str, texts)
    for kind in e.EVENTS.values():
        event = data.draw(st.builds(kind))
        back = e.decode(*e.encode(event))
        for field in dataclasses.fields(event):
            was, now = getattr(event, field.name), getattr(back, field.name)
            assert was == now or (isinstance(was, float) and math.isnan(was) and math.isnan(now)), event


def test_a_journal_gives_the_same_job_again(path: Path) -> None:
    told = story()
    live = ParameterServerMachine.new(TERMS)
    journal = Journal(path)
    journal.recover(ParameterServerMachine.new(TERMS))
    for event, at in told:
        live.handle(event, at)
    for start in range(0, len(told), 10):
        journal.append(told[start : start + 10])
    journal.close()
    job, now = recovered(path)
    assert job.outcome == "succeeded"
    assert now == told[-1][1]
    assert state_of(job) == state_of(live)


@pytest.mark.parametrize("every", [1, 7, 100])
def test_snapshots_of_the_state_change_nothing_but_the_length(path: Path, every: int) -> None:
    told = story(seed=2)
    journal = Journal(path)
    job, _ = journal.recover(ParameterServerMachine.new(TERMS))
    for event, at in told:
        job.handle(event, at)
        journal.append([(event, at)])
        journal.keep_state(job, at, every)
        if random.Random(at).random() < 0.05:  # the master dies and comes back
            journal.close()
            journal = Journal(path)
            job, now = journal.recover(ParameterServerMachine.new(TERMS))
            assert now == at
    journal.close()
    assert len(kept(path)) < every
    plain = ParameterServerMachine.new(TERMS)
    for event, at in told:
        plain.handle(event, at)
    assert state_of(recovered(path)[0]) == state_of(plain)


@pytest.mark.processes
def test_a_killed_master_leaves_a_prefix_with_everything_it_was_told_is_safe(path: Path) -> None:
    for turn in range(5):
        path.unlink(missing_ok=True)
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.master.journal_program", str(path)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert program.stdout is not None
        safe = 0
        for line in program.stdout:
            safe = int(line)
            if safe >= 7 * (turn * 23 + 1):
                break
        program.send_signal(signal.SIGKILL)
        rest = program.communicate()[0].split()
        safe = int(rest[-1]) if rest else safe
        events = [e.decode(*row) for row in kept(path)]
        assert [x.reason for x in events if isinstance(x, e.StopRequested)] == [str(n) for n in range(len(events))]
        assert len(events) >= safe, "what was said to be safe is lost"
        assert len(events) % 7 == 0, "half a group was kept"
        assert len(events) <= safe + 7


def test_a_second_master_is_told_that_there_is_a_first(path: Path) -> None:
    first = Journal(path)
    with pytest.raises(JobFailed, match=r"journal\.sqlite cannot be opened: another master is using it"):
        Journal(path, lock_seconds=0.1)
    other = f"from pathlib import Path; from elasticdl.master.journal import Journal; Journal(Path({str(path)!r}), 0.1)"
    there = subprocess.run([sys.executable, "-c", other], cwd=ROOT, capture_output=True, text=True)
    assert "another master is using it" in there.stderr
    first.append([(e.TimePassed(), 1.0)])
    first.close()
    Journal(path, lock_seconds=0.1).close()


def test_no_other_process_reads_while_the_master_does(path: Path) -> None:
    """The file is locked whole: what another process read could be half of the truth."""
    first = Journal(path)
    reader = sqlite3.connect(path, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        reader.execute("SELECT * FROM events").fetchall()
    reader.close()
    first.close()


@pytest.mark.parametrize("every", [1, 10**6])
def test_the_journal_of_another_job_is_refused_with_what_differs(path: Path, every: int) -> None:
    journal = Journal(path)
    job, _ = journal.recover(ParameterServerMachine.new(TERMS))
    journal.append([(e.TimePassed(), 1.0)])
    journal.keep_state(job, 1.0, every)
    journal.close()
    recovered(path)
    for other in (
        dataclasses.replace(TERMS, workers=3),
        dataclasses.replace(TERMS, plan=Plan(1000, 20, 5, 2)),
        dataclasses.replace(TERMS, job="k"),
    ):
        with pytest.raises(
            JobFailed, match=r"belongs to another job: (workers was 2 and is 3|plan was|job was j and is k)"
        ):
            recovered(path, other)


def test_a_file_that_is_no_journal_says_so(path: Path) -> None:
    path.write_bytes(b"not a database at all, but long enough to look like one" * 40)
    with pytest.raises(JobFailed, match="cannot be opened: file is not a database"):
        Journal(path)


def test_a_directory_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="cannot be opened: unable to open database file"):
        Journal(tmp_path / "nowhere" / "journal.sqlite")


def test_events_of_a_later_release_are_not_guessed_at(path: Path) -> None:
    journal = Journal(path)
    journal.append([(e.TimePassed(), 1.0)])
    journal._db.execute("INSERT INTO events VALUES (2, 2.0, 'MoonRose', '{}')")
    journal.close()
    with pytest.raises(JobFailed, match="cannot be read: 'MoonRose'"):
        recovered(path)


def test_a_full_disk_is_named_before_anything_is_acted_upon(path: Path) -> None:
    journal = Journal(path)
    journal._db.execute("PRAGMA max_page_count = 8")
    with pytest.raises(JobFailed, match=r"journal\.sqlite cannot be written: database or disk is full"):
        journal.append([(e.StopRequested("x" * 100_000), 1.0)])
    journal.close()
    assert kept(path) == []


def test_facts_outlive_the_master(path: Path) -> None:
    journal = Journal(path)
    assert journal.fact("starts") is None
    journal.remember("starts", 3)
    journal.remember("starts", {"n": 4})
    journal.close()
    journal = Journal(path)
    assert journal.fact("starts") == {"n": 4}
    journal.close()


def test_a_long_journal_is_read_in_reasonable_time(path: Path) -> None:
    """A master keeps its state every few thousand events, so this is far more than it ever has to read."""
    terms = dataclasses.replace(TERMS, plan=Plan(50_000, 10, 20, 2))
    told = story(terms, deaths=0.002)
    late = [(e.BatchesCommitted("elasticdl-j-worker-0", "train/0/0", 1, 1, 0.5), told[-1][1])] * (200_000 - len(told))
    journal = Journal(path)
    journal.recover(ParameterServerMachine.new(terms))
    everything = told + late
    began = time.perf_counter()
    for start in range(0, len(everything), 1000):
        journal.append(everything[start : start + 1000])
    wrote = time.perf_counter() - began
    journal.close()
    began = time.perf_counter()
    job, _ = recovered(path, terms)
    took = time.perf_counter() - began
    print(
        f"\n{len(everything)} events, {len(told)} of them decided upon: written in {wrote:.1f} s, read in {took:.1f} s"
    )
    assert job.outcome == "succeeded" and job.shards.version == 10_000
    assert took < 30
