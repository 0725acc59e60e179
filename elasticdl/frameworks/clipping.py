"""Gradient clipping as in Keras optimizers, on the gradients of one step before the worker pushes them.

A table counts as one variable. Its gradient is that of the rows in the batch, each summed over the batch, and zero
elsewhere; so every norm is that of a plain embedding layer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from elasticdl.frameworks.arrays import FloatArray
from elasticdl.frameworks.trainable import StepResult
from elasticdl.job.parameters import ClipSpec, ParametersSpec


def clipped(result: StepResult, spec: ParametersSpec) -> StepResult:
    """The result with its gradients clipped, if the optimizer clips."""
    clip = spec.optimizer.clip
    if clip is None:
        return result
    sizes = [v.size for v in spec.variables if v.trainable]
    dense = np.split(result.gradients, np.cumsum(sizes)[:-1]) if sizes else []
    tables = list(result.rows)
    parts = _clipped(clip, [*dense, *(result.rows[name][1] for name in tables)])
    rows = {name: (result.rows[name][0], parts[len(dense) + i]) for i, name in enumerate(tables)}
    gradients = np.concatenate(parts[: len(dense)]) if dense else result.gradients
    return replace(result, gradients=gradients, rows=rows)


def _clipped(clip: ClipSpec, gradients: list[FloatArray]) -> list[FloatArray]:
    limit = np.float32(clip.limit)
    if clip.kind == "value":
        return [np.clip(g, -limit, limit) for g in gradients]
    squares = [_squares(g) for g in gradients]
    if clip.kind == "norm":
        norms = [np.float32(np.sqrt(s)) for s in squares]
        return [g * limit / np.maximum(n, limit) for g, n in zip(gradients, norms, strict=True)]
    norm = np.float32(np.sqrt(sum(squares)))
    # Like Keras: a norm that is not finite makes every gradient NaN rather than some of them zero.
    scale = limit / np.maximum(norm, limit) if np.isfinite(norm) else np.float32(np.nan)
    return [g * scale for g in gradients]


def _squares(gradient: FloatArray) -> float:
    return float(np.sum(np.square(gradient), dtype=np.float64))
