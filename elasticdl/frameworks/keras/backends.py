"""The Trainable of a Keras model on the backend that Keras uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from elasticdl.errors import ModelError
from elasticdl.frameworks.arrays import Arrays
from elasticdl.frameworks.keras.model import built, try_out, unknown_backend
from elasticdl.frameworks.keras.moving import move_embeddings
from elasticdl.frameworks.keras.trainable import KerasTrainable
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.rows import TableLayer
from elasticdl.frameworks.trainable import Trainable
from elasticdl.job.parameters import TableSpec


def keras_trainable(model: Any, code: ModelFile, seed: int, sample: Callable[[], Arrays] | None) -> Trainable:
    """Bind the tables, build the model, move large embeddings and pick the backend."""
    _bind_tables(model, code)
    built(model, code, seed, sample)
    notes: list[str] = []
    if code.request.table_threshold_bytes:
        probe = None if sample is None else lambda: try_out(model, code, sample)
        notes = move_embeddings(model, code.request.table_threshold_bytes, probe)
    made = _backend(model, code, _bind_tables(model, code))
    made.notes = tuple(notes)
    return made


def _backend(model: Any, code: ModelFile, tables: tuple[TableSpec, ...]) -> KerasTrainable:
    backend = keras.backend.backend()
    if backend == "torch":
        from elasticdl.frameworks.keras.torch import TorchBackend

        return TorchBackend(model, code, tables)
    if backend == "jax":
        from elasticdl.frameworks.keras.jax import JaxBackend

        return JaxBackend(model, code, tables)
    if backend == "tensorflow":
        from elasticdl.frameworks.keras.tensorflow import TensorflowBackend

        return TensorflowBackend(model, code, tables)
    raise unknown_backend(code)


def _bind_tables(model: Any, code: ModelFile) -> tuple[TableSpec, ...]:
    """Find the embedding layers whose rows are on the servers, and bind each to its table."""
    tables: dict[str, TableSpec] = {}
    for layer in model._flatten_layers():
        if not isinstance(layer, TableLayer):
            continue
        name = layer.name  # type: ignore[attr-defined]
        if name in tables:
            raise ModelError(code.path, f"two Embedding layers are called {name!r}", "Give them different names.")
        tables[name] = layer.table(name)
        layer.bind(tables[name])
    return tuple(tables.values())
