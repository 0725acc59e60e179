"""Keras on JAX: a step is one compiled function of flat values, rows and a batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from elasticdl.errors import ModelError
from elasticdl.frameworks.arrays import Arrays, FloatArray, map_arrays, narrowed, refuse_text, to_numpy
from elasticdl.frameworks.keras.model import split
from elasticdl.frameworks.keras.rows import ArgumentLookup, Asked, IdRecorder, PulledRows, pull
from elasticdl.frameworks.keras.trainable import KerasTrainable
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.rows import answered_by
from elasticdl.frameworks.trainable import RowSource, StepResult
from elasticdl.job.parameters import TableSpec


class JaxBackend(KerasTrainable):
    """Values are flat arrays here; the model's own variables are written only for an export."""

    def __init__(self, model: Any, code: ModelFile, tables: tuple[TableSpec, ...]) -> None:
        super().__init__(model, code, tables)
        self._values, self._buffers = self._initial
        self._locals = [v.value for v in self._local]
        local = {id(v) for v in self._local}
        self._is_local = [id(v) in local for v in model.non_trainable_variables]
        self._asked: dict[bool, list[Asked]] = {}  # for training and prediction: the look-ups in their order
        self._ids = jax.jit(self._find_ids, static_argnums=0)
        self._step = jax.jit(jax.value_and_grad(self._losses, argnums=(0, 1), has_aux=True))
        self._predict = jax.jit(self._predictions)

    def assign(self, trainable: FloatArray, state: FloatArray) -> None:
        if trainable.shape != self._values.shape or state.shape != self._buffers.shape:
            raise ValueError(f"{trainable.shape} and {state.shape} values for a model of {self._values.shape}")
        self._values, self._buffers = trainable.copy(), state.copy()

    def step(self, features: Arrays, labels: Arrays, rows: RowSource) -> StepResult:
        with self._code.running("computing a training step"):
            inputs, targets = map_arrays(self._checked, features), map_arrays(narrowed, labels)
            pulled = self._pull(True, inputs, rows)
            (loss, (state, self._locals)), (gradients, row_gradients) = self._step(
                self._values, pulled.rows, self._buffers, self._locals, inputs, targets, pulled.positions
            )
        self._buffers = np.array(state)
        return StepResult(float(loss), np.array(gradients), self._buffers.copy(), pulled.gradients(row_gradients))

    def predict(self, features: Arrays, rows: RowSource) -> Arrays:
        with self._code.running("computing predictions"):
            inputs = map_arrays(self._checked, features)
            pulled = self._pull(False, inputs, rows)
            found = self._predict(self._values, pulled.rows, self._buffers, self._locals, inputs, pulled.positions)
            return map_arrays(to_numpy, found)

    def _pull(self, training: bool, inputs: Arrays, source: RowSource) -> PulledRows:
        if not self._tables:
            return PulledRows({}, {}, [])
        found = self._ids(training, self._values, self._buffers, self._locals, inputs)
        return pull(self._tables, self._asked[training], found, source, padded=True)

    def _call(self, values: Any, state: Any, local: list[Any], inputs: Arrays, training: bool) -> Any:
        """Predictions, new non-trainable values and added losses, as pure functions of the arguments."""
        floats, integers = iter(split(state, self._state)), iter(local)
        others = [next(integers) if is_local else next(floats) for is_local in self._is_local]
        mode = self._when_training if training else self._when_predicting
        return self._model.stateless_call(split(values, self._trainable), others, inputs, return_losses=True, **mode)

    def _find_ids(self, training: bool, values: Any, state: Any, local: list[Any], inputs: Arrays) -> list[Any]:
        recorder = IdRecorder()
        with answered_by(recorder):
            self._call(values, state, local, inputs, training)
        self._asked[training] = recorder.asked
        return recorder.ids

    def _losses(
        self,
        values: Any,
        rows: Any,
        state: Any,
        local: list[Any],
        inputs: Arrays,
        targets: Arrays,
        positions: list[Any],
    ) -> Any:
        with answered_by(ArgumentLookup(rows, positions)):
            predictions, others, added = self._call(values, state, local, inputs, training=True)
            loss = self._loss(targets, predictions, added)
        floats = [v.reshape(-1) for v, is_local in zip(others, self._is_local, strict=True) if not is_local]
        new_local = [v for v, is_local in zip(others, self._is_local, strict=True) if is_local]
        return loss, (jnp.concatenate(floats) if floats else jnp.zeros(0, jnp.float32), new_local)

    def _predictions(
        self, values: Any, rows: Any, state: Any, local: list[Any], inputs: Arrays, positions: list[Any]
    ) -> Any:
        with answered_by(ArgumentLookup(rows, positions)):
            return self._call(values, state, local, inputs, training=False)[0]

    def _checked(self, array: Any) -> Any:
        return checked(array, self._code.path)

    def _write_variables(self) -> None:
        for flat, variables in ((self._values, self._trainable), (self._buffers, self._state)):
            for value, variable in zip(split(flat, variables), variables, strict=True):
                variable.assign(value)


def checked(array: Any, path: str) -> Any:
    """An array for JAX, which has 32-bit integers: a larger id is an error, since JAX would silently change it."""
    found = narrowed(array)
    refuse_text(found)
    if found.dtype in (np.int64, np.uint64) and found.size and not -(2**31) <= found.min() <= found.max() < 2**31:
        raise ModelError(
            path,
            f"feed gives integers up to {found.max()}; JAX computes with 32-bit integers",
            "Hash ids into fewer than 2**31, or use Keras with torch or tensorflow.",
        )
    return found
