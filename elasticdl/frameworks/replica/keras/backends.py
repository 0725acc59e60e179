"""The ModelReplica of a Keras model on the backend that Keras runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from elasticdl.frameworks.arrays import Arrays
from elasticdl.frameworks.keras.export import table_layers
from elasticdl.frameworks.keras.model import built, unknown_backend
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.replica.model_replica import ModelReplica, refuse_tables


def choose_device(device: str) -> None:
    """Set the device of Keras models on torch; other backends choose their own."""
    if keras.backend.backend() == "torch":
        keras.src.backend.torch.core.DEFAULT_DEVICE = device  # keras.device() lasts for a block and a thread


def keras_replica(model: Any, code: ModelFile, seed: int, sample: Callable[[], Arrays] | None) -> ModelReplica:
    refuse_tables((layer.name for layer in table_layers(model)), code.path)
    built(model, code, seed, sample)
    backend = keras.backend.backend()
    if backend == "torch":
        from elasticdl.frameworks.replica.keras.torch import TorchKerasReplica

        return TorchKerasReplica(model, code)
    if backend == "jax":
        from elasticdl.frameworks.replica.keras.jax import JaxReplica

        return JaxReplica(model, code)
    if backend == "tensorflow":
        from elasticdl.frameworks.replica.keras.tensorflow import TensorflowReplica

        return TensorflowReplica(model, code)
    raise unknown_backend(code)
