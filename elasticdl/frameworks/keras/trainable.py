"""A Keras model as a Trainable: what its backends have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from elasticdl.errors import ModelError
from elasticdl.frameworks.arrays import Arrays, FloatArray
from elasticdl.frameworks.keras.export import export_model
from elasticdl.frameworks.keras.model import KerasModel, check_paths, read_flat
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.optimizers import read_optimizer
from elasticdl.frameworks.trainable import RowSource, StepResult, TableExport
from elasticdl.job.parameters import ParametersSpec, TableSpec, VariableSpec


class KerasTrainable(KerasModel, ABC):
    """Variables by their paths. Float variables without a gradient are state; integers and seeds stay in the worker."""

    notes: tuple[str, ...] = ()

    def __init__(self, model: Any, code: ModelFile, tables: tuple[TableSpec, ...]) -> None:
        super().__init__(model, code)
        self._tables = tables
        self._trainable: list[Any] = list(model.trainable_variables)
        others = model.non_trainable_variables
        self._state: list[Any] = [v for v in others if keras.backend.is_float_dtype(v.dtype)]
        self._local: list[Any] = [v for v in others if not keras.backend.is_float_dtype(v.dtype)]
        _check_variables(self._trainable + self._state, code)
        optimizer, self.schedule = read_optimizer(code, self._optimizer_parameters())
        self.parameters = ParametersSpec(
            variables=tuple(
                [VariableSpec(name=v.path, shape=tuple(v.shape)) for v in self._trainable]
                + [VariableSpec(name=v.path, shape=tuple(v.shape), trainable=False) for v in self._state]
            ),
            tables=tables,
            optimizer=optimizer,
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
        self._write_variables()
        return export_model(self._model, self._tables, self._code, directory, rows)

    def _optimizer_parameters(self) -> Sequence[Any]:
        """The argument of `optimizer(parameters)`."""
        return []

    def _write_variables(self) -> None:
        """Update the model's variables, if `assign` keeps values elsewhere."""
        return


def _check_variables(variables: Sequence[Any], code: ModelFile) -> None:
    check_paths(variables, code)
    for v in variables:
        if v.dtype != "float32":
            raise ModelError(
                code.path,
                f"variable {v.path!r} is {v.dtype}; ElasticDL trains float32 variables",
                "Build the layer with dtype float32 (or mixed_float16, whose variables are float32).",
            )
        if v.trainable and v.constraint is not None:
            kind = type(v.constraint).__name__
            what = f"variable {v.path!r} has the constraint {kind}, which parameter servers do not support"
            raise ModelError(code.path, what, "Remove the constraint or use a regularizer.")
