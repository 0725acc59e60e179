"""A program that prints a digest of each model's initial values, after unrelated draws and layers."""

from __future__ import annotations

import hashlib
import random
import sys

import numpy as np

from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelRequest

SAMPLES = {"linear": {"x": np.zeros((2, 3), np.float32), "ids": np.zeros((2, 2), np.int64)}}


def digest(zoo: str, name: str, seed: int) -> str:
    def sample():
        random.random()
        np.random.rand()
        return SAMPLES.get(name.split("_")[0], np.zeros((2, 64), np.float32))

    model = load_trainable(ModelRequest(zoo, f"{name}.custom_model"), seed, sample)
    names = ",".join(v.name for v in model.parameters.variables)
    return hashlib.sha256(names.encode() + b"".join(a.tobytes() for a in model.initial())).hexdigest()


if __name__ == "__main__":
    random.seed()
    for name in sys.argv[2:]:
        print(name, digest(sys.argv[1], name, 7))
