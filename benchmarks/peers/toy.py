"""What the peers' training scripts share: the toy models of ../models, their records, and the log of committed steps.

Runs under the peer's Python, which has torch and numpy and nothing of ours.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

RECORDS = 8192
STEP_LOG = "STEP_LOG"  # the environment variable that names the file


class StepLog:
    """One line per committed step: `<CLOCK_MONOTONIC> <step> <pid> <generation>`; a word in place of the step marks
    something else that happened. Each line is one write, so that processes can share the file."""

    def __init__(self) -> None:
        self._file = os.open(os.environ[STEP_LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._pid = os.getpid()

    def write(self, step: int | str, generation: int) -> None:
        os.write(self._file, f"{time.monotonic():.6f} {step} {self._pid} {generation}\n".encode())


class Toy:
    """A model of ../models with its loss, its optimizer and batches by number."""

    def __init__(self, model: str, hidden: int) -> None:
        sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
        self.code: Any = importlib.import_module(f"allreduce_{model}")
        self.rows = self.code.make_records(RECORDS)
        torch.manual_seed(1)
        self.model = self.code.custom_model(**({"hidden": hidden} if hidden else {}))
        self.optimizer = self.code.optimizer(self.model.parameters())
        self._epoch, self._order = -1, np.arange(0)

    def batch(self, number: int, size: int, share: int = 0, shares: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """One of `shares` equal parts of the batch of this number, in an order that is new for each epoch."""
        per_epoch = RECORDS // size
        epoch, place = divmod(number, per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng(epoch).permutation(RECORDS)
        part = size // shares
        start = place * size + share * part
        inputs, labels = self.code.decode(self.rows[self._order[start : start + part]])
        return torch.from_numpy(inputs), torch.from_numpy(labels)


def arguments(about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--model", required=True, choices=("conv", "mlp", "transformer"))
    parser.add_argument("--hidden", type=int, default=0, help="of the MLP")
    parser.add_argument("--minibatch_size", type=int, required=True, help="records of one worker's step")
    return parser


def prepare() -> None:
    """One thread, and no life after the parent's."""
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
