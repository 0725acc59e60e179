"""Keras on TensorFlow as a ModelReplica: part, step and prediction are graph functions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import torch

from elasticdl.frameworks.arrays import Arrays, map_arrays, to_numpy
from elasticdl.frameworks.determinism import random_state_kept
from elasticdl.frameworks.keras.model import as_tensor, size, split
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.replica.keras.base import ArrayReplica, roomy


class TensorflowReplica(ArrayReplica):
    """Values are in the model's variables; the graph of a part restores those that it changed."""

    def __init__(self, model: Any, code: ModelFile) -> None:
        super().__init__(model, code)
        # One graph per shape: at the second shape TensorFlow would create a graph for all shapes. It gives other bits,
        # and which graph computes a batch would depend on earlier batches of this process.
        self._graph_part = tf.function(self._compute, autograph=False, reduce_retracing=False)
        self._graph_step = tf.function(self._update, autograph=False, reduce_retracing=False)
        self._graph_predict = tf.function(self._predictions, autograph=False, reduce_retracing=False)

    def part(self, features: Arrays, labels: Arrays, seed: int, room: int = 0) -> tuple[float, torch.Tensor]:
        self._set_random_state(seed)
        with self._code.running("computing a training step"):
            inputs, targets = self._inputs(features), map_arrays(as_tensor, labels)
            loss, vector = self._graph_part(inputs, targets, tf.constant(self._steps.loss_scale()))
        return float(loss), roomy(vector, room)

    def apply(self, mean: torch.Tensor, step: int, epoch: int, rate_scale: float = 1.0) -> None:
        flat = mean.numpy()
        gradients = [tf.cast(g, v.dtype) for g, v in zip(split(flat, self._trainable), self._trainable, strict=True)]
        with self._steps.rate_of(step, epoch, rate_scale), self._code.running("taking an optimizer step"):
            self._graph_step(gradients)
        self._move_buffers(flat)

    def predict(self, features: Arrays) -> Arrays:
        with self._code.running("computing predictions"), random_state_kept():
            self._set_random_state(0)
            return map_arrays(to_numpy, self._graph_predict(self._inputs(features)))

    def _compute(self, inputs: Arrays, targets: Arrays, scale: Any) -> Any:
        moving = [*self._floats, *self._integers]
        before = [tf.identity(v.value) for v in moving]
        with tf.GradientTape() as tape:
            predictions = self._model(inputs, **self._when_training)
            loss = self._loss(targets, predictions, self._model.losses)
            scaled = loss * scale if self._steps.scales_loss else loss
        found = tape.gradient(scaled, [v.value for v in self._trainable])
        flat = [
            tf.zeros([size(v)]) if g is None else tf.reshape(tf.cast(tf.convert_to_tensor(g), "float32"), [-1])
            for v, g in zip(self._trainable, found, strict=True)
        ]
        after = [tf.identity(v.value) for v in moving]
        for variable, old, new in zip(moving, before, after, strict=True):
            move = tf.where(new == old, tf.zeros_like(old), new - old)
            flat.append(tf.reshape(tf.cast(move, "float32"), [-1]))
            variable.assign(old)
        return loss, tf.concat(flat, 0) if flat else tf.zeros([0])

    def _update(self, gradients: list[Any]) -> None:
        self._steps.optimizer.apply(gradients, self._trainable)

    def _predictions(self, inputs: Arrays) -> Any:
        return self._model(inputs, **self._when_predicting)
