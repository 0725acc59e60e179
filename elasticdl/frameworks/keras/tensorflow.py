"""Keras on TensorFlow: assignment, step and prediction are graph functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from elasticdl.frameworks.arrays import Arrays, FloatArray, map_arrays, to_numpy
from elasticdl.frameworks.keras.model import as_tensor, read_flat, size
from elasticdl.frameworks.keras.rows import ArgumentLookup, Asked, IdRecorder, PulledRows, pull
from elasticdl.frameworks.keras.trainable import KerasTrainable
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.rows import answered_by
from elasticdl.frameworks.trainable import RowSource, StepResult
from elasticdl.job.parameters import TableSpec


class TensorflowBackend(KerasTrainable):
    """Values are in the model's variables; sparse gradients of TensorFlow become dense."""

    def __init__(self, model: Any, code: ModelFile, tables: tuple[TableSpec, ...]) -> None:
        super().__init__(model, code, tables)
        self._asked: dict[bool, list[Asked]] = {}
        self._write = tf.function(self._write_flat, autograph=False, reduce_retracing=True)
        self._ids = tf.function(self._find_ids, autograph=False, reduce_retracing=True)
        self._step = tf.function(self._gradients, autograph=False, reduce_retracing=True)
        self._predict = tf.function(self._predictions, autograph=False, reduce_retracing=True)

    def assign(self, trainable: FloatArray, state: FloatArray) -> None:
        if trainable.shape != self._initial[0].shape or state.shape != self._initial[1].shape:
            raise ValueError(f"{trainable.shape} and {state.shape} values for a model of {self._initial[0].shape}")
        self._write(tf.convert_to_tensor(trainable), tf.convert_to_tensor(state))

    def step(self, features: Arrays, labels: Arrays, rows: RowSource) -> StepResult:
        with self._code.running("computing a training step"):
            inputs, targets = self._inputs(features), map_arrays(as_tensor, labels)
            pulled = self._pull(True, inputs, rows)
            arguments = (
                map_arrays(tf.convert_to_tensor, pulled.rows),
                map_arrays(tf.convert_to_tensor, pulled.positions),
            )
            loss, gradients, row_gradients = self._step(inputs, targets, *arguments)
        state = read_flat(self._state)
        return StepResult(
            float(loss), np.array(gradients), state, pulled.gradients(map_arrays(to_numpy, row_gradients))
        )

    def predict(self, features: Arrays, rows: RowSource) -> Arrays:
        with self._code.running("computing predictions"):
            inputs = self._inputs(features)
            pulled = self._pull(False, inputs, rows)
            arguments = (
                map_arrays(tf.convert_to_tensor, pulled.rows),
                map_arrays(tf.convert_to_tensor, pulled.positions),
            )
            return map_arrays(to_numpy, self._predict(inputs, *arguments))

    def _pull(self, training: bool, inputs: Arrays, source: RowSource) -> PulledRows:
        if not self._tables:
            return PulledRows({}, {}, [])
        found = [to_numpy(ids) for ids in self._ids(inputs, training)]
        return pull(self._tables, self._asked[training], found, source, padded=False)

    def _find_ids(self, inputs: Arrays, training: bool) -> list[Any]:
        recorder = IdRecorder()
        with answered_by(recorder):
            # The graph keeps only what the ids need. Prediction mode, so that statistics do not change.
            self._model(inputs, **self._when_predicting)
        self._asked[training] = recorder.asked
        return recorder.ids

    def _gradients(self, inputs: Arrays, targets: Arrays, rows: dict[str, Any], positions: list[Any]) -> Any:
        with answered_by(ArgumentLookup(rows, positions)), tf.GradientTape() as tape:
            for values in rows.values():
                tape.watch(values)
            predictions = self._model(inputs, **self._when_training)
            loss = self._loss(targets, predictions, self._model.losses)
        names = list(rows)
        found = tape.gradient(loss, [v.value for v in self._trainable] + [rows[n] for n in names])
        dense = [
            tf.zeros([size(v)]) if g is None else tf.reshape(tf.convert_to_tensor(g), [-1])
            for v, g in zip(self._trainable, found, strict=False)
        ]
        of_rows = {
            n: tf.zeros_like(rows[n]) if g is None else tf.convert_to_tensor(g)
            for n, g in zip(names, found[len(self._trainable) :], strict=True)
        }
        return loss, tf.concat(dense, 0) if dense else tf.zeros([0]), of_rows

    def _predictions(self, inputs: Arrays, rows: dict[str, Any], positions: list[Any]) -> Any:
        with answered_by(ArgumentLookup(rows, positions)):
            return self._model(inputs, **self._when_predicting)

    def _write_flat(self, trainable: Any, state: Any) -> None:
        for flat, variables in ((trainable, self._trainable), (state, self._state)):
            sizes = [size(v) for v in variables]
            for part, variable in zip(tf.split(flat, sizes) if sizes else [], variables, strict=True):
                variable.assign(tf.reshape(part, variable.shape))
