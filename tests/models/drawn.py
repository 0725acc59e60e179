"""Images and lines of text made from records that are only their number, for models of the zoo."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from pebble import pause

sys.path.append(str(Path(__file__).resolve().parents[2] / "model_zoo"))


def images(records, mode, metadata):
    """[n, 28, 28] between 0 and 1: a few waves, whose direction is the label."""
    ids = _numbers(records, mode)
    places = np.arange(28, dtype=np.float32) / 28
    labels = ids % 10
    angles = (labels / 10 * np.pi)[:, None, None]
    along = places[None, :, None] * np.cos(angles) + places[None, None, :] * np.sin(angles)
    drawn = (0.5 + 0.5 * np.sin(20 * along + (ids % 97)[:, None, None])).astype(np.float32)
    return drawn if mode == "prediction" else (drawn, labels)


def lines(records, mode, metadata, context=16):
    """Bytes [n, context] that increase by a step of each record, and the next byte for each."""
    ids = _numbers(records, mode)[:, None]
    drawn = (ids + (1 + ids % 5) * np.arange(context + 1)) % 256
    return drawn[:, :-1] if mode == "prediction" else (drawn[:, :-1], drawn[:, 1:])


def _numbers(records, mode):
    if mode == "training":
        pause()
    return np.frombuffer(b"".join(records), "<i8")
