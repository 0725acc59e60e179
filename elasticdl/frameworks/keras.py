"""A Keras 3 model as a Trainable: what its backends have in common, and the choice between them.

Importing this module imports Keras, so `KERAS_BACKEND` must be set before (`ModelFile` does).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras

from elasticdl.errors import ModelError
from elasticdl.frameworks.keras_metrics import measure
from elasticdl.frameworks.keras_moving import move_embeddings
from elasticdl.frameworks.metrics import MetricsAccumulator
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.optimizers import read_optimizer
from elasticdl.frameworks.rows import TableLayer, ZeroLookup, answered_by
from elasticdl.frameworks.trainable import (
    Arrays,
    FloatArray,
    RowSource,
    StepResult,
    TableExport,
    Trainable,
    map_arrays,
    narrowed,
    refuse_text,
    to_numpy,
)
from elasticdl.job.parameters import ParametersSpec, TableSpec, VariableSpec


def seed_everything(seed: int) -> None:
    """Make names and initial values of what is built next a function of the seed."""
    keras.utils.clear_session()  # automatic layer names count from one again
    keras.utils.set_random_seed(seed % 2**32)
    # We trim tracebacks ourselves; Keras would replace exceptions by its own, also those of a row source.
    keras.config.disable_traceback_filtering()


def trainable(model: Any, code: ModelFile, seed: int, sample: Callable[[], Arrays] | None) -> Trainable:
    """The Trainable of a Keras model on the backend that Keras runs on."""
    bind_tables(model, code)
    built(model, code, seed, sample)
    notes: list[str] = []
    if code.request.table_threshold_bytes:
        probe = None if sample is None else lambda: _try_out(model, code, sample)
        notes = move_embeddings(model, code.request.table_threshold_bytes, probe)
    made = _backend(model, code, bind_tables(model, code))
    made.notes = tuple(notes)
    return made


def _backend(model: Any, code: ModelFile, tables: tuple[TableSpec, ...]) -> KerasTrainable:
    backend = keras.backend.backend()
    if backend == "torch":
        from elasticdl.frameworks.keras_torch import TorchBackend

        return TorchBackend(model, code, tables)
    if backend == "jax":
        from elasticdl.frameworks.keras_jax import JaxBackend

        return JaxBackend(model, code, tables)
    if backend == "tensorflow":
        from elasticdl.frameworks.keras_tensorflow import TensorflowBackend

        return TensorflowBackend(model, code, tables)
    raise ModelError(
        code.path, f"Keras runs on the {backend!r} backend", "Set KERAS_BACKEND to torch, jax or tensorflow."
    )


class KerasModel:
    """How a Keras model is called, whoever keeps its values."""

    def __init__(self, model: Any, code: ModelFile) -> None:
        self._model, self._code = model, code
        declared = model.inputs if isinstance(model, keras.src.models.functional.Functional) else []
        self._narrow_inputs = [i.name for i in declared if i.dtype == "int32"]
        # A model whose call takes no `training` decides for itself, as under Keras' own fit.
        takes_training = getattr(model, "_call_has_training_arg", True)
        self._when_training = {"training": True} if takes_training else {}
        self._when_predicting = {"training": False} if takes_training else {}

    def new_metrics(self) -> MetricsAccumulator:
        with self._code.running(f"calling {self._code.request.eval_metrics_fn}"):
            return MetricsAccumulator({n: measure(m, self._code) for n, m in self._code.metrics().items()})

    def _inputs(self, features: Arrays) -> Any:
        """Features as tensors. Keras would silently cut integers to the width of its inputs: that is refused."""
        for name in self._narrow_inputs:
            given = features.get(name) if isinstance(features, dict) else features
            array = np.asarray(given) if isinstance(given, np.ndarray) else np.zeros(0, np.int32)
            if array.dtype in (np.int64, np.uint64) and array.size and not _fits(array):
                what = f"feed gives integers from {array.min()} to {array.max()} for input {name!r}, declared as int32"
                raise ModelError(self._code.path, what, 'Declare it with keras.Input(..., dtype="int64").')
        return map_arrays(as_tensor, features)

    def _loss(self, labels: Any, predictions: Any, added: Sequence[Any]) -> Any:
        """The scalar to differentiate: the user's loss and what layers added (regularizers, add_loss)."""
        loss = self._code.loss(labels, predictions)
        if len(loss.shape):
            loss = keras.ops.mean(loss)
        for extra in added:
            loss = loss + keras.ops.sum(extra)
        return loss


