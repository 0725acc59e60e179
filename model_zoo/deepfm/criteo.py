"""Criteo-shaped records, shared by the models of this folder: a label, 13 counts (I1..I13), 26 categories (C1..C26).

Records are rows of CSV or Parquet files with these columns; missing values are allowed.
"""

from __future__ import annotations

import zlib

import numpy as np

COUNTS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
BUCKETS = 100_003  # ids are hashes of (column, value); a prime spreads them


def feed(records, mode, metadata):
    """Features {"counts": float32 [n, 13], "ids": int64 [n, 26]}, labels float32 [n, 1]."""
    counts = np.array([[_number(record[c]) for c in COUNTS] for record in records], np.float32)
    ids = np.array([[_bucket(c, record[c]) for c in CATEGORIES] for record in records], np.int64)
    features = {"counts": np.log1p(np.maximum(counts, 0.0)), "ids": ids}
    if mode == "prediction":
        return features
    return features, np.array([[float(record["label"])] for record in records], np.float32)


def _number(value):
    return 0.0 if value in ("", None) else float(value)


def _bucket(column, value):
    return zlib.crc32(f"{column}={'' if value is None else value}".encode()) % BUCKETS
