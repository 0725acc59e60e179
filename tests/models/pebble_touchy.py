"""The pebble model, with a feed that fails on certain records."""

from __future__ import annotations

import os

import numpy as np
from pebble import custom_model, eval_metrics_fn, loss, optimizer  # noqa: F401
from pebble import feed as plain_feed


def feed(records, mode, metadata):
    bad = {int(i) for i in os.environ.get("TOUCHY_RECORDS", "").split(",") if i}
    touched = bad & set(np.frombuffer(b"".join(records), "<i8").tolist())
    if touched and mode == "training":
        raise ValueError(f"cannot read record {sorted(touched)[0]}")
    return plain_feed(records, mode, metadata)
