"""Log lines that people search for, and the log format of every replica."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn, TextIO

FORMAT = "[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d:%(funcName)s] %(message)s"

EVALUATION_STARTED = "Evaluation service started"
EVALUATION_STOPPED = "Evaluation service stopped"


def evaluation_metrics(version: int, metrics: Mapping[str, Any]) -> str:
    """`Evaluation metrics[v=50]: {'accuracy': 0.77}`"""
    return f"Evaluation metrics[v={version}]: {_plain(metrics)}"


def loss_line(loss: float, step: int) -> str:
    """`Loss = 0.083, steps = 100`"""
    return f"Loss = {_short(float(loss))}, steps = {step}"


def _plain(value: Any) -> Any:
    """Numbers of any library as plain ones: numpy would print np.float32(0.77)."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return _short(float(value))


def _short(value: float) -> float:
    # Seven digits are what a float32 holds; more would show 0.7699999809 for 0.77.
    return float(f"{value:.7g}")


class _Replica(logging.Filter):
    """Puts the replica's name on every record, for handlers that show several replicas."""

    def __init__(self, replica: str) -> None:
        super().__init__()
        self.replica = replica

    def filter(self, record: logging.LogRecord) -> bool:
        record.replica = self.replica
        return True


def configure_logging(level: str, replica: str, stream: TextIO | None = None) -> None:
    """Send this process's log to `stream` (stderr) in the one format. Other libraries log from WARNING on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(_Replica(replica))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level]))
    logging.getLogger("elasticdl").setLevel(level)


def end_process(code: int) -> NoReturn:
    """Exit without the interpreter's teardown: gRPC's threads may crash in it, and the replica would seem to fail."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)
