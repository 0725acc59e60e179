"""Keras on torch: eager, rows are pulled during the forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from elasticdl.frameworks.arrays import Arrays, FloatArray, map_arrays, to_numpy
from elasticdl.frameworks.keras.model import as_tensor
from elasticdl.frameworks.keras.trainable import KerasTrainable
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.rows import answered_by
from elasticdl.frameworks.torch.rows import TorchLookup
from elasticdl.frameworks.torch.tensors import FlatTensors
from elasticdl.frameworks.trainable import RowSource, StepResult
from elasticdl.job.parameters import TableSpec


class TorchBackend(KerasTrainable):
    """The value of a variable is a torch parameter, which also gets the gradient."""

    def __init__(self, model: Any, code: ModelFile, tables: tuple[TableSpec, ...]) -> None:
        super().__init__(model, code, tables)
        self._trainable_values = FlatTensors([v.value for v in self._trainable])
        self._state_values = FlatTensors([v.value for v in self._state])

    def _optimizer_parameters(self) -> Sequence[Any]:
        return [v.value for v in self._trainable]

    def assign(self, trainable: FloatArray, state: FloatArray) -> None:
        self._trainable_values.write(trainable)
        self._state_values.write(state)

    def step(self, features: Arrays, labels: Arrays, rows: RowSource) -> StepResult:
        lookup = TorchLookup(rows, training=True)
        self._trainable_values.clear_gradients()
        self._model._clear_losses()
        with self._code.running("computing a training step"):
            inputs, targets = self._inputs(features), map_arrays(as_tensor, labels)
            with answered_by(lookup), torch.enable_grad():
                predictions = self._model(inputs, **self._when_training)
                loss = self._loss(targets, predictions, self._model.losses)
                loss.backward()
        gradients, state = self._trainable_values.read_gradients(), self._state_values.read()
        return StepResult(loss.item(), gradients, state, lookup.gradients())

    def predict(self, features: Arrays, rows: RowSource) -> Arrays:
        with self._code.running("computing predictions"), torch.no_grad():
            with answered_by(TorchLookup(rows, training=False)):
                predictions = self._model(self._inputs(features), **self._when_predicting)
            return map_arrays(to_numpy, predictions)
