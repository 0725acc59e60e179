"""Log lines that people grep for, as the seeds show them."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import numpy as np
import pytest

from elasticdl.job import loglines


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("elasticdl")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before


def test_evaluation_metrics_are_logged_as_the_seeds_show() -> None:
    assert loglines.evaluation_metrics(50, {"accuracy": 0.77}) == "Evaluation metrics[v=50]: {'accuracy': 0.77}"


def test_numbers_of_numpy_are_logged_as_plain_ones() -> None:
    line = loglines.evaluation_metrics(100, {"accuracy": np.float32(0.77), "deep": {"n": np.int64(3)}})
    assert line == "Evaluation metrics[v=100]: {'accuracy': 0.77, 'deep': {'n': 3.0}}"


def test_the_loss_is_logged_as_the_seeds_show() -> None:
    assert loglines.loss_line(0.083, 100) == "Loss = 0.083, steps = 100"
    assert loglines.loss_line(float(np.float32(0.083)), 100) == "Loss = 0.083, steps = 100"
    assert loglines.loss_line(float("nan"), 1) == "Loss = nan, steps = 1"


def test_the_evaluation_service_says_when_it_starts_and_stops() -> None:
    assert loglines.EVALUATION_STARTED == "Evaluation service started"
    assert loglines.EVALUATION_STOPPED == "Evaluation service stopped"


def test_a_log_line_has_time_level_and_place() -> None:
    stream = io.StringIO()
    loglines.configure_logging("INFO", "elasticdl-j-master", stream)
    logging.getLogger("elasticdl.master.evaluation").info(loglines.evaluation_metrics(50, {"accuracy": 0.77}))
    pattern = (
        r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] \[INFO\] \[test_loglines\.py:\d+:test_a_log_line_has_time_level_and_"
        r"place\] Evaluation metrics\[v=50\]: \{'accuracy': 0\.77\}\n"
    )
    assert re.fullmatch(pattern, stream.getvalue())


def test_our_own_log_follows_the_level_and_other_libraries_are_heard_from_warning_on() -> None:
    stream = io.StringIO()
    loglines.configure_logging("DEBUG", "r", stream)
    logging.getLogger("elasticdl.worker").debug("ours")
    logging.getLogger("another.library").info("theirs")
    logging.getLogger("another.library").warning("loud")
    loglines.configure_logging("ERROR", "r", stream)
    logging.getLogger("elasticdl.worker").warning("too quiet")
    text = stream.getvalue()
    assert "ours" in text and "loud" in text
    assert "theirs" not in text and "too quiet" not in text
