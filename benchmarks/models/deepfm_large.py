"""The zoo's DeepFM over ten million ids, for benchmarks/deepfm.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "model_zoo"))

from deepfm import criteo

BUCKETS = criteo.BUCKETS = 10_000_019

from deepfm import deepfm_pytorch as deepfm_pytorch  # noqa: E402
from deepfm.criteo import feed  # noqa: E402, F401
from deepfm.deepfm_pytorch import custom_model, eval_metrics_fn, loss, optimizer  # noqa: E402, F401

assert deepfm_pytorch.BUCKETS == BUCKETS
