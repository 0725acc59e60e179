"""What a status looks like: on a terminal, in a line, at the end of a job, and as JSON."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from elasticdl.cli import summary
from elasticdl.cli.screen import SturdyOutput
from elasticdl.cli.view import View, duration, number, plain, sparkline
from elasticdl.wire import control_pb2 as pb

NOW = 1_800_000_000.0


def training(**changes: object) -> pb.Status:
    """A job in the middle of its life."""
    status = pb.Status(
        job="mnist",
        phase="training",
        records_done=61_440,
        records_total=120_000,
        epoch=1,
        epochs=2,
        version=960,
        version_total=1875,
        loss=0.0834,
        has_loss=True,
        records_per_second=1234.4,
        losses=1,
        recovery_seconds=[0.2, 0.4, 4.0],
        started_at=NOW - 83,
        now=NOW,
        master_starts=1,
    )
    status.evaluations.add(version=50, metrics={"accuracy": 0.2193})
    status.evaluations.add(version=100, metrics={"accuracy": 0.5173})
    status.replicas.add(name="elasticdl-mnist-ps-0", role="ps", state="joined", since=NOW - 80)
    status.replicas.add(
        name="elasticdl-mnist-worker-1", role="worker", state="joined", since=NOW - 70, leases=["train/1/40 3/8"]
    )
    status.replicas.add(name="elasticdl-mnist-worker-2", role="worker", state="running", since=NOW - 1)
    status.replicas.add(
        name="elasticdl-mnist-worker-0", role="worker", state="gone", detail="killed by SIGKILL", since=NOW - 2
    )
    status.decisions.add(at=NOW - 2, text="Starting elasticdl-mnist-worker-2 (elasticdl-mnist-worker-0 is gone)")
    for name, value in changes.items():
        setattr(status, name, value)
    return status


def drawn(view: View, width: int = 110, height: int = 40) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(view.render(height))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_view_shows_how_long_each_part_of_a_change_of_the_world_took() -> None:
    status = training()
    status.changes.add(
        generation=7, who="without elasticdl-mnist-worker-1", detect=0.004, abort=0.012, agree=0.003, rebuild=0.017,
        copy=0.0, first_step=0.0884, total=0.1244,
    )  # fmt: skip
    view = View("mnist")
    view.update(status)
    (line,) = [line for line in drawn(view).splitlines() if "without" in line]
    assert " ".join(line.split()) == "7 4 ms 12 ms 3 ms 17 ms 0 ms 88 ms 124 ms without worker-1"
    (told,) = summary.status_json(status)["changes"]
    assert told["first_step_seconds"] == 0.0884 and told["who"] == "without elasticdl-mnist-worker-1"


def test_the_view_shows_progress_loss_metrics_replicas_and_decisions() -> None:
    view = View("mnist", hint="Ctrl-C stops with a checkpoint")
    view.update(training())
    text = drawn(view)
    assert "mnist  training  epoch 2 of 2" in text
    assert "61,440 of 120,000 records  51%  0:00:47 left" in text
    assert "step 960 of 1,875   loss 0.0834" in text
    assert "1,234 records/s" in text
    assert "1 lost and replaced" in text
    assert "0.5173" in text
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith(("worker", "ps"))}
    assert "working" in rows["worker-1"] and "train/1/40 3/8" in rows["worker-1"]
    assert "starting" in rows["worker-2"]
    assert "gone" in rows["worker-0"] and "killed by SIGKILL" in rows["worker-0"]
    assert "Starting elasticdl-mnist-worker-2 (elasticdl-mnist-worker-0 is gone)" in text
    assert text.rstrip().endswith("Ctrl-C stops with a checkpoint")


def test_incidents_of_replicas_are_counted_by_kind(tmp_path: Path) -> None:
    status = training()
    status.incidents.update({"preempted": 2, "crashed": 1})
    view = View("mnist")
    view.update(status)
    assert "1 crashed, 2 preempted" in drawn(view, width=160)
    told = dict(summary.rows({"status": {"incidents": {"evicted": 3}}}, tmp_path))
    assert told["incidents"] == "3 evicted"
    assert summary.status_json(status)["incidents"] == {"preempted": 2, "crashed": 1}


def test_the_mode_and_batches_that_moved_nothing_are_shown_everywhere(tmp_path: Path) -> None:
    mode = "synchronous (a step averages 4 batches)"
    status = training(mode=mode, skipped_batches=3)
    view = View("mnist")
    view.update(status)
    text = drawn(view, width=160)
    assert f"epoch 2 of 2  {mode}" in text and "3 batches skipped (non-finite gradients)" in text
    ended = {"status": {"mode": mode, "skipped_batches": "3", "records_total": "10"}}
    told = dict(summary.rows(ended, tmp_path))
    assert told["mode"] == mode
    assert told["batches skipped"] == "3, with non-finite gradients"
    assert summary.status_json(status)["skipped_batches"] == 3


def test_a_job_without_a_status_yet_is_starting() -> None:
    assert "mnist  starting" in drawn(View("mnist"))


def test_a_master_that_went_away_is_waited_for_in_words() -> None:
    view = View("mnist")
    view.update(None)  # not there yet
    assert "away" not in drawn(view)
    view.update(training())
    view.update(None)
    assert "The master does not answer; waiting for it." in drawn(view)
    assert "61,440" in drawn(view)  # what was known stays
    view.update(training())
    assert "away" not in drawn(view)


def test_a_job_that_stops_says_so_in_place_of_the_hint() -> None:
    view = View("mnist", hint="the hint")
    view.stopping = "Stopping: the servers write a checkpoint."
    view.update(training(phase="stopping"))
    assert "Stopping: the servers write a checkpoint." in drawn(view)
    assert "the hint" not in drawn(view)


def test_losses_are_drawn_as_they_come() -> None:
    view = View("mnist")
    for version, loss in enumerate((8.0, 4.0, 2.0, 1.0), start=1):
        view.update(training(version=version, loss=loss))
    assert "█▄▂▁" in drawn(view)


def test_a_small_terminal_is_not_overrun() -> None:
    status = training()
    for index in range(3, 60):
        status.replicas.add(name=f"elasticdl-mnist-worker-{index}", role="worker", state="joined", since=NOW)
    view = View("mnist", hint="hint")
    view.update(status)
    assert len(drawn(view, height=24).splitlines()) <= 24
    assert "more" in drawn(view, height=24)


def test_a_user_text_with_brackets_is_shown_as_it_is() -> None:
    status = training()
    status.decisions.add(at=NOW, text="stopping: [bold]reason[/bold] [/nonsense]")
    view = View("[red]job")
    view.update(status)
    assert "[bold]reason[/bold] [/nonsense]" in drawn(view)
    assert "[red]job" in drawn(view)


def test_numbers_read_well() -> None:
    assert [duration(s) for s in (0, 61, 3725.9)] == ["0:00:00", "0:01:01", "1:02:05"]
    assert [number(v) for v in (0.88123456, 4000.0, 1e-7)] == ["0.881235", "4,000", "1e-07"]
    assert sparkline([1.0]) == ""
    assert sparkline([1.0, float("nan"), 1.0, float("inf")]) == "▁▁"
    assert number(float("nan")) == "nan"


def test_a_status_in_one_line_names_who_works() -> None:
    line = plain(training())
    assert line.startswith("training, 61440 of 120000 records, step 960, loss 0.0834, 1234 records/s")
    assert line.endswith("; ps-0 worker-1 worker-2")


def concluded(result: dict[str, object]) -> str:
    console = Console(file=io.StringIO(), width=80, markup=False, highlight=False)
    summary.show(console, "mnist", result, Path("/logs"))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_summary_says_what_was_lost_and_how_fast_it_came_back() -> None:
    from google.protobuf.json_format import MessageToDict

    status = MessageToDict(training(phase="succeeded"), preserving_proto_field_name=True)
    text = concluded({"outcome": "succeeded", "reason": "all done", "status": status, "elapsed_seconds": 83.2})
    assert text.startswith("mnist succeeded: all done\n")
    for line in (
        "  records trained             61,440 of 120,000, 2 epochs",
        "  metrics                     accuracy 0.5173 (at step 100)",
        "  replicas lost and replaced  1",
        "  recovery                    median 0.40 s, longest 4.00 s",
        "  time                        0:01:23",
        "  logs                        /logs",
    ):
        assert line in text.splitlines()


def test_the_summary_of_a_failure_shows_the_whole_reason() -> None:
    reason = 'the first batch failed:\n  File "model.py", line 3, in loss\nZeroDivisionError: division by zero'
    text = concluded({"outcome": "failed", "reason": reason, "status": {}})
    assert text.startswith("mnist failed: the first batch failed:\n")
    assert 'File "model.py", line 3, in loss\nZeroDivisionError: division by zero' in text


def test_the_status_for_programs_has_plain_numbers_and_zeros() -> None:
    found = json.loads(json.dumps(summary.status_json(training(records_done=0))))
    assert found["records_done"] == 0
    assert found["evaluations"][1] == {"version": 100, "metrics": {"accuracy": 0.5173}}
    assert found["replicas"][1]["short_name"] == "worker-1"


def test_numbers_that_json_does_not_know_are_null_for_programs() -> None:
    status = training(loss=float("nan"), records_per_second=float("inf"))
    status.evaluations[0].metrics["auc"] = float("-inf")
    found = json.loads(json.dumps(summary.status_json(status), allow_nan=False))
    assert (found["loss"], found["records_per_second"]) == (None, None)
    assert found["evaluations"][0]["metrics"] == {"accuracy": 0.2193, "auc": None}


def test_a_result_of_another_version_is_no_error() -> None:
    assert summary.status_of({"status": {"version": "not a number"}}) == pb.Status()
    assert summary.status_of({"status": {"new_field": 1, "version": "5"}}).version == 5


def test_a_reader_that_goes_away_does_not_end_the_job(capfd: pytest.CaptureFixture[str]) -> None:
    import os

    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        output = SturdyOutput(stream)
        output.write("heard\n")
        os.close(reading)
        for _ in range(3):
            output.write("not heard\n")


def test_the_clock_goes_on_between_two_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    view = View("mnist")
    view.update(training())
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert "0:02:23" in drawn(view)
