"""The pebble, which hangs in the forward pass of the worker that the file `HANG_FILE` names.

`HANG=spin` loops forever: the worker's other threads live. `HANG=lock` holds the interpreter's lock: none of them do.
`HANG=exchange` loops forever in whatever the training thread does when SIGUSR2 comes, which a fault point may send.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

import torch
from pebble import Pebble, eval_metrics_fn, feed, loss, optimizer  # noqa: F401

from elasticdl.job.names import ENV_REPLICA

FILE = Path(os.environ.get("HANG_FILE", "/nowhere"))


def forever(*_: object) -> None:
    FILE.with_suffix(".there").touch()
    while True:
        if os.environ["HANG"] == "lock":
            ctypes.PyDLL(None).sleep(60)


if os.environ.get("HANG") == "exchange":
    signal.signal(signal.SIGUSR2, forever)


class Hanging(Pebble):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.training and FILE.exists() and FILE.read_text() == os.environ[ENV_REPLICA]:
            forever()
        return super().forward(features)


def custom_model(width: int = 32) -> torch.nn.Module:
    return Hanging(width)
