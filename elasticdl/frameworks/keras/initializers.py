"""Keras initializers in the form that parameter servers can draw from, row by row."""

from __future__ import annotations

import math
from typing import Any

import keras

from elasticdl.job.parameters import InitializerSpec

KNOWN = "RandomUniform, RandomNormal, Constant, Zeros, Ones"
SCALED = "GlorotUniform, HeUniform, LecunUniform"


def describe(initializer: Any, input_dim: int | None, output_dim: int) -> InitializerSpec | str:
    """The description of an initializer of a matrix, or the reason why it cannot create single rows."""
    kind, config = type(initializer), initializer.get_config()
    known = keras.initializers
    if kind is known.Zeros:
        return InitializerSpec(kind="constant", a=0.0)
    if kind is known.Ones:
        return InitializerSpec(kind="constant", a=1.0)
    if kind is known.Constant and isinstance(config["value"], (int, float)):
        return InitializerSpec(kind="constant", a=float(config["value"]))
    if kind is known.RandomUniform:
        return InitializerSpec(kind="uniform", a=float(config["minval"]), b=float(config["maxval"]))
    if kind is known.RandomNormal:
        return InitializerSpec(kind="normal", a=float(config["mean"]), b=float(config["stddev"]))
    if isinstance(initializer, known.VarianceScaling) and kind.__module__.split(".")[0] == "keras":
        return _scaled(initializer, input_dim, output_dim)
    return f"{kind.__name__} creates the whole matrix at once, but servers create rows one by one"


def _scaled(initializer: Any, input_dim: int | None, output_dim: int) -> InitializerSpec | str:
    name = type(initializer).__name__
    if input_dim is None:
        return f"{name} depends on the number of ids, which is not given"
    fans = {"fan_in": input_dim, "fan_out": output_dim, "fan_avg": (input_dim + output_dim) / 2}
    scale = initializer.scale / max(1.0, fans[initializer.mode])
    if initializer.distribution == "uniform":
        limit = math.sqrt(3.0 * scale)
        return InitializerSpec(kind="uniform", a=-limit, b=limit)
    if initializer.distribution == "untruncated_normal":
        return InitializerSpec(kind="normal", a=0.0, b=math.sqrt(scale))
    return f"{name} uses a truncated normal distribution, which servers do not support"
