"""The witness model, with a feed that fails on certain records: for tests of bad records."""

from __future__ import annotations

import os
import signal

import numpy as np
from witness import custom_model, eval_metrics_fn, optimizer  # noqa: F401
from witness import feed as plain_feed
from witness import loss as plain_loss

BAD = {int(i) for i in os.environ.get("TOUCHY_RECORDS", "").split(",") if i}
CRASH = os.environ.get("TOUCHY_CRASH", "raise")


def loss(labels, predictions):
    if CRASH == "loss":
        raise ValueError("no loss for you")
    return plain_loss(labels, predictions)


def feed(records, mode, metadata):
    ids = np.frombuffer(b"".join(records), "<i8")
    touched = BAD & set(ids.tolist())
    if touched and mode == "training":
        if CRASH == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if CRASH == "memory":
            raise MemoryError
        raise ValueError(f"cannot read record {sorted(touched)[0]}")
    return plain_feed(records, mode, metadata)
