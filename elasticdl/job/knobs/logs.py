"""Knobs of the log, and of where a job keeps its files."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator

from elasticdl.job.knob import KnobGroup, knob
from elasticdl.job.values import Text, upper


class LogsKnobs(KnobGroup):
    title: ClassVar[str] = "Log and state"

    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(upper)] = knob(
        "INFO", "How much every replica logs.", common=True
    )
    state_dir: Text = knob(
        None,
        "The folder for journals, checkpoints and local logs. The default is ELASTICDL_STATE_DIR or ~/.elasticdl/jobs; "
        "in a cluster, .elasticdl below the first --volume.",
        metavar="DIR",
        common=True,
    )
    log_file_path: Text = knob(
        None,
        "A file that a pod copied its output to, in older versions.",
        metavar="FILE",
        gone="the output of every replica is kept, and shown by elasticdl logs and kubectl logs",
    )
