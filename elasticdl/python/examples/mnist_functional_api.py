"""The MNIST example where the first versions had it. It lies in model_zoo/mnist now, beside this package's source."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "model_zoo"))

from mnist.mnist_functional_api import (  # type: ignore[import-not-found]
    custom_model,
    eval_metrics_fn,
    feed,
    loss,
    optimizer,
)

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]
