"""Trouble that is not a kill: records that crash workers, workers that hang or are told to leave, models that raise."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.processes.harness import OURS, RunningJob, audit_witness, start_witness

pytestmark = pytest.mark.processes

RECORDS = 600


def _touchy(tmp: Path, bad: str, crash: str, *flags: str) -> RunningJob:
    return start_witness(
        tmp, "touchy", "--shuffle=false", *flags, model="touchy", records=RECORDS, epochs=1, servers=1,
        env={"TOUCHY_RECORDS": bad, "TOUCHY_CRASH": crash},
    )  # fmt: skip


def _status(result: dict[str, object]) -> dict[str, object]:
    status = result["status"]
    assert isinstance(status, dict)
    return status


@pytest.mark.parametrize("crash", ["raise", "segfault"])
def test_a_record_that_crashes_workers_is_found_and_fails_the_job_by_name(tmp_path: Path, crash: str) -> None:
    code, result = _touchy(tmp_path, "345", crash).finish()
    assert code == 1
    assert "record 45 of part-1.recordio cannot be trained" in str(result["reason"])
    if crash == "raise":
        assert "ValueError: cannot read record 345" in str(result["reason"])
        assert "touchy.py" in str(result["reason"]) and not OURS.search(str(result["reason"]))


def test_records_that_crash_workers_are_set_aside_when_that_is_allowed(tmp_path: Path) -> None:
    job = _touchy(tmp_path, "101,345", "raise", "--max_bad_records=2", "--audit=true")
    code, result = job.finish()
    assert code == 0, job.story()
    assert sorted(_status(result)["bad_records"]) == ["record 101 of part-0.recordio", "record 45 of part-1.recordio"]  # type: ignore[call-overload]
    assert _status(result)["audit"] == f"{RECORDS - 2} records, each trained exactly 1 time, 2 set aside"


def test_a_model_that_raises_in_its_first_batch_ends_the_job_with_its_own_traceback(tmp_path: Path) -> None:
    code, result = _touchy(tmp_path, "", "loss").finish()
    assert code == 1
    reason = str(result["reason"])
    assert "the first batch failed" in reason and "ValueError: no loss for you" in reason
    assert "touchy.py" in reason and not OURS.search(reason)


def test_a_feed_that_fails_on_the_first_records_is_refused_before_anything_starts(tmp_path: Path) -> None:
    job = _touchy(tmp_path, "0", "raise")
    assert job.process.wait(60) == 2
    assert "ValueError: cannot read record 0" in job.output.read_text()
    assert not job.paths.logs.exists()


def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    """A stopped process is silent as well, and its connection breaks after 5 s: the limit is below that."""
    job = start_witness(tmp_path, "hang", "--hang_seconds=3", records=8000, epochs=1)
    job.wait_until(lambda s: s.version > 10 and job.kill_training_worker(s, signum=signal.SIGSTOP))
    code, _ = job.finish()
    assert code == 0, job.story()
    assert "no batch finished for 3 s" in job.paths.log("elasticdl-hang-master").read_text()
    audit_witness(tmp_path / "hang-model", 8000, 1, 2)


def test_a_worker_told_to_leave_finishes_its_batch_and_nothing_counts_as_failure(tmp_path: Path) -> None:
    job = start_witness(tmp_path, "leave", "--relaunch_on_worker_failure=0", records=8000, epochs=1)
    job.wait_until(lambda s: s.version > 10 and job.kill_training_worker(s, signum=signal.SIGTERM))
    code, _ = job.finish()
    assert code == 0, job.story()
    assert "elasticdl-leave-worker-2" in job.paths.log("elasticdl-leave-master").read_text()
    audit_witness(tmp_path / "leave-model", 8000, 1, 2)