class KerasTrainable(KerasModel, ABC):
    """Variables by their paths. Float variables that no gradient moves are state; integers and seeds stay local."""

    notes: tuple[str, ...] = ()

    def __init__(self, model: Any, code: ModelFile, tables: tuple[TableSpec, ...]) -> None:
        super().__init__(model, code)
        self._tables = tables
        self._trainable: list[Any] = list(model.trainable_variables)
        others = model.non_trainable_variables
        self._state: list[Any] = [v for v in others if keras.backend.is_float_dtype(v.dtype)]
        self._local: list[Any] = [v for v in others if not keras.backend.is_float_dtype(v.dtype)]
        _check_variables(self._trainable + self._state, code)
        self.parameters = ParametersSpec(
            variables=tuple(
                [VariableSpec(name=v.path, shape=tuple(v.shape)) for v in self._trainable]
                + [VariableSpec(name=v.path, shape=tuple(v.shape), trainable=False) for v in self._state]
            ),
            tables=tables,
            optimizer=read_optimizer(code, self._optimizer_parameters()),
        )
        self._initial = read_flat(self._trainable), read_flat(self._state)

    def initial(self) -> tuple[FloatArray, FloatArray]:
        return self._initial[0].copy(), self._initial[1].copy()

    @abstractmethod
    def assign(self, trainable: FloatArray, state: FloatArray) -> None: ...

    @abstractmethod
    def step(self, features: Arrays, labels: Arrays, rows: RowSource) -> StepResult: ...

    @abstractmethod
    def predict(self, features: Arrays, rows: RowSource) -> Arrays: ...

    def export(self, directory: Path, rows: TableExport) -> list[str]:
        from elasticdl.frameworks.keras_export import export_model

        self._write_variables()
        return export_model(self._model, self._tables, self._code, directory, rows)

    def _optimizer_parameters(self) -> Sequence[Any]:
        """What an `optimizer(parameters)` receives."""
        return []

    def _write_variables(self) -> None:
        """Bring the model's own variables up to date, where `assign` keeps values elsewhere."""
        return


def as_tensor(array: Any) -> Any:
    """What `feed` gives as a tensor of the backend; TensorFlow's ragged and sparse tensors stay what they are."""
    if type(array).__module__.split(".")[0] == "tensorflow":
        return array
    found = narrowed(array)
    if keras.backend.backend() != "tensorflow":  # which has layers that take text
        refuse_text(found)
    return keras.ops.convert_to_tensor(found)


def bind_tables(model: Any, code: ModelFile) -> tuple[TableSpec, ...]:
    """Find the embedding layers whose rows live on the servers, and tell each its table."""
    tables: dict[str, TableSpec] = {}
    for layer in model._flatten_layers():
        if not isinstance(layer, TableLayer):
            continue
        name = layer.name  # type: ignore[attr-defined]
        if name in tables:
            raise ModelError(code.path, f"two Embedding layers are called {name!r}", "Give each a name of its own.")
        tables[name] = layer.table(name)
        layer.bind(tables[name])
    return tuple(tables.values())


def _fits(array: Any) -> bool:
    limit = 2**31
    return bool(-limit <= array.min() and array.max() < limit)


def built(model: Any, code: ModelFile, seed: int, sample: Callable[[], Arrays] | None) -> None:
    """See to it that the model has its variables, which it may make only when it sees data."""
    if not all(layer.built for layer in model._flatten_layers()):
        _build_on(model, code, seed, sample)


def _build_on(model: Any, code: ModelFile, seed: int, sample: Callable[[], Arrays] | None) -> None:
    """Run a first batch through a model that makes its variables when it sees data."""
    if sample is None:
        if model.built:
            return  # the layers not built are not used
        raise ModelError(
            code.path,
            "the model has no variables before it sees data",
            "Build it in custom_model: call it once on keras.Input tensors, or `model.build(input_shape)`.",
        )
    features = sample()
    keras.utils.set_random_seed(seed % 2**32)  # reading the sample may have drawn random numbers
    _try_out(model, code, lambda: features)


def _try_out(model: Any, code: ModelFile, sample: Callable[[], Arrays]) -> None:
    features = map_arrays(as_tensor, sample())
    with code.running("trying the model on a first batch"), answered_by(ZeroLookup(keras.ops)):
        model(features)


def _check_variables(variables: Sequence[Any], code: ModelFile) -> None:
    seen = set()
    for v in variables:
        if v.path in seen:
            raise ModelError(code.path, f"two variables are called {v.path!r}", "Give their layers different names.")
        seen.add(v.path)
        if v.dtype != "float32":
            raise ModelError(
                code.path,
                f"variable {v.path!r} is {v.dtype}; ElasticDL trains float32 variables",
                "Build the layer with dtype float32 (or mixed_float16, whose variables are float32).",
            )
        if v.trainable and v.constraint is not None:
            what = (
                f"variable {v.path!r} has the constraint {type(v.constraint).__name__}, which the servers do not apply"
            )
            raise ModelError(code.path, what, "Leave the constraint out, or use a regularizer.")


def read_flat(variables: Sequence[Any]) -> FloatArray:
    """The values of these variables as one flat array."""
    parts = [to_numpy(v.value).reshape(-1) for v in variables]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)
